#include "machine.h"

static const uint64_t SECOND = 1000000000u, LOOK = 60 * 1000000000ull; /* the loop's clock stands still in suspend */
static const uint64_t STANDS = 1000000000u, QUICK = 1000000000u, FIRST_PAUSE = 50000000u, LONGEST_PAUSE = 5000000000u;
static const uint64_t CLEAR_PAUSE = 5000000u, CLEAR_PATIENCE = 5000000000u;

static struct init the_init;

static void start_agent(struct identity *);

/* Waiting channels */

struct wait *init_wait(struct channel *channel, enum wait_kind kind)
{
    struct init *init = agent_of(channel)->init;
    for (size_t i = 0; i < WAITS; i++)
        if (!init->waits[i].channel) {
            init->waits[i] = (struct wait){.init = init, .channel = channel, .kind = kind};
            channel->wait = &init->waits[i];
            return channel->wait;
        }
    channel_error(channel, -ENOSPC, "waits");
    return NULL;
}

bool init_waits(const struct init *init, enum wait_kind kind)
{
    for (size_t i = 0; i < WAITS; i++)
        if (init->waits[i].channel && init->waits[i].kind == kind)
            return true;
    return false;
}

void init_let_go(struct wait *wait)
{
    timer_clear(&wait->init->agent.loop, &wait->timer);
    wait->channel = NULL;
    pause_let_go(wait);
}

/* Deadline */

static void look_at_deadline(struct timer *timer)
{
    struct init *init = CONTAINER_OF(timer, struct init, deadline_timer);
    uint64_t now = sys_now(CLOCK_BOOTTIME);
    if (now < init->deadline) {
        timer_set(&init->agent.loop, timer, loop_now() + min_u64(init->deadline - now, LOOK));
    } else if (init->grace && !init->overdue) { /* who lets it go on has sent the new one before it runs */
        init->overdue = true;
        timer_set(&init->agent.loop, timer, loop_now() + init->grace);
    } else {
        init->agent.loop.stopped = true;
    }
}

void init_set_deadline(struct init *init, uint64_t deadline)
{
    init->deadline = deadline;
    init->overdue = false;
    init->deadline_timer.fire = look_at_deadline;
    look_at_deadline(&init->deadline_timer);
}

/* Becoming an agent */

static int take_identity(const struct identity *identity)
{
    struct filter_program filter = {(uint16_t)(identity->filter_size / 8), identity->filter};
    if (!CALL0(getuid)) { /* without uid 0 no capability is left */
        TRY(CALL2(setgroups, (long)identity->group_count, P(identity->groups)));
        TRY(CALL3(setresgid, identity->gid, identity->gid, identity->gid));
        TRY(CALL3(setresuid, identity->uid, identity->uid, identity->uid));
    }
    TRY(sys_prctl(PR_SET_DUMPABLE, 0));
    if (identity->filter || !identity->init->machine) /* nothing in a machine has power over what holds it */
        TRY(sys_prctl(PR_SET_NO_NEW_PRIVS, 1));
    if (identity->init->trunk && !identity->init->machine)
        TRY(sentry_shed());
    if (identity->filter)
        TRY(CALL5(prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, P(&filter), 0, 0));
    return 0;
}

void init_serve(struct agent *agent, int listener, int score)
{
    enum { ABOVE = ENTRANCE + 2 }; /* a sandbox may have few descriptors */
    listener = sys_fcntl(listener, F_DUPFD_CLOEXEC, ABOVE);
    score = score < 0 ? -1 : sys_fcntl(score, F_DUPFD_CLOEXEC, ABOVE);
    if (listener < 0 || sys_dup3(listener, ENTRANCE, O_CLOEXEC) < 0)
        sys_exit(1);
    agent->oom_score = score < 0 ? -1 : sys_dup3(score, ENTRANCE + 1, O_CLOEXEC);
    if (agent->oom_score < 0) {
        int other = ENTRANCE + 1;
        fd_close(&other);
    }
    agent->lifeline.fd = -1;
    if (sys_close_range(ENTRANCE + 2, INT32_MAX, 0) || (agent->null = open_null()) < 0)
        sys_exit(1);
    sys_exit(agent_run(agent) ? 1 : 0);
}

