#include "trunk.h"
#include "sys.h"

static const uint64_t RETRY_NANOSECONDS = 50000000u;
enum { IN_BYTES = TRUNK_HEADER + TRUNK_BODY, HALF_QUEUE = TRUNK_QUEUE / 2, VERSION = 1 };

static void watch_port(struct trunk *);

/* Appends a frame to the queue, and returns the place of its `size` bytes, which the caller fills in. There is always
 * room: frames other than DATA are small, and nothing more is read while half of the queue is full. */
static unsigned char *append_frame(struct trunk *trunk, enum trunk_kind kind, uint32_t number, size_t size)
{
    unsigned char *to = queue_append(&trunk->out, TRUNK_HEADER + size);
    struct writer header = writer_of(to, TRUNK_HEADER);
    must(to);
    (void)put_u32(&header, (uint32_t)size);
    (void)put_u16(&header, (uint16_t)kind);
    (void)put_u16(&header, 0);
    (void)put_u32(&header, number);
    return to + TRUNK_HEADER;
}

static void send_empty(struct trunk *trunk, enum trunk_kind kind, uint32_t number)
{
    (void)append_frame(trunk, kind, number, 0);
}

static void send_number(struct trunk *trunk, enum trunk_kind kind, uint32_t number, uint32_t value)
{
    memcpy(append_frame(trunk, kind, number, sizeof value), &value, sizeof value);
}

static struct trunk_connection *find(struct trunk *trunk, uint32_t number)
{
    for (size_t i = 0; i < TRUNK_CONNECTIONS; i++)
        if (trunk->connections[i].number == number)
            return &trunk->connections[i];
    return NULL;
}

static void free_connection(struct trunk_connection *connection)
{
    watch_close(connection->trunk->loop, &connection->watch);
    ring_free(&connection->queue);
    memset(connection, 0, sizeof *connection);
    connection->watch.fd = -1;
}

/* Closes our end of its socket. The number is free once the host has sent END too. */
static void end_connection(struct trunk_connection *connection)
{
    if (!connection->ended)
        send_empty(connection->trunk, TRUNK_END, connection->number);
    connection->ended = true;
    watch_close(connection->trunk->loop, &connection->watch);
    ring_free(&connection->queue);
    if (connection->ending)
        free_connection(connection);
}

static bool has_unwritten(const struct trunk_connection *connection)
{
    return connection->queue.first < connection->queue.end;
}

static void drain(struct trunk_connection *connection)
{
    long sent;
    while ((sent = ring_drain(&connection->queue, connection->watch.fd)) > 0)
        connection->written += (uint32_t)sent;
    if (sent < 0 && sent != -EAGAIN)
        return end_connection(connection);
    if (connection->written >= TRUNK_WINDOW / 2) {
        send_number(connection->trunk, TRUNK_CREDIT, connection->number, connection->written);
        connection->written = 0;
    }
    if (connection->ending && !has_unwritten(connection))
        end_connection(connection);
}

/* Sends bytes of its socket to the host, as far as credit and the queue allow. It reads into the frame, and cuts that. */
static void forward(struct trunk_connection *connection)
{
    struct trunk *trunk = connection->trunk;
    size_t size = min_size(connection->credit, TRUNK_BODY);
    if (!size || queued(&trunk->out) > HALF_QUEUE)
        return;
    unsigned char *to = append_frame(trunk, TRUNK_DATA, connection->number, size);
    long got = sys_recv(connection->watch.fd, to, size, MSG_DONTWAIT);
    uint32_t length = got > 0 ? (uint32_t)got : 0;
    trunk->out.end -= length ? size - length : size + TRUNK_HEADER;
    if (length)
        memcpy(to - TRUNK_HEADER, &length, sizeof length);
    connection->credit -= length;
    if (!got || (got < 0 && got != -EAGAIN))
        end_connection(connection);
}

static void watch_connection(struct trunk *trunk, struct trunk_connection *connection)
{
    bool reads = !trunk->paused && connection->credit && queued(&trunk->out) <= HALF_QUEUE;
    bool writes = !trunk->paused && has_unwritten(connection);
    if (connection->number && connection->watch.fd >= 0 &&
        watch_for(trunk->loop, &connection->watch, (reads ? EPOLLIN : 0u) | (writes ? EPOLLOUT : 0u)))
        end_connection(connection); /* lest its host wait for ever */
}

/* After each event: writes the queue, and waits for what each connection and the port can do next. */
static void flush_and_watch(struct trunk *trunk)
{
    (void)queue_write(&trunk->out, trunk->writer.fd); /* as much as the port takes now */
    for (size_t i = 0; i < TRUNK_CONNECTIONS; i++)
        watch_connection(trunk, &trunk->connections[i]);
    watch_port(trunk);
}

static void connection_ready(struct watch *watch, uint32_t events)
{
    struct trunk_connection *connection = CONTAINER_OF(watch, struct trunk_connection, watch);
    struct trunk *trunk = connection->trunk;
    if (events & EPOLLOUT)
        drain(connection);
    if (connection->watch.fd >= 0 && events & ~(uint32_t)EPOLLOUT)
        forward(connection);
    flush_and_watch(trunk);
}

static void open_connection(struct trunk *trunk, uint32_t number, struct reader name)
{
    struct trunk_connection *connection = find(trunk, 0);
    int fd = connection && number ? trunk->open(trunk, name) : -ENOSPC;
    if (fd < 0)
        return send_empty(trunk, TRUNK_END, number); /* it ignores the host's END for that number */
    *connection = (struct trunk_connection){{fd, 0, connection_ready}, trunk, number, TRUNK_WINDOW, .queue = ring_of(TRUNK_WINDOW)};
}

