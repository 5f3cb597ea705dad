/* Starting a program: a child that shares our memory until it executes, and tells by a pipe why it could not. */
#include "agent.h"

static const char DEFAULT_PATH[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

enum step { STEP_PREPARE, STEP_LIMITS, STEP_IDENTITY, STEP_CWD, STEP_EXEC, STEP_INTERPRETER };
static const char *const STEPS[] = {"prepare", "rlimits", "identity", "cwd", "exec", "interpreter"};

struct failure {
    uint32_t step;
    int32_t error;
};

struct start {
    const struct program *program;
    int report;
};

/* Runs `run(argument)` in a child on a separate stack: on ours it would return into frames that both use. */
static long clone_on(void *stack_top, long flags, void (*run)(void *), void *argument)
{
#ifdef GUEST_HOSTED /* the sanitizers keep books on stacks: there a plain copy of this process */
    long pid = sys_fork();
    if (!pid)
        run(argument);
    return pid;
#elif defined __x86_64__
    long result;
    register long ctid __asm__("r10") = 0;
    register long tls __asm__("r8") = 0;
    register void (*function)(void *) __asm__("r12") = run;
    register void *parameter __asm__("r13") = argument;
    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "xor %%ebp, %%ebp\n\t"
                     "mov %%r13, %%rdi\n\t"
                     "call *%%r12\n\t"
                     "hlt\n"
                     "1:"
                     : "=a"(result)
                     : "a"((long)SYS_clone), "D"(flags), "S"(stack_top), "d"(0L), "r"(ctid), "r"(tls), "r"(function), "r"(parameter)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long number __asm__("x8") = SYS_clone;
    register long x0 __asm__("x0") = flags;
    register void *x1 __asm__("x1") = stack_top;
    register long x2 __asm__("x2") = 0;
    register long x3 __asm__("x3") = 0;
    register long x4 __asm__("x4") = 0;
    register void (*function)(void *) __asm__("x19") = run;
    register void *parameter __asm__("x20") = argument;
    __asm__ volatile("svc 0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x29, xzr\n\t"
                     "mov x0, x20\n\t"
                     "blr x19\n\t"
                     "brk 0\n"
                     "1:"
                     : "+r"(x0)
                     : "r"(number), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(function), "r"(parameter)
                     : "memory");
    return x0;
#endif
}

_Noreturn static void fail(const struct start *start, enum step step, long error)
{
    struct failure failure = {step, (int32_t)error};
    (void)sys_write(start->report, &failure, sizeof failure);
    sys_exit(127);
}

static void check(const struct start *start, enum step step, long result)
{
    if (result < 0)
        fail(start, step, result);
}

static void set_limits(const struct start *start)
{
    const struct program *program = start->program;
    struct reader limits = program->rlimits;
    struct rlimit limit;
    uint64_t resource;
    while (!get_number(&limits, &resource) && !get_number(&limits, &limit.soft) && !get_number(&limits, &limit.hard))
        check(start, STEP_LIMITS, resource < RLIMITS ? sys_prlimit(0, (int)resource, &limit, NULL) : -EINVAL);
    limit = (struct rlimit){program->tag, program->tag};
    if (program->tag)
        (void)sys_prlimit(0, RLIMIT_RSS, &limit, NULL);
}

/* Groups before the gid, the gid before the uid: each needs what the next gives up. */
static void set_identity(const struct start *start)
{
    const struct program *program = start->program;
    if (!program->identity)
        return;
    check(start, STEP_IDENTITY, CALL2(setgroups, (long)program->group_count, P(program->groups)));
    check(start, STEP_IDENTITY, CALL3(setresgid, program->gid, program->gid, program->gid));
    check(start, STEP_IDENTITY, CALL3(setresuid, program->uid, program->uid, program->uid));
}

/* As the new user. A directory outside of our root has no path: that is how CVE-2024-21626 got out. */
static void enter_directory(const struct start *start)
{
    char at[PATH_MAX];
    check(start, STEP_CWD, sys_chdir(start->program->cwd));
    long result = sys_getcwd(at, sizeof at);
    if (result != -ERANGE)
        check(start, STEP_CWD, result >= 0 && at[0] != '/' ? -ENOENT : result);
}

static const char *search_path(char *const *env)
{
    for (; *env; env++)
        if (!memcmp(*env, "PATH=", min_size(strlen(*env) + 1, 5)))
            return *env + 5;
    return DEFAULT_PATH;
}

/* The next directory of `path` and `name`; false: too long. */
static bool join(char to[PATH_MAX], const char *directory, size_t size, const char *name)
{
    size_t length = strlen(name);
    if (size + 1 + length >= PATH_MAX)
        return false;
    memcpy(to, directory, size);
    if (size)
        to[size++] = '/';
    memcpy(to + size, name, length + 1);
    return true;
}

static bool goes_on(long error)
{
    return error == -ENOENT || error == -ENOTDIR || error == -EACCES || error == -ENAMETOOLONG;
}

/* Of an argument, which is too long for gVisor, that says what others say of a path. */
static long execute_file(const struct program *program, const char *path)
{
    long error = sys_execve(path, program->argv, program->env);
    return error == -ENAMETOOLONG && !sys_faccessat(AT_FDCWD, path, F_OK) ? -E2BIG : error;
}

/* As execvpe(3): EACCES is remembered, what is not there is passed over. */
_Noreturn static void execute(const struct start *start)
{
    const struct program *program = start->program;
    const char *name = program->argv[0];
    const char *path = search_path(program->env);
    char candidate[PATH_MAX];
    long worst = -ENOENT;
    if (memchr(name, '/', strlen(name))) {
        long error = execute_file(program, name);
        bool there = error == -ENOENT && !sys_faccessat(AT_FDCWD, name, F_OK);
        fail(start, there ? STEP_INTERPRETER : STEP_EXEC, error);
    }
    for (;;) {
        const char *end = memchr(path, ':', strlen(path));
        size_t size = end ? (size_t)(end - path) : strlen(path);
        long error = join(candidate, path, size, name) ? execute_file(program, candidate) : -ENAMETOOLONG;
        if (error == -ENOENT && !sys_faccessat(AT_FDCWD, candidate, F_OK))
            fail(start, STEP_INTERPRETER, error);
        if (!goes_on(error))
            fail(start, STEP_EXEC, error);
        if (error == -EACCES)
            worst = error;
        if (!end)
            fail(start, STEP_EXEC, worst);
        path = end + 1;
    }
}

static void run_child(void *argument)
{
    const struct start *start = argument;
    const struct program *program = start->program;
    static const uint64_t no_signals = 0;
    (void)CALL0(setsid);
    for (int i = 0; i < 3; i++)
        check(start, STEP_PREPARE, sys_dup3(program->fds[i], i, 0)); /* ours are above 2: 0, 1 and 2 are never closed */
    if (program->terminal)
        check(start, STEP_PREPARE, sys_ioctl(0, TIOCSCTTY, 0));
    (void)sys_close_range(3, INT32_MAX, CLOSE_RANGE_CLOEXEC); /* all are, unless a supervisor erred */
    set_limits(start);
    set_identity(start);
    enter_directory(start);
    (void)sys_umask(program->umask);
    (void)sys_sigprocmask(SIG_SETMASK, &no_signals);
    execute(start);
}

int spawn(const struct program *program, void *stack, size_t stack_size, const char **step)
{
    int report[2];
    struct failure failure;
    *step = "pipe";
    TRY(sys_pipe2(report, O_CLOEXEC));
    struct start start = {program, report[1]};
    *step = "clone";
    int result = (int)clone_on((unsigned char *)stack + stack_size, CLONE_VM | CLONE_VFORK | SIGCHLD, run_child, &start);
    fd_close(&report[1]);
    if (result > 0 && sys_read(report[0], &failure, sizeof failure) == sizeof failure) {
        *step = STEPS[failure.step];
        result = failure.error; /* the agent reaps the child as an unknown one */
    }
    fd_close(&report[0]);
    return result;
}