/* In a child of pid 1, with all that pid 1 has open. */
_Noreturn static void become_agent(const struct identity *identity)
{
    /* The files of a process that may not be looked into are root's: this one is opened while it may. */
    (void)sys_prctl(PR_SET_DUMPABLE, 1);
    int score = sys_openat(AT_FDCWD, "/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC, 0);
    if (take_identity(identity))
        sys_exit(1);
    identity->init->child->tells = identity->flags & IDENTITY_TELLS;
    identity->init->child->thrifty = identity->init->trunk && !identity->init->machine;
    init_serve(identity->init->child, identity->listener.fd, score);
}

/* The life of an identity: listened for, an agent, what that leaves behind, listened for */

enum { MOST_SPARED = LIMIT_IDENTITIES + 1 };

static size_t spared_of(const struct init *init, int pids[MOST_SPARED])
{
    size_t count = 0;
    if (init->relay)
        pids[count++] = init->relay;
    for (size_t i = 0; i < LIMIT_IDENTITIES; i++)
        if (init->identities[i].pid)
            pids[count++] = init->identities[i].pid;
    return count;
}

static void answer_lost(struct wait *wait)
{
    const struct identity *identity = wait->identity;
    struct channel *channel = wait->channel;
    struct lost_reply_message reply = {.alive = identity->pid == wait->pid};
    if (identity->last_pid == wait->pid)
        reply.signal = (uint32_t)identity->last_status & 0x7f;
    request_reply(channel, &lost_reply_shape, &reply);
}

static void start_later(struct identity *identity)
{
    identity->pause = min_u64(identity->pause ? 2 * identity->pause : FIRST_PAUSE, LONGEST_PAUSE);
    timer_set(&identity->init->agent.loop, &identity->timer, loop_now() + identity->pause);
}

static void be_cleared(struct identity *identity)
{
    struct init *init = identity->init;
    identity->clearing = false;
    for (size_t i = 0; i < WAITS; i++)
        if (init->waits[i].channel && init->waits[i].kind == WAIT_LOST && init->waits[i].identity == identity)
            answer_lost(&init->waits[i]);
    if (loop_now() - identity->started < QUICK && !identity->dismissed) {
        start_later(identity); /* it died as soon as it was there: not again at once, lest we do nothing else */
    } else {
        identity->pause = 0;
        init_listen(identity);
    }
}

/* No host could list it, attach to it, or end it on time. */
static void clear(struct identity *identity)
{
    int spared[MOST_SPARED];
    size_t count = spared_of(identity->init, spared);
    if (kill_orphans(spared, count) || loop_now() > identity->patience)
        be_cleared(identity);
    else
        timer_set(&identity->init->agent.loop, &identity->timer, loop_now() + CLEAR_PAUSE);
}

static void what_comes_next(struct timer *timer)
{
    struct identity *identity = CONTAINER_OF(timer, struct identity, timer);
    if (identity->clearing)
        clear(identity);
    else if (!identity->pid)
        init_listen(identity);
    else if (!pause_stands(identity->init)) /* else it goes on with the others */
        (void)sys_kill(identity->pid, SIGCONT);
}

static void start_agent(struct identity *identity)
{
    struct init *init = identity->init;
    int pid = sys_fork();
    if (!pid && init->in_jail)
        jail_become_agent(identity);
    if (!pid)
        become_agent(identity);
    if (pid < 0)
        return start_later(identity); /* no room for a process: that may pass */
    identity->pid = pid;
    identity->started = loop_now();
    identity->dismissed = false;
}

static void called(struct watch *watch, uint32_t events)
{
    struct identity *identity = CONTAINER_OF(watch, struct identity, listener);
    struct init *init = identity->init;
    bool attends = identity->flags & IDENTITY_ATTENDING && init_waits(init, WAIT_HOLD);
    (void)watch_for(&init->agent.loop, watch, 0);
    if (pause_stands(init) && !attends)
        identity->later = true;
    else
        start_agent(identity);
}

/* The agent accepts. */
void init_listen(struct identity *identity)
{
    identity->listener.ready = called;
    if (watch_for(&identity->init->agent.loop, &identity->listener, EPOLLIN))
        start_later(identity); /* lest a caller wait for ever */
}

bool init_dismiss(struct init *init)
{
    bool any = false;
    for (size_t i = 0; i < LIMIT_IDENTITIES; i++) {
        struct identity *identity = &init->identities[i];
        if (identity->pid && identity->flags & IDENTITY_ATTENDING) {
            any = identity->dismissed = true;
            (void)sys_kill(identity->pid, SIGKILL);
        }
    }
    return any;
}

void init_go_on(struct init *init)
{
    (void)sys_kill(-1, SIGCONT);
    for (size_t i = 0; i < LIMIT_IDENTITIES; i++)
        if (init->identities[i].later) {
            init->identities[i].later = false;
            start_agent(&init->identities[i]);
        }
}

void init_died(struct init *init, int pid, int status)
{
    if (init->in_jail)
        jail_look(init);
    for (size_t i = 0; i < LIMIT_IDENTITIES; i++) {
        struct identity *identity = &init->identities[i];
        if (identity->pid != pid)
            continue;
        init->agent.loop.stopped |= init->frail;
        identity->pid = 0;
        identity->last_pid = pid;
        identity->last_status = status;
        identity->clearing = true;
        identity->patience = loop_now() + CLEAR_PATIENCE;
        timer_set(&init->agent.loop, &identity->timer, loop_now());
    }
}

/* Commands have the user of their agent and may stop it: `kill -STOP -1` does. So do we. */
void init_stopped(struct init *init, int pid)
{
    for (size_t i = 0; i < LIMIT_IDENTITIES; i++)
        if (init->identities[i].pid == pid)
            timer_set(&init->agent.loop, &init->identities[i].timer, loop_now() + STANDS);
}

void init_add(struct init *init, struct identity *identity)
{
    identity->init = init;
    identity->timer.fire = what_comes_next;
}

struct identity *init_find(struct init *init, struct reader name)
{
    if (!name.left)
        return NULL;
    for (size_t i = 0; i < LIMIT_IDENTITIES; i++) {
        struct identity *identity = &init->identities[i];
        if (identity->name_size == name.left && !memcmp(identity->name, name.at, name.left))
            return identity;
    }
    return NULL;
}

/* Orders */

static void add_identity(struct channel *channel, const void *message, struct frame *frame)
{
    const struct identity_message *request = message;
    struct init *init = agent_of(channel)->init;
    struct identity *identity = init->identities;
    if (frame->descriptor_count != !init->trunk || !request->name.left || request->filter.left % 8)
        return request_refuse(channel);
    while (identity < init->identities + LIMIT_IDENTITIES && identity->name_size)
        identity++;
    if (identity == init->identities + LIMIT_IDENTITIES || init_find(init, request->name))
        return channel_error(channel, -ENOSPC, "identities");
    int own = init->trunk ? init_trunk_listener(&identity->to_agent) : -1;
    if (init->trunk && own < 0)
        return channel_error(channel, own, "listen");
    if (request->filter.left && !(identity->filter = sys_map(request->filter.left)))
        return channel_error(channel, -ENOMEM, "filter");
    if (request->filter.left)
        memcpy(identity->filter, request->filter.at, request->filter.left);
    identity->filter_size = request->filter.left;
    if (request->groups.left)
        memcpy(identity->groups, request->groups.at, request->groups.left);
    identity->group_count = request->groups.left / sizeof *identity->groups;
    memcpy(identity->name, request->name.at, request->name.left);
    identity->name_size = request->name.left;
    identity->flags = request->flags;
    identity->uid = request->uid;
    identity->gid = request->gid;
    identity->listener.fd = own >= 0 ? own : fd_take(&frame->descriptors[0]);
    init_add(init, identity);
    request_answer(channel, 0, NULL);
}

/* An engine without root may pass over limits that it was asked for. None is above what there is. */
int init_limit(struct reader limits)
{
    uint64_t resource, value;
    while (!get_number(&limits, &resource) && !get_number(&limits, &value)) {
        struct rlimit limit = {0, 0};
        TRY(resource < RLIMITS ? sys_prlimit(0, (int)resource, NULL, &limit) : -EINVAL);
        limit.soft = limit.hard = min_u64(value, limit.hard);
        TRY(sys_prlimit(0, (int)resource, &limit, NULL));
    }
    return 0;
}

static void begin(struct channel *channel, const void *message, struct frame *frame)
{
    const struct begin_message *request = message;
    struct init *init = agent_of(channel)->init;
    if (frame->descriptor_count != !init->trunk)
        return request_refuse(channel);
    int result = init_limit(request->rlimits);
    if (result)
        return channel_error(channel, result, "rlimits");
    result = init->trunk ? 0 : agent_listen(&init->agent, fd_take(&frame->descriptors[0]));
    if (result)
        return channel_error(channel, result, "listen");
    init->begun = true;
    init->agent.alone = false;
    init->idle = request->idle;
    init->retention = request->retention;
    init_set_deadline(init, request->deadline);
    pause_settle(init);
    for (size_t i = 0; i < LIMIT_IDENTITIES; i++)
        if (init->identities[i].name_size && init->identities[i].flags & IDENTITY_EAGER)
            start_agent(&init->identities[i]);
        else if (init->identities[i].name_size)
            init_listen(&init->identities[i]);
    request_answer(channel, 0, NULL);
}

static void set_deadline(struct channel *channel, const void *message, struct frame *frame)
{
    const struct deadline_message *request = message;
    init_set_deadline(agent_of(channel)->init, request->deadline);
    request_answer(channel, 0, NULL);
}

static void tell_agent(struct channel *channel, const void *message, struct frame *frame)
{
    const struct agent_message *request = message;
    const struct identity *identity = init_find(agent_of(channel)->init, request->name);
    struct agent_reply_message reply = {identity ? (uint32_t)identity->pid : 0, 0};
    if (!identity)
        return channel_error(channel, -ENOENT, "identity");
    request_reply(channel, &agent_reply_shape, &reply);
}

/* A connection ends before the process is reaped to which it belonged; or it was only the connection. */
static void it_lives(struct timer *timer)
{
    struct wait *wait = CONTAINER_OF(timer, struct wait, timer);
    if (wait->identity->pid == wait->pid)
        answer_lost(wait);
}

static void tell_lost(struct channel *channel, const void *message, struct frame *frame)
{
    const struct lost_message *request = message;
    struct init *init = agent_of(channel)->init;
    struct identity *identity = init_find(init, request->name);
    if (!identity)
        return channel_error(channel, -ENOENT, "identity");
    struct wait *wait = init_wait(channel, WAIT_LOST);
    if (!wait)
        return;
    wait->identity = identity;
    wait->pid = (int)request->pid;
    wait->timer.fire = it_lives;
    if (!identity->clearing && (!wait->pid || identity->pid != wait->pid))
        answer_lost(wait);
    else
        timer_set(&init->agent.loop, &wait->timer, loop_now() + SECOND);
}

enum { FIRST = 1, JAIL = 2, SENTRY = 4, MACHINE = 8, CONTAINER = 16, BEGUN = JAIL | SENTRY | MACHINE | CONTAINER };

/* These do without STILL: the supervisor freezes a whole jail. The sentry and a machine's VMM stop all of theirs. */
static const struct request ORDERS[] = {
    {OP_IDENTITY, &identity_shape, add_identity, FIRST},
    {OP_BEGIN, &begin_shape, begin, FIRST},
    {OP_DEADLINE, &deadline_shape, set_deadline, BEGUN},
    {OP_AGENT, &agent_shape, tell_agent, BEGUN},
    {OP_LOST, &lost_shape, tell_lost, BEGUN},
    {OP_RENEW, &renew_shape, renew_perform, SENTRY | MACHINE | CONTAINER},
    {OP_TRUST, &trust_shape, machine_trust, SENTRY | MACHINE},
    {OP_SHARE, &share_shape, machine_share, MACHINE},
    {OP_HOLD, &hold_shape, pause_hold, CONTAINER},
    {OP_AWAKE, NULL, pause_keep_awake, CONTAINER},
    {OP_PAUSE_CLOCK, &pause_clock_shape, pause_tell_clock, CONTAINER},
    {OP_PAUSE, NULL, pause_turn, CONTAINER},
    {OP_RESUME, NULL, pause_turn, CONTAINER},
    {OP_TIMES, NULL, pause_turn, CONTAINER},
};

bool init_perform(struct channel *channel, struct frame *frame)
{
    const struct init *init = agent_of(channel)->init;
    unsigned level = init->in_jail ? JAIL : init->machine ? MACHINE : init->trunk ? SENTRY : CONTAINER;
    return request_perform(ORDERS, ARRAY_SIZE(ORDERS), init->begun ? level : FIRST, channel, frame);
}

/* The start */

/* 0, 1 and 2 are always open, so no other descriptor ever has their numbers. */
int open_null(void)
{
    int fd;
    do
        fd = sys_openat(AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0);
    while (fd >= 0 && fd < 3);
    return fd;
}

static int call_host(void)
{
    struct unix_address address = {AF_UNIX, BIRTH_SOCKET};
    HELD int fd = TRY(sys_socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC));
    TRY(sys_connect(fd, &address, sizeof address));
    TRY(sys_fcntl(fd, F_SETFL, O_NONBLOCK));
    return fd_take(&fd);
}

int init_prepare(struct agent *child, struct init **to)
{
    struct init *init = *to = &the_init;
    TRY(sys_prctl(PR_SET_DUMPABLE, 0)); /* no command of any user gets its memory or descriptors */
    init->child = child;
    init->agent.init = init;
    init->agent.null = TRY(open_null());
    return agent_open(&init->agent);
}

int init_run(struct agent *child)
{
    struct init *init;
    (void)sys_close_range(3, INT32_MAX, 0);
    TRY(init_prepare(child, &init));
    int host = TRY(call_host());
    init->agent.alone = true; /* until it has begun */
    agent_connect(&init->agent, host);
    if (!init->agent.connections[0])
        return -ENOMEM;
    loop_run(&init->agent.loop);
    return init->begun ? 0 : -ECANCELED;
}
