/* A host and servers send whole frames of any kind on a port, in any order. The answers are always whole frames, and
 * none comes after the answer to PAUSE until the host sends more. */
#include "../trunk.h"
#include "../sys.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

enum { SERVED = 4, QUIET_TURNS = 8 };

static struct {
    struct loop loop;
    struct trunk trunk;
    struct timer tick;
    struct reader script;
    int host, served[SERVED];
    unsigned quiet;
    bool paused; /* the answer to PAUSE has come */
    unsigned char said[1 << 16];
    size_t end;
} the;

static void tick(struct timer *timer)
{
    (void)timer;
}

/* One of a pair: the other is read and written by the script. */
static int open_served(struct trunk *trunk, struct reader name)
{
    int pair[2];
    (void)trunk;
    for (size_t i = 0; i < SERVED && name.left != 1; i++)
        if (the.served[i] < 0) {
            must(!sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, pair));
            the.served[i] = pair[1];
            return pair[0];
        }
    return -ENOENT;
}

static void hear(void)
{
    long got = sys_recv(the.host, the.said + the.end, sizeof the.said - the.end, MSG_DONTWAIT);
    the.end += got > 0 ? (size_t)got : 0;
    struct reader rest = reader_of(the.said, the.end), next = rest, body;
    uint32_t length, number;
    uint16_t kind, zero;
    while (!get_number(&next, &length) && !get_number(&next, &kind) && !get_number(&next, &zero) && !get_number(&next, &number)) {
        must(length <= TRUNK_BODY && !zero && kind >= TRUNK_HELLO && kind <= TRUNK_PAUSE && kind != TRUNK_OPEN);
        if (get_part(&next, length, &body))
            break;
        must(!the.paused || kind != TRUNK_DATA);
        the.paused |= kind == TRUNK_PAUSE;
        rest = next;
    }
    memmove(the.said, rest.at, rest.left);
    the.end = rest.left;
}

static void say(uint16_t kind, uint32_t number, struct reader body)
{
    unsigned char frame[TRUNK_HEADER + 256];
    struct writer to = writer_of(frame, sizeof frame);
    must(!put_u32(&to, (uint32_t)body.left) && !put_u16(&to, kind) && !put_u16(&to, 0) && !put_u32(&to, number));
    must(!put_bytes(&to, body.at, body.left));
    the.paused &= kind != TRUNK_RESUME && kind != TRUNK_HELLO;
    (void)sys_send(the.host, frame, to.used, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* One step of the script: what, who, how much. */
static void turned(struct loop *loop)
{
    uint8_t what, who, much;
    struct reader body;
    hear();
    if (get_number(&the.script, &what) || get_number(&the.script, &who) || get_number(&the.script, &much)) {
        loop->stopped = ++the.quiet > QUIET_TURNS;
    } else {
        (void)get_part(&the.script, min_size(much, the.script.left), &body);
        int *served = &the.served[who % SERVED];
        if (what % 16 < 12)
            say(what % 16, who % 8, body);
        else if (what % 16 == 12)
            fd_close(served);
        else if (*served >= 0 && what % 2)
            (void)sys_send(*served, body.at, body.left, MSG_DONTWAIT | MSG_NOSIGNAL);
        else if (*served >= 0)
            (void)sys_recv(*served, the.said + the.end, min_size(much, sizeof the.said - the.end), MSG_DONTWAIT);
    }
    timer_set(loop, &the.tick, loop_now()); /* it never waits */
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    static const uint64_t pipe_signal = 1u << (SIGPIPE - 1);
    int pair[2], writer;
    (void)sys_sigprocmask(SIG_BLOCK, &pipe_signal);
    memset(&the, 0, sizeof the);
    the.script = reader_of(bytes, size);
    memset(the.served, 0xff, sizeof the.served);
    must(!loop_open(&the.loop) && !sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, pair));
    the.host = pair[0];
    the.loop.turned = turned;
    the.tick.fire = tick;
    the.trunk.open = open_served;
    must((writer = sys_fcntl(pair[1], F_DUPFD_CLOEXEC, 3)) >= 0 && !trunk_begin(&the.trunk, &the.loop, pair[1], writer));
    loop_run(&the.loop);
    for (size_t i = 0; i < TRUNK_CONNECTIONS; i++) {
        fd_close(&the.trunk.connections[i].watch.fd);
        ring_free(&the.trunk.connections[i].queue);
    }
    for (size_t i = 0; i < SERVED; i++)
        fd_close(&the.served[i]);
    sys_unmap(the.trunk.in, TRUNK_HEADER + TRUNK_BODY);
    sys_unmap(the.trunk.out.base, TRUNK_QUEUE);
    fd_close(&the.trunk.reader.fd);
    fd_close(&the.trunk.writer.fd);
    fd_close(&the.loop.epoll);
    fd_close(&the.host);
    return 0;
}
