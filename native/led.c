/* Pid 1 where its host speaks over one port (lines.h): in a virtual machine (machine.c), and behind gVisor's sentry, which
 * has made all that a machine's pid 1 makes, and passes on a pipe to read as descriptor 0 and one to write as 1. */
#include "machine.h"

#include "lines.h"

static struct lines the_lines;

int led_listener(int *place)
{
    int pair[2];
    int result = sys_socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, pair);
    *place = result < 0 ? -1 : pair[0];
    return result < 0 ? result : pair[1];
}

static int give(int place, int fd)
{
    struct {
        struct control_header header;
        int fd;
    } control = {{sizeof control.header + sizeof fd, SOL_SOCKET, SCM_RIGHTS}, fd};
    struct iovec text = {"", 1};
    struct message message = {.parts = &text, .part_count = 1, .control = &control, .control_size = control.header.size};
    return (int)CALL3(sendmsg, place, P(&message), MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Our end of a socket, whose other end whoever has that name has from now on, or -errno. */
static int open_line(struct lines *lines, struct reader name)
{
    struct init *init = CONTAINER_OF(lines->loop, struct init, agent.loop);
    bool ours = name.left == 4 && !memcmp(name.at, "init", 4);
    const struct identity *identity = ours ? NULL : init_find(init, name);
    int pair[2];
    int result = ours || identity ? sys_socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, pair) : -ENOENT;
    if (result < 0)
        return result;
    if (ours) {
        agent_connect(&init->agent, pair[1], true);
        return pair[0];
    }
    result = give(identity->place, pair[1]);
    fd_close(&pair[1]);
    if (result < 0)
        fd_close(&pair[0]);
    return result < 0 ? result : pair[0];
}

int led_begin(struct init *init, int reader, int writer)
{
    init->led = true;
    the_lines.open = open_line;
    return lines_begin(&the_lines, &init->agent.loop, reader, writer);
}

/* Above 2: no word of anybody's must ever get onto a line. */
static int take_away(int fd, int null)
{
    int moved = sys_fcntl(fd, F_DUPFD_CLOEXEC, 3);
    int result = moved < 0 ? moved : sys_fcntl(moved, F_SETFL, O_NONBLOCK);
    if (result >= 0)
        result = sys_dup3(null, fd, 0);
    return result < 0 ? result : moved;
}

int sentry_run(struct agent *child)
{
    struct init *init;
    (void)sys_close_range(3, ~0u, 0);
    int result = init_prepare(child, &init);
    int reader = result ? result : take_away(0, init->agent.null);
    int writer = reader < 0 ? reader : take_away(1, init->agent.null);
    result = writer < 0 ? writer : led_begin(init, reader, writer);
    if (!result)
        loop_run(&init->agent.loop);
    return result ? result : -ECANCELED;
}

/* What pid 1 alone needs there, to be given another name. An agent that is not root has nothing of it anyway. */
int sentry_shed(void)
{
    struct capability_header header = {CAPABILITY_VERSION, 0};
    struct capability_words words[2];
    int result = (int)CALL2(capget, P(&header), P(words));
    words[0].effective &= ~(1u << CAP_SYS_ADMIN);
    words[0].permitted &= ~(1u << CAP_SYS_ADMIN);
    return result ? result : (int)CALL2(capset, P(&header), P(words));
}
