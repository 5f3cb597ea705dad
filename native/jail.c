/* Pid 1 of a jail. It starts in the prepared setup (spawner.c), with all capabilities of the sandbox's outer user
 * namespace. It makes the inner one, with the first agent, and is a spare until the plan of a sandbox comes. Then it
 * makes the sandbox's file system and gives its capabilities up. It executes no program.
 *
 *   the supervisor ends before it confirms the sandbox's record    pid 1 ends, and so does all
 *   afterwards                                                     nothing
 *
 * Root among the commands has no power over pid 1, the mounts or the network. An agent lives in the inner namespace,
 * and installs the filters before it reads a byte. */
#include "jail.h"
#include "io.h"

enum { PARTS = 4, PLAN_BYTES = 2048, MOST_GIVEN = 32 };

struct jail {
    struct init init;
    struct setup_message setup;
    struct stage stage;
    bool ipc_is_bounded;
    int inner; /* the user namespace of the agents */
    int tell;  /* there the first agent, which waits for its plan, hears of it */
    struct plan_message plan; /* its fields are in these bytes */
    unsigned char plan_bytes[PLAN_BYTES];
    struct watch supervisor;
    struct steps steps;
};

static struct jail the_jail;

/* What an agent becomes */

static int drop_capabilities(uint64_t kept)
{
    struct capability_header header = {CAPABILITY_VERSION, 0};
    uint32_t low = (uint32_t)kept, high = (uint32_t)(kept >> 32);
    struct capability_words words[2] = {{low, low, 0}, {high, high, 0}};
    return (int)CALL2(capset, P(&header), P(words));
}

/* The part of root's powers that concerns files and processes of the sandbox's own ids. */
static int keep_roots_part(void)
{
    static const uint64_t kept = 1ull << CAP_CHOWN | 1ull << CAP_DAC_OVERRIDE | 1ull << CAP_FOWNER | 1ull << CAP_FSETID |
                                 1ull << CAP_KILL | 1ull << CAP_SETGID | 1ull << CAP_SETUID | 1ull << CAP_SETFCAP;
    for (int i = 0; i < CAPABILITIES; i++) {
        int result = kept >> i & 1 ? 0 : sys_prctl(PR_CAPBSET_DROP, i);
        if (result == -EINVAL) /* the kernel knows none of this number and above */
            break;
        TRY(result);
    }
    return drop_capabilities(kept);
}

static int take_identity(const struct jail *jail, int who)
{
    long uid = who == ROOT ? jail->plan.root_uid : jail->plan.uid, gid = who == ROOT ? jail->plan.root_gid : jail->plan.gid;
    if (jail->setup.flags & SETUP_WHOLE)
        TRY(CALL2(setgroups, 0, 0));
    TRY(CALL3(setresgid, gid, gid, gid));
    if (who == ROOT)
        TRY(keep_roots_part());
    TRY(CALL3(setresuid, uid, uid, uid));
    if (who != ROOT)
        TRY(drop_capabilities(0)); /* where the one uid was its own all along, no change of it has done that */
    return sys_prctl(PR_SET_DUMPABLE, 0);
}

static int put_filter(struct reader instructions)
{
    struct filter_program filter = {(uint16_t)(instructions.left / 8), instructions.at};
    return (int)CALL5(prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, P(&filter), 0, 0);
}

/* No kernel objects of the machine's, no signals to the outside. Its one rule is about the final root directory.
 * Without it, the kernel would refuse every rename into another directory. */
