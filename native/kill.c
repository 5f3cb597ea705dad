/* Kills a command with its descendants: it stops them until it finds no new one, then kills and waits.
 *
 * It reads all of /proc, so it runs in a helper. Members are in the command's control group, or carry its tag: a
 * random number as hard RLIMIT_RSS. No kernel enforces that, and no descendant can raise it. Other agents' commands
 * have other numbers. Without a tag, they are the descendants of its main process, until that is gone. */
#include "agent.h"
#include "io.h"
#include "process.h"

enum {
    ROUNDS = 64,
    MOST_SURVIVORS = 100,
    NOBODY = -1, /* in place of a helper's pid */
    MEMBERS_BYTES = MOST_PROCESSES * sizeof(struct process),
};
static const uint64_t PATIENCE = 5000000000u, PAUSE = 1000000u;

struct kin {
    uint64_t tag;
    int root;   /* a pid, or 0 */
    int holder; /* pidfd of `root`; it counts while it is not reaped */
    struct process *members; /* room for MOST_PROCESSES */
    size_t count;
    const int *spared; /* pids: who is below one of them is none of it */
    size_t spared_count;
};

/* Of another user's process prlimit(2) says nothing; this file does. */
static uint64_t tag_in_file(int pid)
{
    static const char title[] = "Max resident set";
    char path[PROCESS_PATH], text[4096];
    uint64_t hard;
    process_path(path, pid, "/limits");
    long got = read_file(AT_FDCWD, path, text, sizeof text);
    const char *line = got > 0 ? find_bytes(text, (size_t)got, title, sizeof title - 1) : NULL;
    if (!line)
        return 0;
    size_t left = (size_t)(text + got - line), at = sizeof title - 1;
    at += process_word(line, left, &at);
    size_t size = process_word(line, left, &at);
    return parse_decimal(line + at, size, &hard) ? 0 : hard;
}

static bool tagged(int pid, uint64_t tag)
{
    struct rlimit limit = {0, 0};
    int result = sys_prlimit(pid, RLIMIT_RSS, NULL, &limit);
    if (result == -EPERM)
        limit.hard = tag_in_file(pid);
    return tag && (!result || result == -EPERM) && limit.hard == tag;
}

/* Signals its group at one instant. A member that forks has either forked before, and its child gets the signal too,
 * or it won't fork. A group belongs to one session, and so to one command. */
static void signal_group(int pid, int number)
{
    int group = (int)CALL1(getpgid, pid);
    if (group > 0 && group != (int)CALL1(getpgid, 0))
        (void)sys_kill(-group, number);
    else
        (void)sys_kill(pid, number);
}

static bool is_spared(const struct kin *kin, int pid)
{
    for (size_t i = 0; i < kin->spared_count; i++)
        if (kin->spared[i] == pid)
            return true;
    return false;
}

/* Adds the children of members, until it finds no new one. */
static void add_descendants(struct kin *kin)
{
    bool more = true;
    while (more) {
        more = false;
        for (size_t i = 0; i < kin->count; i++) {
            struct process *child = &kin->members[i];
            if (child->ours || is_spared(kin, child->pid))
                continue;
            if (child->parent == kin->root)
                more = child->ours = true;
            for (size_t k = 0; !child->ours && k < kin->count; k++) {
                const struct process *parent = &kin->members[k];
                if (parent->pid == child->parent && parent->ours && !parent->dead)
                    more = child->ours = true;
            }
        }
    }
}

/* Signals every member: the newest first, and at once, because some fork and exit all the time. Returns how many are
 * alive, and MOST_SURVIVORS if /proc doesn't tell; `running`: some of them may have forked since. */
static size_t signal_all(struct kin *kin, int number, bool *running)
{
    size_t alive = 0;
    if (kin->holder >= 0 && CALL4(pidfd_send_signal, kin->holder, 0, 0, 0))
        kin->root = 0; /* it is reaped */
    int count = process_list(kin->members);
    *running = count < 0;
    if (count < 0)
        return MOST_SURVIVORS;
    kin->count = (size_t)count;
    for (size_t i = kin->count; i--;) {
        struct process *member = &kin->members[i];
        member->ours = (kin->root && member->pid == kin->root) || tagged(member->pid, kin->tag);
        if (member->ours)
            signal_group(member->pid, number);
        if ((member->ours || kin->root) && process_stat(member, 0)) {
            *running |= member->ours || kin->spared; /* it vanished: perhaps it left a child */
            *member = (struct process){.dead = true};
        }
    }
    if (kin->root)
        add_descendants(kin);
    for (size_t i = 0; i < kin->count; i++) {
        const struct process *member = &kin->members[i];
        if (!member->ours)
            continue;
        signal_group(member->pid, number);
        alive += !member->dead;
        *running |= !member->dead && !member->stopped;
    }
    return alive;
}

