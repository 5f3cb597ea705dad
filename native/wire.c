#include "wire.h"
#include "io.h"
#include "sys.h"

int wire_open(struct wire *wire, struct loop *loop, int fd, bool is_socket)
{
    wire->loop = loop;
    wire->watch.fd = fd;
    wire->watch.events = 0;
    wire->is_socket = is_socket;
    wire->broken = wire->starved = wire->in_grown = false;
    wire->in_first = wire->in_end = wire->in_taken = wire->out_first = wire->out_end = wire->descriptor_count = 0;
    wire->out = sys_map(OUT_BYTES + IN_BYTES);
    if (!wire->out)
        return -ENOMEM;
    wire->in = wire->out + OUT_BYTES; /* the last pages are its own: they are given back (wire_next) */
    return watch_for(loop, &wire->watch, EPOLLIN);
}

void wire_close(struct wire *wire)
{
    watch_close(wire->loop, &wire->watch);
    for (size_t i = 0; i < wire->descriptor_count; i++)
        fd_close(&wire->descriptors[i]);
    wire->descriptor_count = 0;
    if (wire->out)
        sys_unmap(wire->out, OUT_BYTES + IN_BYTES);
    wire->out = NULL;
}

long frame_parse(struct reader bytes, struct frame *frame)
{
    uint32_t length;
    uint8_t descriptors, zero;
    uint16_t zeros;
    if (bytes.left < HEADER_BYTES)
        return 0;
    (void)get_u32(&bytes, &length);
    (void)get_u16(&bytes, &frame->kind);
    (void)get_u16(&bytes, &frame->code);
    (void)get_u32(&bytes, &frame->channel);
    (void)get_u8(&bytes, &descriptors);
    (void)get_u8(&bytes, &zero);
    (void)get_u16(&bytes, &zeros);
    if (zero || zeros || descriptors > LIMIT_DESCRIPTORS || frame->kind < KIND_HELLO || frame->kind > KIND_CLOSE)
        return -EBADMSG;
    if (length > (frame->kind == KIND_OPEN ? LIMIT_OPEN_BODY : LIMIT_BODY) || (descriptors && frame->kind != KIND_OPEN))
        return -EBADMSG;
    if (get_part(&bytes, length, &frame->body))
        return 0;
    frame->descriptor_count = descriptors;
    return HEADER_BYTES + (long)length;
}

/* Moves unhandled bytes to the front. A frame that is longer than usual gets all the room that it needs. */
static size_t make_room(struct wire *wire)
{
    uint32_t length = 0;
    memmove(wire->in, wire->in + wire->in_first, wire->in_end - wire->in_first);
    wire->in_end -= wire->in_first;
    wire->in_first = 0;
    if (wire->in_end >= HEADER_BYTES)
        memcpy(&length, wire->in, sizeof length); /* frame_parse has found it within bounds */
    if (length > LIMIT_BODY)
        wire->in_grown = true;
    return HEADER_BYTES + (length > LIMIT_BODY ? length : (size_t)LIMIT_BODY) - wire->in_end;
}

void wire_receive(struct wire *wire)
{
    size_t room = make_room(wire), kept = wire->descriptor_count, count = ARRAY_SIZE(wire->descriptors) - kept;
    long got = wire->is_socket
                   ? receive_fds(wire->watch.fd, wire->in + wire->in_end, room, MSG_DONTWAIT, wire->descriptors + kept, &count)
                   : sys_read(wire->watch.fd, wire->in + wire->in_end, room);
    wire->descriptor_count += wire->is_socket ? count : 0;
    if (got > 0)
        wire->in_end += (size_t)got;
    else if (got != -EAGAIN)
        wire->broken = true; /* also its end: no answer can arrive any more */
}

static void take_descriptors(struct wire *wire, struct frame *frame)
{
    if (frame->descriptor_count > wire->descriptor_count) {
        wire->broken = true;
        frame->descriptor_count = 0;
        return;
    }
    memcpy(frame->descriptors, wire->descriptors, frame->descriptor_count * sizeof(int));
    wire->descriptor_count -= frame->descriptor_count;
    memmove(wire->descriptors, wire->descriptors + frame->descriptor_count, wire->descriptor_count * sizeof(int));
}

