/* Commands: EXEC, ATTACH, EXECS, SIGNAL, RESIZE, KILL. */
#include "agent.h"

enum { MAX_STRINGS = 1 << 18 };
static const uint64_t LOOK = 1000000000u, SOON = 2000000u;

static bool good_id(struct reader id)
{
    for (size_t i = 0; i < id.left; i++) {
        unsigned char c = id.at[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!letter && !(c >= '0' && c <= '9') && c != '_')
            return false;
    }
    return id.left > 0;
}

static struct child *find(struct agent *agent, struct reader id)
{
    for (size_t i = 0; i < LIMIT_COMMANDS; i++) {
        struct child *child = &agent->commands[i];
        if (child->state != CHILD_FREE && !memcmp(child->id, id.at, id.left) && !child->id[id.left])
            return child;
    }
    return NULL;
}

/* The strings of a field as execve(2) wants them: counted first, then one pointer more than there are. */
static int vector_of(struct arena *arena, struct reader strings, char *const **to)
{
    size_t count = count_strings(strings);
    const char **vector = count > MAX_STRINGS ? NULL : arena_array(arena, count + 1, sizeof *vector);
    if (!vector)
        return -E2BIG;
    for (size_t i = 0; i < count; i++)
        vector[i] = next_string(&strings);
    *to = (char *const *)(uintptr_t)vector;
    return 0;
}

static bool good_env(struct reader env)
{
    while (env.left) {
        const char *item = next_string(&env);
        const char *equals = memchr(item, '=', strlen(item));
        if (!equals || equals == item)
            return false;
    }
    return true;
}

/* The name of a field with a wrong value that doesn't breach the protocol, or NULL. */
static const char *complaint(const struct exec_message *request, const struct frame *frame)
{
    size_t descriptors = frame->descriptor_count - (request->flags & EXEC_CGROUP ? 1 : 0);
    size_t streams = request->flags & EXEC_STDIN ? 3 : 2;
    if (!good_id(request->id))
        return "id";
    if (!request->argv.left || !request->argv.at[0])
        return "argv";
    if (!good_env(request->env))
        return "env";
    if (!request->cwd.left || request->cwd.at[0] != '/')
        return "cwd";
    if (request->flags & EXEC_TERMINAL ? descriptors != 0 : descriptors > 1 && descriptors != streams)
        return "descriptors";
    if (descriptors == 1 && !(request->flags & EXEC_STDIN))
        return "descriptors";
    if (request->flags & EXEC_BACKGROUND && request->flags & EXEC_STDIN && !descriptors)
        return "stdin";
    return NULL;
}

/* The command's ends of its streams, and ours. */
struct ends {
    int child[3];
    int ours[3];
    int terminal;
};

static void ends_close(struct ends *ends, const struct agent *agent)
{
    for (unsigned i = 0; i < 3; i++) {
        if (ends->child[i] == agent->null || (i && ends->child[i] == ends->child[0]))
            ends->child[i] = -1;
        fd_close(&ends->ours[i]);
    }
    for (unsigned i = 0; i < 3; i++)
        fd_close(&ends->child[i]);
    fd_close(&ends->terminal);
}

static int open_pipe(int *reader, int *writer)
{
    int pair[2];
    TRY(sys_pipe2(pair, O_CLOEXEC));
    *reader = pair[0];
    *writer = pair[1];
    return 0;
}