static void handle_data(struct trunk_connection *connection, struct reader data)
{
    if (connection->ended || connection->ending)
        return;
    bool beyond = data.left > TRUNK_WINDOW - (connection->queue.end - connection->queue.first); /* its credit */
    if (beyond || ring_append(&connection->queue, data.at, data.left))
        return end_connection(connection);
    drain(connection);
}

static void handle_credit(struct trunk_connection *connection, struct reader body)
{
    uint32_t more;
    if (!get_number(&body, &more) && more <= TRUNK_WINDOW - min_size(connection->credit, TRUNK_WINDOW))
        connection->credit += more;
}

static void reset(struct trunk *trunk)
{
    for (size_t i = 0; i < TRUNK_CONNECTIONS; i++)
        if (trunk->connections[i].number)
            free_connection(&trunk->connections[i]);
    trunk->out.first = trunk->out.end = 0;
    trunk->paused = false;
}

static void handle_frame(struct trunk *trunk, uint16_t kind, uint32_t number, struct reader body)
{
    struct trunk_connection *connection = number ? find(trunk, number) : NULL;
    if (kind == TRUNK_HELLO) {
        reset(trunk);
        send_number(trunk, TRUNK_HELLO, 0, VERSION);
    } else if (kind == TRUNK_PAUSE) {
        trunk->paused = true;
        send_empty(trunk, TRUNK_PAUSE, 0);
    } else if (kind == TRUNK_RESUME) {
        trunk->paused = false;
    } else if (kind == TRUNK_OPEN) {
        if (!connection)
            open_connection(trunk, number, body);
    } else if (!connection) {
        return; /* sent before the host got our END */
    } else if (kind == TRUNK_DATA) {
        handle_data(connection, body);
    } else if (kind == TRUNK_CREDIT) {
        handle_credit(connection, body);
    } else if (kind == TRUNK_END) {
        connection->ending = true;
        if (connection->ended || !has_unwritten(connection))
            end_connection(connection);
    }
}

/* Handles all whole frames. The host started the machine and can end it: these checks find a misread stream. */
static void handle_frames(struct trunk *trunk)
{
    struct reader rest = reader_of(trunk->in, trunk->in_end);
    for (;;) {
        struct reader next = rest, body;
        uint32_t length, number;
        uint16_t kind, zero;
        if (get_number(&next, &length) || get_number(&next, &kind) || get_number(&next, &zero) || get_number(&next, &number))
            break;
        must(length <= TRUNK_BODY);
        if (get_part(&next, length, &body))
            break;
        handle_frame(trunk, kind, number, body);
        rest = next;
    }
    memmove(trunk->in, rest.at, rest.left);
    trunk->in_end = rest.left;
}

/* No process has the port's other side open, such as after a stop of the machine, or epoll(7) has no room. It looks
 * again later. */
static void retry_later(struct trunk *trunk)
{
    (void)watch_for(trunk->loop, &trunk->reader, 0);
    (void)watch_for(trunk->loop, &trunk->writer, 0);
    timer_set(trunk->loop, &trunk->retry, loop_now() + RETRY_NANOSECONDS);
}

static void reader_ready(struct watch *watch, uint32_t events)
{
    struct trunk *trunk = CONTAINER_OF(watch, struct trunk, reader);
    long got = -EAGAIN;
    if (events & EPOLLIN) {
        got = sys_read(watch->fd, trunk->in + trunk->in_end, IN_BYTES - trunk->in_end);
        if (got > 0) {
            trunk->in_end += (size_t)got;
            handle_frames(trunk);
        }
    }
    if (!got || (events & EPOLLHUP && got < 0))
        retry_later(trunk);
    else
        flush_and_watch(trunk);
}

static void writer_ready(struct watch *watch, uint32_t events)
{
    struct trunk *trunk = CONTAINER_OF(watch, struct trunk, writer);
    if (events & ~(uint32_t)EPOLLOUT)
        retry_later(trunk);
    else
        flush_and_watch(trunk);
}

static void retry(struct timer *timer)
{
    flush_and_watch(CONTAINER_OF(timer, struct trunk, retry));
}

static void watch_port(struct trunk *trunk)
{
    bool reads = queued(&trunk->out) <= HALF_QUEUE;
    if (trunk->retry.set)
        return;
    if (watch_for(trunk->loop, &trunk->reader, reads ? EPOLLIN : 0) ||
        watch_for(trunk->loop, &trunk->writer, trunk->out.end ? EPOLLOUT : 0))
        retry_later(trunk);
}

int trunk_begin(struct trunk *trunk, struct loop *loop, int reader, int writer)
{
    trunk->loop = loop;
    trunk->reader = (struct watch){reader, 0, reader_ready};
    trunk->writer = (struct watch){writer, 0, writer_ready};
    trunk->retry.fire = retry;
    for (size_t i = 0; i < TRUNK_CONNECTIONS; i++)
        trunk->connections[i].watch.fd = -1;
    trunk->in = sys_map(IN_BYTES);
    trunk->out = (struct queue){.base = sys_map(TRUNK_QUEUE), .size = TRUNK_QUEUE};
    if (!trunk->in || !trunk->out.base)
        return -ENOMEM;
    return watch_for(loop, &trunk->reader, EPOLLIN);
}