bool wire_next(struct wire *wire, struct frame *frame)
{
    wire->in_first += wire->in_taken;
    wire->in_taken = 0;
    if (wire->broken || wire->out_end - wire->out_first > OUT_FULL)
        return false;
    if (wire->in_first == wire->in_end) {
        if (wire->in_grown)
            (void)CALL3(madvise, P(wire->in + 2 * LIMIT_BODY), IN_BYTES - 2 * LIMIT_BODY, MADV_DONTNEED);
        wire->in_grown = false;
        wire->broken = wire->descriptor_count > 0; /* of no frame */
        return false;
    }
    long size = frame_parse(reader_of(wire->in + wire->in_first, wire->in_end - wire->in_first), frame);
    wire->broken = size < 0;
    if (size <= 0)
        return false;
    wire->in_taken = (size_t)size;
    take_descriptors(wire, frame);
    return !wire->broken;
}

void frame_close(struct frame *frame)
{
    for (size_t i = 0; i < frame->descriptor_count; i++)
        fd_close(&frame->descriptors[i]);
}

static unsigned char *begin(struct wire *wire, enum kind_number kind, uint16_t code, uint32_t channel, size_t size)
{
    if (OUT_BYTES - wire->out_end < HEADER_BYTES + size) {
        memmove(wire->out, wire->out + wire->out_first, wire->out_end - wire->out_first);
        wire->out_end -= wire->out_first;
        wire->out_first = 0;
    }
    struct writer to = writer_of(wire->out + wire->out_end, OUT_BYTES - wire->out_end);
    if (wire->broken || to.size < HEADER_BYTES + size) { /* a host that asks and never reads */
        wire->broken = true;
        return NULL;
    }
    (void)put_u32(&to, (uint32_t)size);
    (void)put_u16(&to, (uint16_t)kind);
    (void)put_u16(&to, code);
    (void)put_u32(&to, channel);
    (void)put_u32(&to, 0);
    wire->out_end += HEADER_BYTES + size;
    return to.base + to.used;
}

void wire_send(struct wire *wire, enum kind_number kind, uint16_t code, uint32_t channel, const void *body, size_t size)
{
    unsigned char *to = begin(wire, kind, code, channel, size);
    if (to && size)
        memcpy(to, body, size);
}

void wire_send_message(struct wire *wire, enum kind_number kind, uint32_t channel, const struct shape *shape, const void *message)
{
    unsigned char bytes[1024]; /* more than any message that is sent this way */
    struct writer body = writer_of(bytes, sizeof bytes);
    must(!message_put(&body, shape, message));
    wire_send(wire, kind, 0, channel, body.base, body.used);
}

size_t wire_room(struct wire *wire)
{
    size_t queued = wire->out_end - wire->out_first + HEADER_BYTES;
    return queued >= OUT_FULL ? 0 : min_size(OUT_FULL - queued, LIMIT_BODY);
}

unsigned char *wire_send_data(struct wire *wire, uint16_t stream, uint32_t channel, size_t size)
{
    must(size && size <= wire_room(wire));
    return begin(wire, KIND_DATA, stream, channel, size);
}

void wire_flush(struct wire *wire)
{
    while (!wire->broken && wire->out_first < wire->out_end) {
        const unsigned char *from = wire->out + wire->out_first;
        size_t size = wire->out_end - wire->out_first;
        long sent = wire->is_socket ? sys_send(wire->watch.fd, from, size, MSG_DONTWAIT | MSG_NOSIGNAL)
                                    : sys_write(wire->watch.fd, from, size);
        if (sent > 0)
            wire->out_first += (size_t)sent;
        else if (sent == -EAGAIN)
            break;
        else if (sent == -EPIPE && wire->is_socket)
            wire->out_first = wire->out_end; /* it has hung up: what it had said before is still to be read */
        else
            wire->broken = true;
    }
    if (wire->out_first == wire->out_end)
        wire->out_first = wire->out_end = 0;
    bool full = wire->out_end - wire->out_first > OUT_FULL;
    if (!wire->broken)
        wire->broken = watch_for(wire->loop, &wire->watch, (full ? 0u : EPOLLIN) | (wire->out_end ? EPOLLOUT : 0u)) < 0;
}
