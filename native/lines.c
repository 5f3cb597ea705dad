#include "lines.h"
#include "sys.h"

static const uint64_t PAUSE = 50000000u;
enum { IN_BYTES = LINE_HEADER + LINE_BODY, FULL = LINE_QUEUE / 2, VERSION = 1 };

static void watch_port(struct lines *);

/* Writes as much as the port takes now. */
static void flush(struct lines *lines)
{
    long sent = 1;
    while (sent > 0 && lines->out_first < lines->out_end) {
        sent = sys_write(lines->writer.fd, lines->out + lines->out_first, lines->out_end - lines->out_first);
        if (sent > 0)
            lines->out_first += (size_t)sent;
    }
    if (lines->out_first == lines->out_end)
        lines->out_first = lines->out_end = 0;
}

static size_t queued(const struct lines *lines)
{
    return lines->out_end - lines->out_first;
}

/* Room for a frame of `size` bytes: the caller fills it in. Frames other than DATA are small, and the guest asks
 * the host nothing more while half of the queue is full. */
static unsigned char *begin(struct lines *lines, enum line_kind kind, uint32_t number, size_t size)
{
    if (LINE_QUEUE - lines->out_end < LINE_HEADER + size) {
        memmove(lines->out, lines->out + lines->out_first, queued(lines));
        lines->out_end -= lines->out_first;
        lines->out_first = 0;
    }
    struct writer to = writer_of(lines->out + lines->out_end, LINE_QUEUE - lines->out_end);
    must(to.size >= LINE_HEADER + size);
    (void)put_u32(&to, (uint32_t)size);
    (void)put_u16(&to, (uint16_t)kind);
    (void)put_u16(&to, 0);
    (void)put_u32(&to, number);
    lines->out_end += LINE_HEADER + size;
    return to.base + to.used;
}

static void say(struct lines *lines, enum line_kind kind, uint32_t number)
{
    (void)begin(lines, kind, number, 0);
}

static void say_number(struct lines *lines, enum line_kind kind, uint32_t number, uint32_t value)
{
    memcpy(begin(lines, kind, number, sizeof value), &value, sizeof value);
}

static struct line *find(struct lines *lines, uint32_t number)
{
    for (size_t i = 0; i < LINES; i++)
        if (lines->line[i].number == number)
            return &lines->line[i];
    return NULL;
}

static void close_line(struct line *line)
{
    watch_close(line->lines->loop, &line->watch);
    ring_free(&line->queue);
    memset(line, 0, sizeof *line);
    line->watch.fd = -1;
}

/* Nothing more comes from its socket, and nothing is taken there. */
static void end_line(struct line *line)
{
    if (!line->ended)
        say(line->lines, LINE_END, line->number);
    line->ended = true;
    watch_close(line->lines->loop, &line->watch);
    ring_free(&line->queue);
    if (line->ending)
        close_line(line);
}

static bool waits(const struct line *line)
{
    return line->queue.first < line->queue.end;
}

static void drain(struct line *line)
{
    long sent;
    while ((sent = ring_drain(&line->queue, line->watch.fd)) > 0)
        line->written += (uint32_t)sent;
    if (sent < 0 && sent != -EAGAIN)
        return end_line(line);
    if (line->written >= LINE_WINDOW / 2) {
        say_number(line->lines, LINE_CREDIT, line->number, line->written);
        line->written = 0;
    }
    if (line->ending && !waits(line))
        end_line(line);
}

/* Forwards its socket's bytes, as far as credit and room go. */
static void forward(struct line *line)
{
    struct lines *lines = line->lines;
    size_t size = min_size(line->credit, LINE_BODY);
    if (!size || queued(lines) > FULL)
        return;
    unsigned char *to = begin(lines, LINE_DATA, line->number, size);
    long got = sys_recv(line->watch.fd, to, size, MSG_DONTWAIT);
    size_t less = got > 0 ? size - (size_t)got : size + LINE_HEADER;
    uint32_t length = got > 0 ? (uint32_t)got : 0;
    lines->out_end -= less;
    if (length)
        memcpy(to - LINE_HEADER, &length, sizeof length);
    line->credit -= length;
    if (!got || (got < 0 && got != -EAGAIN))
        end_line(line);
}

static void watch_line(struct lines *lines, struct line *line)
{
    bool reads = !lines->still && line->credit && queued(lines) <= FULL;
    if (line->number && line->watch.fd >= 0)
        (void)watch_for(lines->loop, &line->watch, (reads ? EPOLLIN : 0u) | (waits(line) && !lines->still ? EPOLLOUT : 0u));
}

/* Does the next step of all, after each event. */
static void settle(struct lines *lines)
{
    flush(lines);
    for (size_t i = 0; i < LINES; i++)
        watch_line(lines, &lines->line[i]);
    watch_port(lines);
}

static void line_ready(struct watch *watch, uint32_t events)
{
    struct line *line = CONTAINER_OF(watch, struct line, watch);
    struct lines *lines = line->lines;
    if (events & EPOLLOUT)
        drain(line);
    if (line->watch.fd >= 0 && events & ~(uint32_t)EPOLLOUT)
        forward(line);
    settle(lines);
}

