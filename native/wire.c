#include "wire.h"
#include "sys.h"

int wire_open(struct wire *wire, struct loop *loop, int fd)
{
    wire->loop = loop;
    wire->watch.fd = fd;
    wire->out = (struct queue){.base = sys_map(OUT_BYTES + IN_BYTES), .size = OUT_BYTES};
    if (!wire->out.base)
        return -ENOMEM;
    wire->in = wire->out.base + OUT_BYTES; /* the last pages are its own: they are given back (wire_next) */
    return watch_for(loop, &wire->watch, EPOLLIN);
}

void wire_close(struct wire *wire)
{
    watch_close(wire->loop, &wire->watch);
    for (size_t i = 0; i < wire->descriptor_count; i++)
        fd_close(&wire->descriptors[i]);
    wire->descriptor_count = 0;
    if (wire->out.base)
        sys_unmap(wire->out.base, OUT_BYTES + IN_BYTES);
    wire->out.base = NULL;
}

long frame_parse(struct reader bytes, struct frame *frame)
{
    uint32_t length;
    uint8_t descriptors, zero;
    uint16_t zeros;
    if (bytes.left < HEADER_BYTES)
        return 0;
    (void)get_number(&bytes, &length);
    (void)get_number(&bytes, &frame->kind);
    (void)get_number(&bytes, &frame->code);
    (void)get_number(&bytes, &frame->channel);
    (void)get_number(&bytes, &descriptors);
    (void)get_number(&bytes, &zero);
    (void)get_number(&bytes, &zeros);
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
    long got = receive_fds(wire->watch.fd, wire->in + wire->in_end, room, MSG_DONTWAIT, wire->descriptors + kept, &count);
    wire->descriptor_count += count;
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
    if (wire->broken || queued(&wire->out) > OUT_FULL)
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
    unsigned char *to = wire->broken ? NULL : queue_append(&wire->out, HEADER_BYTES + size);
    struct writer header = writer_of(to, HEADER_BYTES);
    if (!to) { /* a host that asks and never reads */
        wire->broken = true;
        return NULL;
    }
    (void)put_u32(&header, (uint32_t)size);
    (void)put_u16(&header, (uint16_t)kind);
    (void)put_u16(&header, code);
    (void)put_u32(&header, channel);
    (void)put_u32(&header, 0);
    return to + HEADER_BYTES;
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
    size_t taken = queued(&wire->out) + HEADER_BYTES;
    return taken >= OUT_FULL ? 0 : min_size(OUT_FULL - taken, LIMIT_BODY);
}

unsigned char *wire_send_data(struct wire *wire, uint16_t stream, uint32_t channel, size_t size)
{
    must(size && size <= wire_room(wire));
    return begin(wire, KIND_DATA, stream, channel, size);
}

void wire_flush(struct wire *wire)
{
    if (wire->broken)
        return;
    int error = queue_write(&wire->out, wire->watch.fd);
    if (error == -EPIPE) /* it has hung up: what it had said before is still to be read */
        wire->out.first = wire->out.end = 0;
    bool full = queued(&wire->out) > OUT_FULL;
    uint32_t events = (full ? 0u : EPOLLIN) | (wire->out.end ? EPOLLOUT : 0u);
    if (watch_for(wire->loop, &wire->watch, events) < 0 || (error && error != -EAGAIN && error != -EPIPE))
        wire->broken = true;
}
