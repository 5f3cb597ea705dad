/* Pid 1 whose host speaks over one port (trunk.h): in a virtual machine (machine.c), and behind gVisor's sentry. The
 * sentry has done the set-up of a machine's pid 1. It passes a pipe to read as descriptor 0 and one to write as 1. */
#include "io.h"
#include "trunk.h"
#include "machine.h"

static struct trunk the_trunk;

int init_trunk_listener(int *to_agent)
{
    int pair[2];
    *to_agent = -1;
    TRY(sys_socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, pair));
    *to_agent = pair[0];
    return pair[1];
}

/* Passes one end of a new socket to the agent of that name, or to pid 1 itself. Returns the other end, or -errno. */
static int open_connection(struct trunk *trunk, struct reader name)
{
    struct init *init = CONTAINER_OF(trunk->loop, struct init, agent.loop);
    const struct identity *identity = init_find(init, name);
    int pair[2];
    if (!identity && !reader_is(name, "init"))
        return -ENOENT;
    TRY(sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, pair));
    HELD int ours = pair[0], theirs = pair[1];
    if (!identity)
        agent_connect(&init->agent, fd_take(&theirs));
    else
        TRY(send_fds(identity->to_agent, "", 1, &theirs, 1));
    return fd_take(&ours);
}

int init_trunk_begin(struct init *init, int reader, int writer)
{
    init->trunk = true;
    the_trunk.open = open_connection;
    return trunk_begin(&the_trunk, &init->agent.loop, reader, writer);
}

/* Moves the port above 2: no program's output must ever get onto it. */
static int move_port(int fd, int null)
{
    HELD int moved = TRY(sys_fcntl(fd, F_DUPFD_CLOEXEC, 3));
    TRY(sys_fcntl(moved, F_SETFL, O_NONBLOCK));
    TRY(sys_dup3(null, fd, 0));
    return fd_take(&moved);
}

int sentry_run(struct agent *child)
{
    struct init *init;
    (void)sys_close_range(3, INT32_MAX, 0);
    TRY(init_prepare(child, &init));
    int reader = TRY(move_port(0, init->agent.null)), writer = TRY(move_port(1, init->agent.null));
    TRY(init_trunk_begin(init, reader, writer));
    loop_run(&init->agent.loop);
    return -ECANCELED;
}

/* Drops the capabilities that only pid 1 needs there, to set another name. Agents other than root have none. */
int sentry_shed(void)
{
    struct capability_header header = {CAPABILITY_VERSION, 0};
    struct capability_words words[2];
    TRY(CALL2(capget, P(&header), P(words)));
    words[0].effective &= ~(1u << CAP_SYS_ADMIN);
    words[0].permitted &= ~(1u << CAP_SYS_ADMIN);
    return (int)CALL2(capset, P(&header), P(words));
}
