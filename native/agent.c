/* Connections, requests, signals: who gets what. */
#include "init.h"
#include "io.h"

#ifndef BUILD
#define BUILD "unknown"
#endif

static struct channel *find_channel(struct connection *connection, uint32_t number)
{
    for (size_t i = 0; i < LIMIT_CHANNELS; i++)
        if (connection->channels[i].number == number)
            return &connection->channels[i];
    return NULL;
}

static void ping(struct channel *channel, const void *nothing, struct frame *frame)
{
    struct ping_reply_message reply = {(uint32_t)sys_getpid(), 0};
    request_reply(channel, &ping_reply_shape, &reply);
}

static const struct request PING[] = {{OP_PING, NULL, ping, 0}}, REQUESTS[] = {
    {OP_EXEC, &exec_shape, command_exec, 0},
    {OP_ATTACH, &attach_shape, command_attach, 0},
    {OP_EXECS, &execs_shape, command_list, 0},
    {OP_SIGNAL, &signal_shape, command_signal, 0},
    {OP_RESIZE, &resize_shape, command_resize, 0},
    {OP_KILL, &kill_shape, command_kill, 0},
    {OP_KEEP, &keep_shape, command_keep, 0},
    {OP_HAND, &hand_shape, relay_hand, 0},
    {OP_CONNECT, &connect_shape, relay_connect, 0},
    {OP_ACCEPT, &accept_shape, relay_accept, 0},
};

static void perform(struct channel *channel, struct frame *frame)
{
    bool init = agent_of(channel)->init;
    const struct op_entry *entry = init ? NULL : op_find(frame->code);
    if (request_perform(PING, 1, 0, channel, frame))
        return;
    if (init ? init_perform(channel, frame) : request_perform(REQUESTS, ARRAY_SIZE(REQUESTS), 0, channel, frame))
        return;
    if (entry)
        helper_start(channel, entry, frame);
    else
        channel_error(channel, -ENOSYS, "operation");
}

/* Numbers only grow. So a frame for an ended channel differs from one for a channel that never was. */
static void open_channel(struct connection *connection, struct frame *frame)
{
    struct channel *channel = find_channel(connection, 0);
    if (!channel || frame->channel <= connection->latest) {
        connection->wire.broken = true;
        return;
    }
    connection->latest = frame->channel;
    *channel = (struct channel){.number = frame->channel, .connection = connection, .window = LIMIT_WINDOW};
    for (unsigned i = 0; i < 2; i++)
        channel->out[i] = (struct flow){.credit = LIMIT_WINDOW, .until = UINT64_MAX};
    perform(channel, frame);
}

static void greet(struct connection *connection, const struct frame *frame)
{
    struct host_hello_message hello;
    if (frame->kind != KIND_HELLO || frame->channel || frame->code || message_read(frame->body, &host_hello_shape, &hello) ||
        hello.version != PROTOCOL_VERSION)
        connection->wire.broken = true;
    connection->greeted = true;
}

static void handle(struct connection *connection, struct frame *frame)
{
    struct channel *channel;
    if (!connection->greeted)
        return greet(connection, frame);
    if (frame->kind == KIND_OPEN)
        return open_channel(connection, frame);
    channel = frame->channel ? find_channel(connection, frame->channel) : NULL;
    bool empty = !frame->body.left;
    if (!channel)
        connection->wire.broken |= !frame->channel || frame->channel > connection->latest;
    else if (frame->kind == KIND_DATA)
        channel_data(channel, frame->code, frame->body);
    else if (frame->kind == KIND_CREDIT)
        channel_credit(channel, frame->code, frame->body);
    else if (frame->kind == KIND_EOF && empty)
        channel_eof(channel, frame->code);
    else if (frame->kind == KIND_CLOSE && empty && !frame->code)
        channel_leave(channel, true);
    else
        connection->wire.broken = true;
}

static void handle_frames(struct connection *connection)
{
    struct frame frame;
    while (wire_next(&connection->wire, &frame)) {
        handle(connection, &frame);
        frame_close(&frame);
    }
}

static void connection_ready(struct watch *watch, uint32_t events)
{
    struct wire *wire = CONTAINER_OF(watch, struct wire, watch);
    if (events & ~(uint32_t)EPOLLOUT)
        wire_receive(wire);
}

static void connection_close(struct agent *agent, size_t index)
{
    struct connection *connection = agent->connections[index];
    for (size_t i = 0; i < LIMIT_CHANNELS; i++)
        if (connection->channels[i].number)
            channel_leave(&connection->channels[i], false);
    wire_close(&connection->wire);
    sys_unmap(connection, sizeof *connection);
    agent->connections[index] = NULL;
    agent->loop.stopped |= agent->alone;
}

