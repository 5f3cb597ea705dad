/* A connection from both sides: the peer sends bytes and descriptors in any pieces, and reads any number of bytes. */
#include "../io.h"
#include "../sys.h"
#include "../wire.h"

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size);

enum { MOST_SENT = 6 };

static struct {
    struct loop loop;
    struct wire wire;
    int peer, null;
    unsigned char read[1 << 20];
} the;

static void ready(struct watch *watch, uint32_t events)
{
}

static void say(struct reader bytes, size_t descriptors)
{
    int fds[MOST_SENT];
    for (size_t i = 0; i < MOST_SENT; i++)
        fds[i] = the.null;
    (void)send_fds(the.peer, bytes.at, bytes.left, fds, descriptors);
}

static void step(uint8_t what, uint8_t much, struct reader *script)
{
    struct frame frame;
    struct reader part;
    struct credit_message credit = {much};
    size_t size;
    switch (what % 9) {
    case 0:
        must(!get_part(script, min_size(much, script->left), &part));
        return say(part, what / 9 % (MOST_SENT + 1));
    case 1:
        if (!the.wire.broken)
            wire_receive(&the.wire);
        return;
    case 2:
        while (wire_next(&the.wire, &frame))
            frame_close(&frame);
        return;
    case 3:
        return wire_send_message(&the.wire, KIND_CREDIT, much, &credit_shape, &credit);
    case 4:
        size = min_size(wire_room(&the.wire), 256u * much + 1);
        unsigned char *to = size ? wire_send_data(&the.wire, STREAM_OUT, much, size) : NULL;
        if (to)
            memset(to, much, size);
        return;
    case 5:
        return wire_flush(&the.wire);
    case 8: /* it is nothing to be written to any more */
        (void)sys_dup3(the.null, the.wire.watch.fd, O_CLOEXEC);
        return wire_send(&the.wire, KIND_EOF, STREAM_OUT, much, NULL, 0);
    case 6:
        (void)sys_recv(the.peer, the.read, (size_t)much << 12, MSG_DONTWAIT);
        return;
    default:
        if (much == what)
            fd_close(&the.peer);
        else /* as much as a long frame */
            for (size_t i = 0; i < much; i++)
                (void)sys_send(the.peer, the.read, 1 << 12, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *bytes, size_t size)
{
    static const uint64_t pipe_signal = 1u << (SIGPIPE - 1);
    struct reader script = reader_of(bytes, size);
    uint8_t kind, what, much;
    int pair[2];
    if (get_number(&script, &kind))
        return 0;
    (void)sys_sigprocmask(SIG_BLOCK, &pipe_signal);
    memset(&the.wire, 0, sizeof the.wire);
    must(!loop_open(&the.loop) && !sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, pair));
    must((the.null = sys_openat(AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC, 0)) >= 0);
    the.peer = pair[1];
    the.wire.watch.ready = ready;
    struct rlimit none = {1, 0}, before;
    must(!sys_prlimit(0, RLIMIT_DATA, NULL, &before));
    none.hard = before.hard;
    (void)sys_prlimit(0, RLIMIT_DATA, kind & 2 ? &none : &before, NULL);
    the.wire.broken |= wire_open(&the.wire, &the.loop, pair[0]) != 0; /* no memory for it */
    (void)sys_prlimit(0, RLIMIT_DATA, &before, NULL);
    while (the.wire.out.base && !get_number(&script, &what) && !get_number(&script, &much))
        step(what, much, &script);
    wire_close(&the.wire);
    fd_close(&the.peer);
    fd_close(&the.null);
    fd_close(&the.loop.epoll);
    return 0;
}
