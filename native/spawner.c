/* The spawner of a supervisor: it clones jails. The child makes the setup (`become_jail`): it gives up the machine's
 * descriptors, namespaces and ids, and mounts what is independent of a plan.
 *
 * It has the supervisor's namespaces and powers, and no other task. It ends with the supervisor's stream. */
#include "io.h"
#include "jail.h"
#include "machine.h"

enum { ORDERS_BYTES = 5 * LIMIT_FILTER, MOST_DESCRIPTORS = 24, ABOVE = 64 };

/* The initial state of a child. */
struct birth {
    const struct setup_message *setup;
    struct steps steps;
    int fds[MOST_DESCRIPTORS];
    size_t count, listeners;
};

static unsigned char orders[ORDERS_BYTES];

/* The child */

/* Moves the descriptors of a jail to their numbers. The rest of `fds` is for `join`. A directory that stays open would
 * break the isolation. The jail's own stream comes first: until then a report would go to the spawner's supervisor as
 * an answer to the next order. */
static int shed(struct birth *birth)
{
    if (sys_dup3(birth->fds[0], SUPERVISOR, O_CLOEXEC) < 0)
        sys_exit(1);
    for (size_t i = 1; i < birth->count; i++)
        birth->fds[i] = TRY(sys_fcntl(birth->fds[i], F_DUPFD_CLOEXEC, ABOVE));
    TRY(sys_close_range(3, SUPERVISOR - 1, 0));
    TRY(sys_close_range(SUPERVISOR + 1, ABOVE - 1, 0));
    for (size_t i = 1; i <= birth->listeners; i++) {
        TRY(sys_dup3(birth->fds[i], FIRST_LISTENER + (int)i - 1, O_CLOEXEC));
        fd_close(&birth->fds[i]);
    }
    return sys_dup3(SUPERVISOR, WRITABLE_PROC, O_CLOEXEC); /* so that no other gets this number */
}

static int unshare_more(void)
{
    TRY((int)CALL1(unshare, CLONE_NEWNET | CLONE_NEWIPC));
    return network_up("lo", true);
}

/* By a task that moves itself: by its pid, it would wait for a grace period of RCU. */
static int join(struct birth *birth)
{
    for (size_t i = 1 + birth->listeners; i < birth->count; i++) {
        TRY(sys_write(birth->fds[i], "0", 1));
        fd_close(&birth->fds[i]);
    }
    return (int)CALL1(unshare, CLONE_NEWCGROUP);
}

static int take_ids(void)
{
    TRY(CALL3(setresgid, 0, 0, 0));
    TRY(CALL3(setresuid, 0, 0, 0));
    long result = CALL2(setgroups, 0, 0);
    if (result != -EPERM) /* an ordinary user's namespace may not: the kernel requires setgroups to be denied there */
        TRY(result);
    return sys_prctl(PR_SET_PDEATHSIG, SIGKILL); /* a change of credentials clears it */
}

_Noreturn static void become_jail(struct agent *agent, struct birth *birth)
{
    struct steps *steps = &birth->steps;
    struct stage stage;
    char mapped;
    fault_arm(steps->fault, "call");
    (void)sys_prctl(PR_SET_PDEATHSIG, SIGKILL);
    steps_restart(steps);
    step(steps, "shed", shed(birth));
    step(steps, "unshare", unshare_more());
    step(steps, "join", join(birth));
    int result = stage_open(birth->setup, &stage); /* the uids of sandboxes can't enter the state directory */
    if (sys_recv(SUPERVISOR, &mapped, 1, 0) <= 0) /* the supervisor writes the id maps meanwhile */
        sys_exit(1);
    step(steps, "identity", result ? result : take_ids());
    step(steps, "stage", stage_mount(birth->setup, &stage));
    jail_run(agent, birth->setup, &stage, steps);
}

/* The spawner */