void agent_connect(struct agent *agent, int fd)
{
    struct guest_hello_message hello = {PROTOCOL_VERSION, (uint32_t)sys_getpid(), reader_of(BUILD, sizeof BUILD - 1)};
    size_t index = 0;
    while (index < LIMIT_CONNECTIONS && agent->connections[index])
        index++;
    struct connection *connection = index < LIMIT_CONNECTIONS ? sys_map(sizeof *connection) : NULL;
    if (!connection) {
        fd_close(&fd);
        return;
    }
    agent->connections[index] = connection;
    connection->agent = agent;
    connection->wire.watch.ready = connection_ready;
    if (wire_open(&connection->wire, &agent->loop, fd))
        connection->wire.broken = true;
    else
        wire_send_message(&connection->wire, KIND_HELLO, 0, &guest_hello_shape, &hello);
}

/* Continues with the rest when the host has read. */
static void resume(struct connection *connection)
{
    connection->wire.starved = false;
    for (size_t i = 0; i < LIMIT_CHANNELS; i++)
        if (connection->channels[i].number && connection->channels[i].child)
            child_push(connection->channels[i].child);
}

static void turned(struct loop *loop)
{
    struct agent *agent = CONTAINER_OF(loop, struct agent, loop);
    for (size_t i = 0; i < LIMIT_CONNECTIONS; i++)
        if (agent->connections[i])
            handle_frames(agent->connections[i]);
    for (size_t i = 0; i < LIMIT_CONNECTIONS; i++) { /* one may have answered what came on another */
        struct connection *connection = agent->connections[i];
        if (!connection)
            continue;
        wire_flush(&connection->wire);
        if (connection->wire.starved && wire_room(&connection->wire)) {
            resume(connection);
            wire_flush(&connection->wire);
        }
        if (connection->wire.broken)
            connection_close(agent, i);
    }
}

/* Receives a connection from pid 1 (init_trunk.c). -ENOENT: pid 1 is gone. */
static int receive_connection(int listener)
{
    char text;
    int fd = -EAGAIN;
    size_t count = 1;
    long got = receive_fds(listener, &text, 1, MSG_DONTWAIT, &fd, &count);
    return got < 0 ? (int)got : got ? fd : -ENOENT;
}

static void accept_connection(struct watch *watch, uint32_t events)
{
    struct agent *agent = CONTAINER_OF(watch, struct agent, listener);
    int fd = agent->behind_trunk ? receive_connection(watch->fd) : sys_accept4(watch->fd, SOCK_CLOEXEC | SOCK_NONBLOCK);
    agent->loop.stopped |= agent->behind_trunk && fd == -ENOENT;
    if (fd >= 0)
        agent_connect(agent, fd);
}

static void child_has_died(struct agent *agent, int pid, int status)
{
    if (agent->init)
        return init_died(agent->init, pid, status);
    for (size_t i = 0; i < LIMIT_COMMANDS; i++) {
        struct child *child = &agent->commands[i];
        if (child->state == CHILD_RUNNING && child->pid == pid) {
            agent->loop.stopped |= !!(child->flags & EXEC_VITAL);
            return child_died(child, status);
        }
        if (child->killer == pid) {
            child->killed = true;
            child->survivors = status & 0x7f ? 1 : (uint32_t)(status >> 8) & 0xff;
            return;
        }
    }
    for (size_t i = 0; i < LIMIT_HELPERS; i++)
        if (agent->helpers[i].state == CHILD_RUNNING && agent->helpers[i].pid == pid)
            return child_died(&agent->helpers[i], status);
}

/* A command may stop what has its user; a helper goes on at once, because no other process would continue it. */
static void child_has_stopped(struct agent *agent, int pid)
{
    bool ours = false;
    if (agent->init)
        return init_stopped(agent->init, pid);
    for (size_t i = 0; i < LIMIT_COMMANDS && !ours; i++)
        ours = agent->commands[i].killer == pid;
    for (size_t i = 0; i < LIMIT_HELPERS && !ours; i++)
        ours = agent->helpers[i].state == CHILD_RUNNING && agent->helpers[i].pid == pid;
    if (ours)
        (void)sys_kill(pid, SIGCONT);
}

/* The only place that reaps. Signals coalesce: all who are dead are taken at once, unknown orphans too. Then
 * the kills are concluded: what they have killed is reaped by now. */
