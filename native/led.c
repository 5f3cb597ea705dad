/* Pid 1 whose host speaks over one port (lines.h): in a virtual machine (machine.c), and behind gVisor's sentry. The
 * sentry has done the set-up of a machine's pid 1. It passes a pipe to read as descriptor 0 and one to write as 1. */
#include "io.h"
#include "lines.h"
#include "machine.h"

static struct lines the_lines;

int led_listener(int *place)
{
    int pair[2];
    *place = -1;
    TRY(sys_socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, pair));
    *place = pair[0];
    return pair[1];
}

/* Our end of a socket, or -errno. The process of that name has the other end from now on. */
static int open_line(struct lines *lines, struct reader name)
{
    struct init *init = CONTAINER_OF(lines->loop, struct init, agent.loop);
    const struct identity *identity = init_find(init, name);
    int pair[2];
    if (!identity && !reader_is(name, "init"))
        return -ENOENT;
    TRY(sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, pair));
    HELD int ours = pair[0], theirs = pair[1];
    if (!identity)
        agent_connect(&init->agent, fd_take(&theirs), true);
    else
        TRY(send_fds(identity->place, "", 1, &theirs, 1));
    return fd_take(&ours);
}

int led_begin(struct init *init, int reader, int writer)
{
    init->led = true;
    the_lines.open = open_line;
    return lines_begin(&the_lines, &init->agent.loop, reader, writer);
}

/* Above 2: no program's output must ever get onto a line. */
static int take_away(int fd, int null)
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
    int reader = TRY(take_away(0, init->agent.null)), writer = TRY(take_away(1, init->agent.null));
    TRY(led_begin(init, reader, writer));
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