/* A pair of our own, by descriptor: /dev/pts may hold anything by now (CVE-2025-52565). */
static int open_terminal(struct ends *ends, const struct exec_message *request)
{
    static const int unlocked = 0;
    struct window_size size = {request->rows, request->columns, 0, 0};
    int terminal = ends->ours[1] = TRY(sys_openat(AT_FDCWD, "/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC, 0));
    TRY(sys_ioctl(terminal, TIOCSPTLCK, P(&unlocked)));
    TRY(sys_ioctl(terminal, TIOCSWINSZ, P(&size)));
    ends->child[0] = ends->child[1] = ends->child[2] = TRY(sys_ioctl(terminal, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
    ends->ours[0] = TRY(sys_fcntl(terminal, F_DUPFD_CLOEXEC, 3));
    ends->terminal = TRY(sys_fcntl(terminal, F_DUPFD_CLOEXEC, 3));
    return 0;
}

static int open_ends(struct ends *ends, struct agent *agent, const struct exec_message *request, struct frame *frame)
{
    bool stdin = request->flags & EXEC_STDIN;
    size_t given = frame->descriptor_count - (request->flags & EXEC_CGROUP ? 1 : 0);
    *ends = (struct ends){{-1, -1, -1}, {-1, -1, -1}, -1};
    if (request->flags & EXEC_TERMINAL)
        return open_terminal(ends, request);
    ends->child[0] = agent->null;
    if (given > 1) {
        for (unsigned i = stdin ? 0 : 1; i < 3; i++)
            ends->child[i] = fd_take(&frame->descriptors[i - (stdin ? 0 : 1)]);
        return 0;
    }
    if (given)
        ends->child[0] = fd_take(&frame->descriptors[0]);
    TRY(stdin && !given ? open_pipe(&ends->child[0], &ends->ours[0]) : 0);
    TRY(open_pipe(&ends->ours[1], &ends->child[1]));
    return open_pipe(&ends->ours[2], &ends->child[2]);
}

/* Our ends become the child's streams. */
static int adopt_ends(struct child *child, struct ends *ends)
{
    bool large = child->flags & EXEC_BACKGROUND && child->agent->rings <= LIMIT_RINGS - 2 * LIMIT_BACKGROUND_RING;
    size_t size = large ? LIMIT_BACKGROUND_RING : LIMIT_RING;
    child->terminal = fd_take(&ends->terminal);
    for (unsigned i = 0; i < 2; i++) {
        if (ends->ours[i + 1] < 0)
            continue;
        if (large)
            child->agent->rings += LIMIT_BACKGROUND_RING;
        TRY(child_outlet(child, i, fd_take(&ends->ours[i + 1]), size, child->terminal >= 0));
    }
    return ends->ours[0] < 0 ? 0 : child_inlet(child, fd_take(&ends->ours[0]));
}

/* A number that no other command has, of this agent or of another that sees the same processes. */
static uint64_t new_tag(const struct agent *agent)
{
    uint64_t noise;
    if (agent->top_tag < 2 * TAG_NOISE || sys_getrandom(&noise, sizeof noise) != sizeof noise)
        return 0;
    return agent->top_tag - 1 - noise % TAG_NOISE;
}

static int fill_program(struct child *child, const struct exec_message *request, struct program *program)
{
    struct arena *arena = &child->agent->arena;
    TRY(vector_of(arena, request->argv, &program->argv));
    TRY(vector_of(arena, request->env, &program->env));
    program->cwd = arena_text(arena, request->cwd.at, request->cwd.left);
    uint32_t *groups = arena_take(arena, request->groups.left);
    if (!program->cwd || !groups)
        return -ENOMEM;
    if (request->groups.left)
        memcpy(groups, request->groups.at, request->groups.left);
    program->groups = groups;
    program->group_count = request->groups.left / sizeof *groups;
    program->rlimits = request->rlimits;
    program->identity = request->flags & EXEC_IDENTITY;
    program->terminal = request->flags & EXEC_TERMINAL;
    program->uid = request->uid;
    program->gid = request->gid;
    program->umask = request->umask & 0777;
    program->tag = child->tag;
    program->cgroup = child->cgroup;
    return 0;
}

/* Ours while the child is made, which inherits it: a command dies of lack of memory before its agent does. */
static void lend_oom_score(const struct agent *agent, int score)
{
    char text[DECIMAL_SIZE + 1];
    (void)decimal_signed(text, score);
    (void)sys_pwrite(agent->oom_score, text, strlen(text), 0);
}

static int start(struct child *child, const struct exec_message *request, struct ends *ends, const char **step)
{
    struct agent *agent = child->agent;
    struct program program = {0};
    int pid = fill_program(child, request, &program);
    memcpy(program.fds, ends->child, sizeof program.fds);
    *step = "arguments";
    if (agent->tells)
        limits_count(agent, child->limit_hits);
    child->started = child->looked_at = loop_now();
    if (request->flags & EXEC_OOM)
        lend_oom_score(agent, request->oom_score);
    if (!pid)
        pid = spawn(&program, agent->stack, STACK_BYTES, step);
    if (request->flags & EXEC_OOM)
        (void)sys_pwrite(agent->oom_score, agent->usual, agent->usual_size, 0);
    arena_rewind(&agent->arena, 0);
    return pid;
}

/* As much of it as is shown in lists: whole strings, the last one cut. */
static void remember(struct child *child, const struct exec_message *request)
{
    memcpy(child->id, request->id.at, request->id.left);
    child->shown_size = min_size(request->argv.left, LIMIT_SHOWN);
    memcpy(child->shown, request->argv.at, child->shown_size);
    child->shown[child->shown_size - 1] = 0;
}

/* Time in which the sandbox stands still doesn't count. The agent gets no message about it, but its check is late then,
 * and counts as two at most. */
static void look_at_time(struct timer *timer)
{
    struct child *child = CONTAINER_OF(timer, struct child, timer);
    uint64_t now = loop_now();
    uint64_t passed = min_u64(now - child->looked_at, 2 * LOOK);
    child->looked_at = now;
    child->time_left -= min_u64(passed, child->time_left);
    if (child->time_left) {
        child->timer.fire = look_at_time;
        timer_set(&child->agent->loop, &child->timer, now + min_u64(child->time_left, LOOK));
    } else {
        child->ending.ended |= ENDED_TIME;
        (void)kill_start(child);
    }
}

static void run(struct child *child, const struct exec_message *request, int pid)
{
    child->state = CHILD_RUNNING;
    child->pid = pid;
    child->number = ++child->agent->next_number;
    child->started_at = sys_now(CLOCK_REALTIME);
    child->time_left = request->timeout;
    if (request->timeout)
        look_at_time(&child->timer);
    pressure_watch(child->agent);
}

void command_reply(struct child *child)
{
    struct channel *owner = channel_owner(child);
    struct exec_reply_message reply = {(uint32_t)child->pid, 0};
    if (owner && !owner->replied)
        channel_reply(owner, &exec_reply_shape, &reply);
}

static void reply_late(struct timer *timer)
{
    struct child *child = CONTAINER_OF(timer, struct child, timer);
    command_reply(child);
    child_push(child);
}

static void abandon(struct child *child)
{
    child->flags = 0;
    child->state = CHILD_ENDED;
    watch_close(&child->agent->loop, &child->in.watch);
    child_release(child);
    child->state = CHILD_FREE;
}

void command_exec(struct channel *channel, const void *message, struct frame *frame)
{
    const struct exec_message *request = message;
    struct agent *agent = agent_of(channel);
    struct ends ends;
    const char *step = "pipe";
    if (request->flags & EXEC_CGROUP && !frame->descriptor_count)
        return request_refuse(channel);
    const char *wrong = complaint(request, frame);
    if (wrong || find(agent, request->id))
        return channel_error(channel, wrong ? -EINVAL : -EEXIST, wrong ? wrong : "id");
    struct child *child = child_new(agent, CHILD_COMMAND);
    if (!child)
        return channel_error(channel, -ENOSPC, "commands");
    child->flags = request->flags;
    child->tag = new_tag(agent);
    if (request->flags & EXEC_CGROUP)
        child->cgroup = fd_take(&frame->descriptors[frame->descriptor_count - 1]);
    remember(child, request);
    int result = open_ends(&ends, agent, request, frame);
    if (!result)
        result = start(child, request, &ends, &step);
    if (result > 0) {
        run(child, request, result);
        channel_follow(channel, child, ROLE_OWNER);
        result = adopt_ends(child, &ends);
    }
    ends_close(&ends, agent);
    if (result < 0 && child->state == CHILD_FREE) {
        abandon(child);
        return channel_error(channel, result, step);
    }
    if (result < 0) /* it runs, and its streams cannot be watched */
        (void)sys_kill(-child->pid, SIGKILL);
    /* Most commands end at once: then REPLY and EXIT come together, and wake the host once. */
    if (request->flags & (EXEC_BACKGROUND | EXEC_STDIN | EXEC_TERMINAL) || request->timeout) {
        command_reply(child);
    } else {
        child->timer.fire = reply_late;
        timer_set(&agent->loop, &child->timer, child->started + SOON);
    }
    if (request->flags & EXEC_BACKGROUND)
        return channel_close(channel);
    for (unsigned i = 0; i < 2; i++)
        channel->out[i].flowing = child->out[i].ring.size && !(i && child->terminal >= 0);
}

/* In place of the host before, who may not have hung up yet. What that has sent, and the command has not read, the new one
 * sends again; of what the command has printed it has all before `wanted`. */
static void own(struct child *child, const uint64_t wanted[2])
{
    struct channel *before = channel_owner(child);
    struct inlet *inlet = &child->in;
    if (before) {
        before->role = ROLE_FOLLOWER;
        before->out[0].flowing = before->out[1].flowing = false;
    }
    for (unsigned i = 0; i < 2; i++)
        child->out[i].taken = min_u64(wanted[i], child->out[i].ring.end);
    if (!inlet->over)
        inlet->ring.end = inlet->ring.first;
    inlet->written = 0;
}

void command_attach(struct channel *channel, const void *message, struct frame *frame)
{
    const struct attach_message *request = message;
    struct child *child = find(agent_of(channel), request->id);
    if (!child || !(child->kept || child->flags & EXEC_BACKGROUND))
        return channel_error(channel, -ENOENT, "id");
    uint64_t wanted[2] = {request->out, request->err};
    bool owns = child->kept && !(request->flags & ATTACH_NOW);
    if (owns)
        own(child, wanted);
    for (unsigned i = 0; i < 2; i++) {
        const struct ring *ring = &child->out[i].ring;
        struct flow *flow = &channel->out[i];
        flow->at = min_u64(wanted[i] > ring->first ? wanted[i] : ring->first, ring->end);
        flow->flowing = request->flags & (i ? ATTACH_ERR : ATTACH_OUT) && ring->size;
        if (request->flags & ATTACH_NOW)
            flow->until = ring->end;
    }
    struct attach_reply_message reply = {
        .pid = (uint32_t)child->pid,
        .flags = (child->flags & EXEC_TERMINAL ? ATTACHED_TERMINAL : 0u) |
                 (child->in.watch.fd >= 0 && !child->in.over ? ATTACHED_STDIN : 0u),
        .out = channel->out[0].at,
        .err = channel->out[1].at,
        .input = child->in.ring.first,
    };
    channel_follow(channel, child, owns ? ROLE_OWNER : ROLE_FOLLOWER);
    channel_reply(channel, &attach_reply_shape, &reply);
    child_push(child);
}

static int put_row(struct writer *body, const struct child *child)
{
    const struct exit_message *ending = &child->ending;
    bool ended = child->state == CHILD_ENDED && !child->killer;
    struct listed_message row = {
        .number = child->number,
        .started = child->started_at,
        .pid = (uint32_t)child->pid,
        .flags = (child->flags & EXEC_BACKGROUND ? LISTED_BACKGROUND : 0u) | (ended ? LISTED_ENDED : 0u),
        .code = ending->code,
        .signal = ending->signal,
        .ended = ending->ended,
        .duration = ending->duration,
        .id = reader_of(child->id, strlen(child->id)),
        .argv = reader_of(child->shown, child->shown_size),
    };
    return message_put_row(body, execs_reply_shape.field[0].tag, &listed_shape, &row);
}

/* The one with the highest number below `before`. */
static struct child *latest_before(struct agent *agent, uint64_t before)
{
    struct child *latest = NULL;
    for (size_t i = 0; i < LIMIT_COMMANDS; i++) {
        struct child *child = &agent->commands[i];
        bool shown = child->state == CHILD_RUNNING || (child->state == CHILD_ENDED && child->flags & EXEC_BACKGROUND);
        if (shown && child->number < before && (!latest || child->number > latest->number))
            latest = child;
    }
    return latest;
}

void command_list(struct channel *channel, const void *message, struct frame *frame)
{
    static unsigned char bytes[LIMIT_BODY];
    const struct execs_message *request = message;
    const struct execs_reply_message reply = {0};
    struct writer to = writer_of(bytes, sizeof bytes);
    uint64_t before = request->before ? request->before : UINT64_MAX;
    struct child *child;
    (void)message_put(&to, &execs_reply_shape, &reply);
    while ((child = latest_before(agent_of(channel), before)) && !put_row(&to, child))
        before = child->number;
    if (child)
        memcpy(bytes, &before, sizeof before);
    channel_reply_bytes(channel, to.base, to.used);
    channel_close(channel);
}

/* To its process group, which it leads unless it has moved; then to itself. Its number is its own: we have not reaped it. */
static int signal_to(struct child *child, uint32_t number)
{
    if (!child || child->state != CHILD_RUNNING)
        return child ? -ESRCH : -ENOENT;
    if (!number || number > LAST_SIGNAL)
        return -EINVAL;
    int result = sys_kill(-child->pid, (int)number);
    return result == -ESRCH ? sys_kill(child->pid, (int)number) : result;
}

static int resize_to(struct child *child, uint16_t rows, uint16_t columns)
{
    struct window_size size = {rows, columns, 0, 0};
    if (!child)
        return -ENOENT;
    if (!(child->flags & EXEC_TERMINAL))
        return -ENOTTY;
    return child->terminal < 0 ? 0 : sys_ioctl(child->terminal, TIOCSWINSZ, P(&size));
}

void command_signal(struct channel *channel, const void *message, struct frame *frame)
{
    const struct signal_message *request = message;
    request_answer(channel, signal_to(find(agent_of(channel), request->id), request->number), "signal");
}

void command_resize(struct channel *channel, const void *message, struct frame *frame)
{
    const struct resize_message *request = message;
    request_answer(channel, resize_to(find(agent_of(channel), request->id), request->rows, request->columns), "resize");
}

/* The host has another one go on with it when its connection ends. */
void command_keep(struct channel *channel, const void *message, struct frame *frame)
{
    const struct keep_message *request = message;
    struct child *child = find(agent_of(channel), request->id);
    if (child && child->state == CHILD_RUNNING) {
        command_reply(child); /* it may have waited for the timer */
        child->kept = true;
        child->time_left = request->timeout;
        child->looked_at = loop_now();
        if (request->timeout)
            look_at_time(&child->timer);
        else
            timer_clear(&child->agent->loop, &child->timer);
    }
    request_answer(channel, child ? 0 : -ENOENT, "keep");
}

void command_kill(struct channel *channel, const void *message, struct frame *frame)
{
    const struct kill_message *request = message;
    struct child *child = find(agent_of(channel), request->id);
    if (child)
        child->kept = false;
    int result = child ? kill_start(child) : -ENOENT;
    if (result < 0)
        return channel_error(channel, result, "kill");
    channel_follow(channel, child, ROLE_KILLER);
}