static int put_landlock(const struct setup_message *setup)
{
    if (!setup->landlock.left)
        return 0;
    HELD int rules = TRY((int)CALL3(landlock_create_ruleset, P(setup->landlock.at), (long)setup->landlock.left, 0));
    HELD int root = TRY(sys_openat(AT_FDCWD, "/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0));
    struct path_beneath beneath = {setup->below_root, root};
    TRY(CALL4(landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, P(&beneath), 0));
    return (int)CALL2(landlock_restrict_self, rules, 0);
}

/* Of each process, for the caller and all that it starts. Control groups hold the rest, where there are any. */
static int put_limits(const struct jail *jail)
{
    TRY(init_limit(jail->plan.rlimits));
    if (jail->plan.flags & PLAN_UNCOUNTED)
        TRY(put_filter(jail->ipc_is_bounded ? jail->setup.uncounted : jail->setup.uncounted_ipc));
    return 0;
}

/* /proc is read-only inside, except here. The machine's root owns the files of a process that others may not inspect.
 * So this opens the file earlier: before it enters the commands' namespace, or while there are none. */
static int open_score(void)
{
    (void)sys_prctl(PR_SET_DUMPABLE, 1);
    int score = sys_openat(WRITABLE_PROC, "self/oom_score_adj", O_RDWR | O_CLOEXEC, 0);
    (void)sys_prctl(PR_SET_DUMPABLE, 0);
    return score;
}

static int read_plan(struct jail *jail, long size)
{
    return size > 0 ? message_read(reader_of(jail->plan_bytes, (size_t)size), &plan_shape, &jail->plan) : -EBADMSG;
}

/* The first agent: it brings the inner namespace into being, and waits in it. */
_Noreturn static void be_first_agent(struct jail *jail, int told)
{
    char mapped;
    if (sys_read(told, &mapped, 1) != 1)
        sys_exit(1);
    int score = open_score();
    step(&jail->steps, "filter", put_filter(jail->setup.filter)); /* no plan has a say in it */
    if (read_plan(jail, sys_read(told, jail->plan_bytes, PLAN_BYTES)))
        sys_exit(1);
    steps_restart(&jail->steps);
    int result = sys_chdir("/");
    step(&jail->steps, "limits", result ? result : put_limits(jail));
    step(&jail->steps, "user", score < 0 ? score : take_identity(jail, USER));
    step(&jail->steps, "confine", put_landlock(&jail->setup));
    steps_report(&jail->steps, NULL, 0, NULL, 0);
    init_serve(jail->init.child, FIRST_LISTENER + 1, score);
}

void jail_become_agent(const struct identity *identity)
{
    const struct jail *jail = CONTAINER_OF(identity->init, struct jail, init);
    int who = identity == &jail->init.identities[ROOT] ? ROOT : USER;
    int score = open_score();
    if (score < 0 || CALL2(setns, jail->inner, CLONE_NEWUSER) || take_identity(jail, who) ||
        put_landlock(&jail->setup) || put_filter(jail->setup.filter))
        sys_exit(1);
    init_serve(identity->init->child, identity->listener.fd, score);
}

/* The setup */

/* Sets files below /proc, and skips ones that this kernel lacks. */
static int set_values(struct reader values)
{
    while (values.left) {
        const char *path = next_string(&values);
        int result = write_file(WRITABLE_PROC, path, values.left ? next_string(&values) : "");
        if (result && result != -ENOENT)
            return result;
    }
    return 0;
}

/* Of what the kernel counts by user or by namespace. */
static int bound(struct jail *jail)
{
    TRY(set_values(jail->setup.counts));
    int result = set_values(jail->setup.ipc);
    jail->ipc_is_bounded = !result; /* before Linux 6.0 these are the machine's root's */
    return result == -EPERM || result == -EACCES ? 0 : result;
}

static int write_maps(const struct jail *jail, int pid)
{
    static const char *const names[] = {"/setgroups", "/uid_map", "/gid_map"};
    char path[64], number[DECIMAL_SIZE], ids[256 + 1];
    (void)text_in(ids, sizeof ids, jail->setup.ids);
    for (size_t i = jail->setup.flags & SETUP_WHOLE ? 1 : 0; i < ARRAY_SIZE(names); i++)
        TRY(write_file(WRITABLE_PROC, JOIN(path, sizeof path, decimal(number, (uint64_t)pid), names[i]), i ? ids : "deny"));
    return 0;
}

/* A user namespace limits its processes to a share of queued signals and messages. The limit above it is its maker's
 * soft limit at that moment (create_user_ns). */
static int make_inner(bool with_share)
{
    static const int resources[] = {RLIMIT_SIGPENDING, RLIMIT_MSGQUEUE};
    struct rlimit before[ARRAY_SIZE(resources)];
    for (size_t i = 0; i < ARRAY_SIZE(resources) && with_share; i++) {
        TRY(sys_prlimit(0, resources[i], NULL, &before[i]));
        struct rlimit share = {before[i].soft / PARTS, before[i].hard};
        if (before[i].soft != UINT64_MAX)
            TRY(sys_prlimit(0, resources[i], &share, NULL));
    }
    int pid = TRY((int)CALL5(clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    for (size_t i = 0; i < ARRAY_SIZE(resources) && with_share; i++)
        TRY(sys_prlimit(0, resources[i], &before[i], NULL));
    return pid;
}

static void add_identity(struct jail *jail, int who, const char *name)
{
    struct identity *identity = &jail->init.identities[who];
    memcpy(identity->name, name, strlen(name) + 1);
    identity->name_size = strlen(name);
    identity->listener.fd = FIRST_LISTENER + 1 + who;
    init_add(&jail->init, identity);
}

static int conceive(struct jail *jail)
{
    char path[64], number[DECIMAL_SIZE];
    int pipe[2];
    TRY(sys_pipe2(pipe, O_CLOEXEC));
    (void)sys_prctl(PR_SET_DUMPABLE, 1); /* the kernel lets us write its id maps only so; nothing foreign runs yet */
    int pid = TRY(make_inner(jail->setup.flags & SETUP_SHARED));
    if (!pid) {
        fd_close(&pipe[1]);
        be_first_agent(jail, pipe[0]);
    }
    fd_close(&pipe[0]);
    add_identity(jail, USER, "user");
    jail->init.identities[USER].pid = pid;
    jail->init.identities[USER].started = loop_now();
    jail->tell = pipe[1];
    TRY(write_maps(jail, pid));
    (void)JOIN(path, sizeof path, decimal(number, (uint64_t)pid), "/ns/user");
    jail->inner = TRY(sys_openat(WRITABLE_PROC, path, O_RDONLY | O_CLOEXEC, 0));
    TRY(sys_write(jail->tell, "m", 1));
    return sys_prctl(PR_SET_DUMPABLE, 0);
}

/* Before the first agent starts: it needs its limits, and we need its signals. */
static int prepare(struct jail *jail)
{
    TRY(bound(jail));
    TRY(sys_prctl(PR_SET_NO_NEW_PRIVS, 1));
    TRY(init_limit(jail->setup.rlimits));
    TRY(agent_open(&jail->init.agent));
    return conceive(jail);
}

/* The sandbox */

/* With the plan's mounts. The first agent hears of it last of all: its report says that this is done. */
static int become(struct jail *jail, const unsigned char *plan, long size, const int *fds, size_t count)
{
    struct init *init = &jail->init;
    memcpy(jail->plan_bytes, plan, (size_t)size);
    TRY(read_plan(jail, size));
    steps_restart(&jail->steps);
    stage_attach(&jail->stage, &jail->plan, fds, count, &jail->steps);
    step(&jail->steps, "drop", drop_capabilities(0));
    long told = sys_write(jail->tell, jail->plan_bytes, (size_t)size); /* at once: less than a pipe holds */
    fd_close(&jail->tell);
    if (told != size)
        return told < 0 ? (int)told : -EIO;
    TRY(put_limits(jail));
    TRY(agent_listen(&init->agent, FIRST_LISTENER));
    init->grace = jail->plan.grace;
    init->begun = true;
    if (jail->setup.flags & SETUP_WHOLE) {
        add_identity(jail, ROOT, "root");
        init_listen(&init->identities[ROOT]);
    }
    return 0;
}

static void supervisor_ready(struct watch *watch, uint32_t events)
{
    struct jail *jail = CONTAINER_OF(watch, struct jail, supervisor);
    unsigned char bytes[PLAN_BYTES];
    int fds[MOST_GIVEN];
    size_t count = MOST_GIVEN;
    long got = receive_fds(watch->fd, bytes, sizeof bytes, MSG_DONTWAIT, fds, &count);
    if (got == -ECONNRESET) { /* it has ended without reading all of ours; what it had sent comes after that news */
        count = MOST_GIVEN;
        got = receive_fds(watch->fd, bytes, sizeof bytes, MSG_DONTWAIT, fds, &count);
    }
    if (got == -EAGAIN)
        return;
    if (got > 0 && !jail->init.begun) {
        int result = become(jail, bytes, got, fds, count);
        for (size_t i = 0; i < count; i++)
            fd_close(&fds[i]);
        if (result) {
            steps_report(&jail->steps, "plan", result, NULL, 0);
            sys_exit(1);
        }
        return;
    }
    /* It is written down, with its deadline; or the supervisor has gone before. */
    uint64_t deadline;
    if (got == sizeof deadline) {
        memcpy(&deadline, bytes, sizeof deadline);
        init_set_deadline(&jail->init, deadline);
    } else {
        jail->init.agent.loop.stopped = true;
    }
    jail->init.frail = jail->plan.flags & PLAN_FRAIL;
    watch_close(&jail->init.agent.loop, watch);
}

/* The confirmation may have come earlier. */
void jail_look(struct init *init)
{
    struct jail *jail = CONTAINER_OF(init, struct jail, init);
    if (init->begun && jail->supervisor.fd >= 0)
        supervisor_ready(&jail->supervisor, 0);
}

static void move_in(struct jail *jail)
{
    (void)sys_umask(022);
    (void)sys_prctl(PR_SET_NAME, P("paddock"));
    int result = prepare(jail);
    jail->supervisor = (struct watch){SUPERVISOR, 0, supervisor_ready};
    step(&jail->steps, "agent", result ? result : watch_for(&jail->init.agent.loop, &jail->supervisor, EPOLLIN));
    (void)sys_prctl(PR_SET_PDEATHSIG, 0); /* from here on the stream says when the supervisor ends */
}

/* Passes descriptors of its namespace: without the dumpable flag, only the machine's root could open it from outside. */
static void report_ready(const struct jail *jail)
{
    const struct setup_message *setup = &jail->setup;
    int fds[2] = {-1, -1};
    size_t count = 0;
    if (setup->flags & SETUP_SHARED)
        fds[count++] = sys_openat(AT_FDCWD, "/proc/self/ns/net", O_RDONLY | O_CLOEXEC, 0);
    if (count && setup->uncounted.left)
        fds[count++] = (int)CALL3(socket, AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
    for (size_t i = 0; i < count; i++)
        if (fds[i] < 0)
            return steps_report(&jail->steps, "agent", fds[i], NULL, 0);
    steps_report(&jail->steps, NULL, 0, fds, count);
    for (size_t i = 0; i < count; i++)
        fd_close(&fds[i]);
}

void jail_run(struct agent *child, const struct setup_message *setup, const struct stage *stage, const struct steps *steps)
{
    struct jail *jail = &the_jail;
    jail->setup = *setup;
    jail->stage = *stage;
    jail->steps = *steps;
    jail->init.child = child;
    jail->init.agent.init = &jail->init;
    jail->init.in_jail = true;
    jail->init.frail = true; /* a spare, and what is not written down */
    move_in(jail);
    report_ready(jail);
    loop_run(&jail->init.agent.loop);
    sys_exit(0);
}