static void stop_kin(struct kin *kin)
{
    bool running = true;
    for (int round = 0; round < ROUNDS && running; round++)
        (void)signal_all(kin, SIGSTOP, &running);
}

static size_t kill_kin(struct kin *kin)
{
    size_t alive = 0;
    bool running;
    stop_kin(kin); /* a busy machine takes its time for that */
    uint64_t end = loop_now() + PATIENCE;
    do {
        alive = signal_all(kin, SIGKILL, &running);
        if (alive)
            sys_sleep(PAUSE);
    } while ((alive || running) && loop_now() < end);
    return alive;
}

/* Uses cgroup.kill of version 2, since Linux 5.14, and elsewhere kills one by one. Returns how many remain. */
static size_t kill_group(int cgroup)
{
    uint64_t end = loop_now() + PATIENCE, pid;
    char text[4096];
    size_t alive;
    (void)write_file(cgroup, "cgroup.kill", "1");
    do {
        long got = read_file(cgroup, "cgroup.procs", text, sizeof text);
        const char *at = text, *last = text + (got > 0 ? got : 0), *line;
        alive = 0;
        for (; (line = memchr(at, '\n', (size_t)(last - at))); at = line + 1)
            if (!parse_decimal(at, (size_t)(line - at), &pid) && pid) {
                (void)sys_kill((int)pid, SIGKILL);
                alive++;
            }
        if (alive)
            sys_sleep(PAUSE);
    } while (alive && loop_now() < end);
    return alive;
}

/* How many are left, counted to a hundred: an exit code holds no more. */
static uint32_t kill_all(struct kin *kin, int cgroup)
{
    size_t left = cgroup >= 0 ? kill_group(cgroup) : 0;
    kin->members = sys_map(MEMBERS_BYTES);
    left += kin->members ? kill_kin(kin) : MOST_SURVIVORS;
    if (kin->members)
        sys_unmap(kin->members, MEMBERS_BYTES);
    return (uint32_t)min_size(left, MOST_SURVIVORS);
}

int kill_start(struct child *child)
{
    struct kin kin = {.tag = child->tag, .root = child->tag ? 0 : child->pid, .holder = -1};
    int holder = kin.root ? (int)CALL2(pidfd_open, child->pid, 0) : -1;
    int fds[2] = {holder >= 0 ? holder : child->agent->null, child->cgroup};
    if (child->killer)
        return fd_close(&holder), 0;
    int pid = fork_helper(fds, child->cgroup >= 0 ? 2 : 1);
    if (!pid) {
        kin.holder = holder >= 0 ? OP_CONTROL : -1;
        sys_exit((int)kill_all(&kin, child->cgroup >= 0 ? OP_INPUT : -1));
    }
    child->killer = pid > 0 ? pid : 0;
    if (pid == -EAGAIN || pid == -ENOMEM) { /* a fork bomb may leave no process for a helper: the loop itself waits */
        kin.holder = holder;
        child->survivors = kill_all(&kin, child->cgroup);
        child->killer = NOBODY;
        child->killed = true;
        (void)sys_kill(sys_getpid(), SIGCHLD); /* the kill ends when all are reaped, even if it found none */
        pid = 0;
    }
    fd_close(&holder);
    return pid < 0 ? pid : 0;
}

void kill_conclude(struct child *child)
{
    struct kill_reply_message reply = {child->survivors, 0};
    struct channel *next;
    child->killer = 0;
    child->killed = false;
    for (struct channel *channel = child->channels; channel; channel = next) {
        next = channel->next;
        if (channel->role == ROLE_KILLER) {
            channel_reply(channel, &kill_reply_shape, &reply);
            channel_close(channel);
        } else if (channel->leaving && child->state == CHILD_RUNNING) {
            channel_error(channel, -EBUSY, "kill"); /* another user's, or stuck in the kernel: say so and let go */
        }
    }
    child_push(child);
}

/* The root is this process, which is not listed: who has it for a parent is the first of the kin. */
void kill_below(void)
{
    struct kin kin = {.root = sys_getpid(), .holder = -1, .members = sys_map(MEMBERS_BYTES)};
    uint64_t end = loop_now() + PATIENCE;
    bool running;
    if (!kin.members)
        return;
    while ((signal_all(&kin, SIGKILL, &running) || running) && loop_now() < end)
        while (CALL4(wait4, -1, 0, WNOHANG, 0) > 0)
            ;
}

bool kill_orphans(const int *spared, size_t count)
{
    struct kin kin = {.root = sys_getpid(), .holder = -1, .spared = spared, .spared_count = count};
    bool running = true;
    if (!(kin.members = sys_map(MEMBERS_BYTES)))
        return false;
    stop_kin(&kin);
    size_t alive = signal_all(&kin, SIGKILL, &running);
    sys_unmap(kin.members, MEMBERS_BYTES);
    return !alive && !running;
}