static void reap(struct agent *agent)
{
    int status, pid;
    while ((pid = (int)CALL4(wait4, -1, P(&status), WNOHANG | WUNTRACED, 0)) > 0)
        if ((status & 0xff) == STOPPED)
            child_has_stopped(agent, pid);
        else
            child_has_died(agent, pid, status);
    for (size_t i = 0; i < LIMIT_COMMANDS; i++)
        if (agent->commands[i].killed)
            kill_conclude(&agent->commands[i]);
}

static void signals_ready(struct watch *watch, uint32_t events)
{
    struct agent *agent = CONTAINER_OF(watch, struct agent, signals);
    struct signal_information signals[8];
    long got = sys_read(watch->fd, signals, sizeof signals);
    /* Others than SIGCHLD are passed over: `kill -TERM -1` must not end us. Pid 1 ends by one that comes from outside its
     * namespace: such a sender has no number in it. */
    for (size_t i = 0; agent->init && !agent->init->in_jail && got > 0 && i < (size_t)got / sizeof *signals; i++)
        agent->loop.stopped |= signals[i].number == SIGTERM && !signals[i].code && !signals[i].pid;
    reap(agent);
}

static void lifeline_ended(struct watch *watch, uint32_t events)
{
    CONTAINER_OF(watch, struct agent, lifeline)->loop.stopped = true;
}

int signals_open(void)
{
    static const uint64_t every = ~(uint64_t)0;
    struct signal_action standard = {0};
    for (int number = 1; number <= LAST_SIGNAL; number++)
        (void)sys_sigaction(number, &standard); /* what our starter ignores, commands would ignore */
    (void)sys_sigprocmask(SIG_SETMASK, &every);
    return sys_signalfd(&every, O_CLOEXEC | O_NONBLOCK);
}

int agent_listen(struct agent *agent, int fd)
{
    agent->listener = (struct watch){fd, 0, accept_connection};
    return watch_for(&agent->loop, &agent->listener, EPOLLIN);
}

static int open_entrance(struct agent *agent)
{
    int listens = 0, type = 0;
    (void)sys_fcntl(ENTRANCE, F_SETFD, 1);
    (void)sys_fcntl(ENTRANCE, F_SETFL, O_NONBLOCK);
    TRY(sys_getsockopt(ENTRANCE, SOL_SOCKET, SO_ACCEPTCONN, &listens));
    TRY(sys_getsockopt(ENTRANCE, SOL_SOCKET, SO_TYPE, &type));
    agent->behind_trunk = type == SOCK_SEQPACKET;
    agent->alone = !listens && !agent->behind_trunk;
    if (!agent->alone)
        return agent_listen(agent, ENTRANCE);
    agent_connect(agent, ENTRANCE);
    return agent->connections[0] ? 0 : -ENOMEM;
}

/* Before this process is not dumpable, or it is given: from then on its files in /proc are root's. */
static void open_oom_score(struct agent *agent)
{
    if (agent->oom_score < 0)
        agent->oom_score = sys_openat(AT_FDCWD, "/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC, 0);
    long got = agent->oom_score < 0 ? -1 : sys_pread(agent->oom_score, agent->usual, sizeof agent->usual, 0);
    agent->usual_size = got > 0 ? (size_t)got : 0;
    if (got <= 0)
        fd_close(&agent->oom_score);
}

int agent_open(struct agent *agent)
{
    agent->loop.turned = turned;
    TRY(loop_open(&agent->loop));
    agent->signals = (struct watch){TRY(signals_open()), 0, signals_ready};
    return watch_for(&agent->loop, &agent->signals, EPOLLIN);
}

static int set_up(struct agent *agent)
{
    struct rlimit tags = {0, 0};
    TRY(agent_open(agent));
    TRY(arena_open(&agent->arena, ARENA_BYTES));
    if (!(agent->stack = sys_map(STACK_BYTES)))
        return -ENOMEM;
    open_oom_score(agent);
    limits_open(agent);
    (void)sys_prctl(PR_SET_DUMPABLE, 0);
    (void)sys_prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (!sys_prlimit(0, RLIMIT_RSS, NULL, &tags) && !sys_prlimit(0, RLIMIT_RSS, &tags, NULL))
        agent->top_tag = min_u64(tags.hard, TOP_TAG);
    agent->lifeline.ready = lifeline_ended;
    if (agent->lifeline.fd >= 0)
        (void)sys_fcntl(LIFELINE, F_SETFD, 1);
    TRY(watch_for(&agent->loop, &agent->lifeline, EPOLLRDHUP));
    return open_entrance(agent);
}

int agent_run(struct agent *agent)
{
    int result = set_up(agent);
    if (!result)
        loop_run(&agent->loop);
    kill_below();
    return result;
}