static void open_line(struct lines *lines, uint32_t number, struct reader name)
{
    struct line *line = find(lines, 0);
    int fd = line && number ? lines->open(lines, name) : -ENOSPC;
    if (fd < 0)
        return say(lines, LINE_END, number); /* its own END is about no line then */
    *line = (struct line){{fd, 0, line_ready}, lines, number, .credit = LINE_WINDOW, .queue = ring_of(LINE_WINDOW)};
}

static void take_data(struct line *line, struct reader data)
{
    if (line->ended || line->ending)
        return;
    bool beyond = data.left > LINE_WINDOW - (line->queue.end - line->queue.first); /* its credit */
    if (beyond || ring_append(&line->queue, data.at, data.left))
        return end_line(line);
    drain(line);
}

static void give_credit(struct line *line, struct reader body)
{
    uint32_t more;
    if (!get_u32(&body, &more) && more <= LINE_WINDOW - min_size(line->credit, LINE_WINDOW))
        line->credit += more;
}

static void end_all(struct lines *lines)
{
    for (size_t i = 0; i < LINES; i++)
        if (lines->line[i].number)
            close_line(&lines->line[i]);
    lines->out_first = lines->out_end = 0;
    lines->still = false;
}

static void take(struct lines *lines, uint16_t kind, uint32_t number, struct reader body)
{
    struct line *line = number ? find(lines, number) : NULL;
    if (kind == LINE_HELLO) {
        end_all(lines);
        say_number(lines, LINE_HELLO, 0, VERSION);
    } else if (kind == LINE_STILL) {
        lines->still = true;
        say(lines, LINE_STILL, 0);
    } else if (kind == LINE_GO) {
        lines->still = false;
    } else if (kind == LINE_OPEN) {
        if (!line)
            open_line(lines, number, body);
    } else if (!line) {
        return; /* it crossed our END on the way */
    } else if (kind == LINE_DATA) {
        take_data(line, body);
    } else if (kind == LINE_CREDIT) {
        give_credit(line, body);
    } else if (kind == LINE_END) {
        line->ending = true;
        if (line->ended || !waits(line))
            end_line(line);
    }
}

/* The host is who started the machine, and can end it: what it says is checked lest it is misread. */
static void take_frames(struct lines *lines)
{
    struct reader rest = reader_of(lines->in, lines->in_end);
    for (;;) {
        struct reader next = rest, body;
        uint32_t length, number;
        uint16_t kind, zero;
        if (get_u32(&next, &length) || get_u16(&next, &kind) || get_u16(&next, &zero) || get_u32(&next, &number))
            break;
        must(length <= LINE_BODY);
        if (get_part(&next, length, &body))
            break;
        take(lines, kind, number, body);
        rest = next;
    }
    memmove(lines->in, rest.at, rest.left);
    lines->in_end = rest.left;
}

/* No process is at the other side: after a stop, until it continues. */
static void wait_a_while(struct lines *lines)
{
    (void)watch_for(lines->loop, &lines->reader, 0);
    (void)watch_for(lines->loop, &lines->writer, 0);
    timer_set(lines->loop, &lines->later, loop_now() + PAUSE);
}

static void reader_ready(struct watch *watch, uint32_t events)
{
    struct lines *lines = CONTAINER_OF(watch, struct lines, reader);
    long got = -EAGAIN;
    if (events & EPOLLIN) {
        got = sys_read(watch->fd, lines->in + lines->in_end, IN_BYTES - lines->in_end);
        if (got > 0) {
            lines->in_end += (size_t)got;
            take_frames(lines);
        }
    }
    if (!got || (events & EPOLLHUP && got < 0))
        wait_a_while(lines);
    else
        settle(lines);
}

static void writer_ready(struct watch *watch, uint32_t events)
{
    struct lines *lines = CONTAINER_OF(watch, struct lines, writer);
    if (events & ~(uint32_t)EPOLLOUT)
        wait_a_while(lines);
    else
        settle(lines);
}

static void look_again(struct timer *timer)
{
    settle(CONTAINER_OF(timer, struct lines, later));
}

static void watch_port(struct lines *lines)
{
    bool reads = queued(lines) <= FULL;
    if (lines->later.set)
        return;
    (void)watch_for(lines->loop, &lines->reader, reads ? EPOLLIN : 0);
    (void)watch_for(lines->loop, &lines->writer, lines->out_end ? EPOLLOUT : 0);
}

int lines_begin(struct lines *lines, struct loop *loop, int reader, int writer)
{
    lines->loop = loop;
    lines->reader = (struct watch){reader, 0, reader_ready};
    lines->writer = (struct watch){writer, 0, writer_ready};
    lines->later.fire = look_again;
    for (size_t i = 0; i < LINES; i++)
        lines->line[i].watch.fd = -1;
    lines->in = sys_map(IN_BYTES);
    lines->out = sys_map(LINE_QUEUE);
    if (!lines->in || !lines->out)
        return -ENOMEM;
    return watch_for(loop, &lines->reader, EPOLLIN);
}