/* net, ipc and cgroup follow in the child, beside what the supervisor does. Its parent is the supervisor, which buries it. */
static int clone_child(int cgroup)
{
    const uint64_t flags = CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNS | CLONE_NEWUTS | CLONE_PARENT;
    struct clone_arguments arguments = {.flags = flags | CLONE_INTO_CGROUP, .cgroup = (uint64_t)cgroup};
    return cgroup < 0 ? (int)CALL5(clone, (long)flags, 0, 0, 0, 0) : (int)CALL2(clone3, P(&arguments), sizeof arguments);
}

/* The kernel counts a user namespace for its owner: without this for root, of the whole machine. Access to files
 * doesn't change. */
static int clone_owned(const struct spawn_message *spawn, int cgroup)
{
    static const long same = -1;
    if (!(spawn->flags & SPAWN_OWNED))
        return clone_child(cgroup);
    TRY(CALL3(setresuid, same, spawn->owner, same));
    (void)CALL1(setfsuid, 0);
    int result = clone_child(cgroup);
    if (result)
        must(!CALL3(setresuid, same, 0, same));
    return result;
}

static long receive(void *to, size_t size, int fds[MOST_DESCRIPTORS], size_t *count)
{
    *count = MOST_DESCRIPTORS;
    return receive_fds(SUPERVISOR, to, size, 0, fds, count);
}

static int spawn_one(struct agent *agent, const struct setup_message *setup, struct reader order, struct birth *birth)
{
    struct spawn_message spawn;
    if (message_read(order, &spawn_shape, &spawn))
        return -EBADMSG;
    fault_arm(spawn.fault, "spawner");
    birth->setup = setup;
    birth->steps = (struct steps){.fault = spawn.fault};
    birth->listeners = setup->flags & SETUP_WHOLE ? 3 : 2;
    int cgroup = spawn.flags & SPAWN_CGROUP && birth->count ? birth->fds[--birth->count] : -1;
    if (birth->count < 1 + birth->listeners)
        return -EBADF;
    /* Its supervisor opens its namespaces and writes its id maps: an ordinary user may do so only then. */
    (void)sys_prctl(PR_SET_DUMPABLE, 1);
    int pid = clone_owned(&spawn, cgroup);
    if (!pid)
        become_jail(agent, birth);
    return pid;
}

/* An ordinary user's supervisor has entered its namespaces, the user namespace first, since it executed this program.
 * Root of the old namespace owns the files of a process that others may not inspect. */
static int enter(int *namespaces, size_t count)
{
    int result = 0;
    for (size_t i = 0; i < count; i++) {
        if (!result)
            result = (int)CALL2(setns, namespaces[i], 0);
        fd_close(&namespaces[i]);
    }
    return result;
}

int spawner_run(struct agent *agent)
{
    struct setup_message setup;
    unsigned char bytes[256];
    int namespaces[MOST_DESCRIPTORS];
    size_t count;
    (void)sys_fcntl(SUPERVISOR, F_SETFD, 1);
    (void)sys_prctl(PR_SET_NAME, P("paddock"));
    long got = receive(orders, sizeof orders, namespaces, &count);
    if (got <= 0 || message_read(reader_of(orders, (size_t)got), &setup_shape, &setup))
        return -EBADMSG;
    TRY(enter(namespaces, count));
    for (;;) {
        struct birth birth = {.setup = &setup};
        unsigned char reply[32];
        struct writer body = writer_of(reply, sizeof reply);
        got = receive(bytes, sizeof bytes, birth.fds, &birth.count);
        if (got <= 0)
            return 0; /* the supervisor is gone */
        int pid = spawn_one(agent, &setup, reader_of(bytes, (size_t)got), &birth);
        struct spawned_message spawned = {pid > 0 ? (uint32_t)pid : 0, pid > 0 ? 0 : (uint32_t)-pid};
        /* All that was received, before the answer: else the child's end would not be seen at once. Its supervisor ends
         * with this process, and a child that it has not heard of ends with the supervisor. */
        TRY(sys_close_range(3, SUPERVISOR - 1, 0));
        TRY(sys_close_range(SUPERVISOR + 1, INT32_MAX, 0));
        must(!message_put(&body, &spawned_shape, &spawned));
        TRY(sys_send(SUPERVISOR, body.base, body.used, MSG_NOSIGNAL));
    }
}
