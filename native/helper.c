/* Children of ours that do not execute another program, and the file operations among them. */
#include "agent.h"

enum { FIRST = 3, MOST_FDS = 4 };
static const uint64_t PATIENCE = 5000000000u;

/* A packet on the control socket: the kind of a frame, and its body. */
static struct packet {
    uint16_t kind;
    unsigned char body[LIMIT_BODY];
} packet;

int fork_helper(const int *fds, size_t count)
{
    int above[MOST_FDS];
    int parent = sys_getpid();
    int pid = sys_fork();
    must(count <= MOST_FDS);
    if (pid)
        return pid;
    (void)sys_prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (sys_getppid() != parent)
        sys_exit(1);
    for (size_t i = 0; i < count; i++) /* out of the way first: one may have the number of another's place */
        above[i] = sys_fcntl(fds[i], F_DUPFD_CLOEXEC, FIRST + MOST_FDS);
    for (size_t i = 0; i < count; i++)
        if (above[i] < 0 || sys_dup3(above[i], FIRST + (int)i, O_CLOEXEC) < 0)
            sys_exit(1);
    if (sys_close_range(FIRST + (unsigned)count, INT32_MAX, 0) < 0) /* it holds its input open, and waits for ever */
        sys_exit(1);
    return 0;
}

static void control_ready(struct watch *watch, uint32_t events);

/* The operation's ends of its streams, and ours; those that the host gave take the place of pipes. */
static int open_streams(const struct op_entry *entry, struct frame *frame, int theirs[3], int ours[3])
{
    int pair[2];
    TRY(sys_socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, pair));
    ours[0] = pair[0];
    theirs[0] = pair[1];
    for (unsigned i = 1; i < 3; i++) {
        if (!(entry->streams & i))
            continue;
        if (frame->descriptor_count) {
            theirs[i] = fd_take(&frame->descriptors[0]);
            continue;
        }
        TRY(sys_pipe2(pair, O_CLOEXEC));
        ours[i] = pair[i == OP_IN];
        theirs[i] = pair[i != OP_IN];
    }
    return 0;
}

static int watch_streams(struct child *child, int ours[3])
{
    child->control = (struct watch){fd_take(&ours[0]), 0, control_ready};
    TRY(ours[OP_IN] < 0 ? 0 : child_inlet(child, fd_take(&ours[OP_IN])));
    TRY(ours[OP_OUT] < 0 ? 0 : child_outlet(child, 0, fd_take(&ours[OP_OUT]), LIMIT_RING, false));
    return watch_for(&child->agent->loop, &child->control, EPOLLIN);
}

void helper_start(struct channel *channel, const struct op_entry *entry, struct frame *frame)
{
    struct agent *agent = agent_of(channel);
    int theirs[3] = {-1, -1, -1}, ours[3] = {-1, -1, -1};
    struct child *child = child_new(agent, CHILD_OPERATION);
    bool fits = frame->descriptor_count <= 1 && (!frame->descriptor_count || entry->streams == OP_IN || entry->streams == OP_OUT);
    if (!child || !fits) {
        channel_error(channel, child ? -EINVAL : -EAGAIN, child ? "descriptors" : "operations");
        return;
    }
    int result = open_streams(entry, frame, theirs, ours);
    int fds[3] = {theirs[0], theirs[1] < 0 ? agent->null : theirs[1], theirs[2] < 0 ? agent->null : theirs[2]};
    if (result >= 0)
        result = fork_helper(fds, 3);
    if (!result)
        op_run(entry, frame->body);
    if (result > 0) {
        child->state = CHILD_RUNNING;
        child->op = entry;
        child->pid = result;
        child->number = ++agent->next_number;
        child->started = loop_now();
        channel_follow(channel, child, ROLE_OWNER);
        channel->out[0].flowing = ours[OP_OUT] >= 0;
        if (watch_streams(child, ours) < 0)
            (void)sys_kill(child->pid, SIGKILL);
    } else {
        channel_error(channel, result, "fork");
    }
    for (unsigned i = 0; i < 3; i++) {
        fd_close(&theirs[i]);
        fd_close(&ours[i]);
    }
}

/* The next packet: the size of its body, or -errno; -EPIPE at the end. */
static long receive(struct child *child)
{
    long got = sys_recv(child->control.fd, &packet, sizeof packet, MSG_DONTWAIT);
    if (got == -ECONNRESET) /* it has ended without reading what we said; what it said is there all the same */
        got = sys_recv(child->control.fd, &packet, sizeof packet, MSG_DONTWAIT);
    if (got == 0 || (got > 0 && got < (long)sizeof packet.kind))
        return -EPIPE;
    return got < 0 ? got : got - (long)sizeof packet.kind;
}

/* To the host. The final frame frees the channel. */
static void pass_on(struct channel *channel, size_t size)
{
    struct wire *wire = &channel->connection->wire;
    if (packet.kind == KIND_REPLY)
        return channel_reply_bytes(channel, packet.body, size);
    wire_send(wire, packet.kind == KIND_EXIT ? KIND_EXIT : KIND_ERROR, 0, channel->number, packet.body, size);
    if (packet.kind == KIND_EXIT)
        channel_close(channel);
    else
        channel_free(channel);
}

/* REPLY, which comes before all that is on its streams; what follows it waits until they are at their end. */
static void control_ready(struct watch *watch, uint32_t events)
{
    struct child *child = CONTAINER_OF(watch, struct child, control);
    struct channel *channel = channel_owner(child);
    (void)watch_for(&child->agent->loop, watch, 0);
    long size = channel ? receive(child) : -EPIPE;
    if (size >= 0)
        pass_on(channel, (size_t)size);
    if (size >= 0 && packet.kind == KIND_REPLY)
        child_push(child);
}

static void lose_patience(struct timer *timer)
{
    (void)sys_kill(CONTAINER_OF(timer, struct child, timer)->pid, SIGKILL);
}

/* A helper that reads input gets its end, and deletes its unfinished files. */
void helper_give_up(struct child *child)
{
    if (child->op->streams & OP_IN) {
        watch_close(&child->agent->loop, &child->control);
        child->timer.fire = lose_patience;
        timer_set(&child->agent->loop, &child->timer, loop_now() + PATIENCE);
    } else {
        (void)sys_kill(child->pid, SIGKILL);
    }
}

void helper_commit(struct child *child)
{
    long sent = child->control.fd < 0 ? 0 : sys_send(child->control.fd, "C", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && child->state == CHILD_RUNNING) /* it would wait for ever: better it fails */
        (void)sys_kill(child->pid, SIGKILL);
}

void helper_conclude(struct channel *channel)
{
    long size = receive(channel->child);
    const struct exit_message *ending = &channel->child->ending;
    int failure = channel->child->failure; /* of its streams on our side: what it says doesn't count */
    if (failure) {
        channel_error(channel, failure, "operation");
    } else if (size >= 0) {
        pass_on(channel, (size_t)size);
        if (packet.kind == KIND_REPLY)
            channel_push(channel); /* its streams, then this again */
    } else if (ending->signal || ending->code) {
        channel_error(channel, -EIO, "operation");
    } else {
        if (!channel->replied)
            channel_reply_bytes(channel, NULL, 0);
        channel_close(channel);
    }
}
