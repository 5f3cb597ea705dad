/* The start. It does nothing unless the supervisor has started it: with no arguments, with descriptor 3. Or it is pid 1
 * of a container, which calls its host, or of a virtual machine or gVisor's sentry, whose host calls it; or the
 * supervisor's spawner, with descriptor 7.
 *
 * A user who gets hold of the file and executes it, by `#!/proc/self/exe` say, gets exit code 125 (CVE-2019-5736). */
#include "jail.h"
#include "machine.h"

enum { REFUSED = 125 };

static struct agent agent;

static bool secure(const unsigned long *auxiliary)
{
    for (; auxiliary[0] != AT_NULL; auxiliary += 2)
        if (auxiliary[0] == AT_SECURE)
            return auxiliary[1];
    return false;
}

static bool ends_with(const char *text, const char *end)
{
    size_t size = strlen(text), less = strlen(end);
    return size >= less && !strcmp(text + size - less, end);
}

static bool is_given(int fd)
{
    return sys_fcntl(fd, F_GETFD, 0) >= 0;
}

/* False: that one has died meanwhile. */
static bool lives_with_parent(void)
{
    int parent = sys_getppid();
    (void)sys_prctl(PR_SET_PDEATHSIG, SIGKILL);
    return sys_getppid() == parent;
}

static void close_others(bool has_parent, bool has_score)
{
    int report = REPORT;
    if (!has_parent)
        fd_close(&report);
    if (has_score)
        (void)sys_fcntl(SCORE, F_SETFD, 1);
    (void)sys_close_range(has_score ? SCORE + 1 : has_parent ? REPORT + 1 : LIFELINE + 1, INT32_MAX, 0);
}

/* `stack` as the kernel leaves it: argc, argv, NULL, environment, NULL, auxiliary vector. */
int guest_main(const unsigned long *stack);
int guest_main(const unsigned long *stack)
{
    const unsigned long *at = stack + 1 + stack[0] + 1;
    while (*at)
        at++;
    if (stack[0])
        fault_arm(text_of((const char *)stack[1]), NULL);
    if (stack[0] != 1 || secure(at + 1))
        return REFUSED;
    if (sys_getpid() == 1 && ends_with((const char *)stack[1], MACHINE_NAME))
        return machine_run(&agent) ? REFUSED : 0;
    if (ends_with((const char *)stack[1], SENTRY_NAME))
        return sentry_run(&agent) ? REFUSED : 0;
    if (sys_getpid() == 1 && !is_given(ENTRANCE))
        return init_run(&agent) ? REFUSED : 0;
    if (!is_given(ENTRANCE) && is_given(SUPERVISOR))
        return spawner_run(&agent) ? REFUSED : 0;
    if (!is_given(ENTRANCE))
        return REFUSED;
    /* All of this before anything is opened. */
    bool has_score = is_given(SCORE), has_lifeline = is_given(LIFELINE), has_parent = has_lifeline && is_given(REPORT);
    if (has_score)
        (void)sys_prctl(PR_SET_DUMPABLE, 0); /* an exec has undone it. Where no score is given, that is opened first */
    if (!has_lifeline && !lives_with_parent())
        return REFUSED;
    close_others(has_parent, has_score);
    if (has_parent && parent_make())
        return REFUSED;
    agent.lifeline.fd = has_lifeline ? LIFELINE : -1;
    agent.oom_score = has_score ? SCORE : -1;
    agent.null = open_null();
    if (agent.null < 0)
        return REFUSED;
    return agent_run(&agent) ? REFUSED : 0;
}

#ifdef GUEST_HOSTED

int main(int argc, char **argv);
int main(int argc, char **argv)
{
    return guest_main((const unsigned long *)(const void *)(argv - 1));
}

#elif defined __x86_64__

__asm__(".globl _start\n"
        "_start:\n\t"
        "xor %ebp, %ebp\n\t"
        "mov %rsp, %rdi\n\t"
        "and $-16, %rsp\n\t"
        "call guest_main\n\t"
        "mov %eax, %edi\n\t"
        "mov $231, %eax\n\t"
        "syscall\n");

#else

__asm__(".globl _start\n"
        "_start:\n\t"
        "mov x29, xzr\n\t"
        "mov x0, sp\n\t"
        "bl guest_main\n\t"
        "mov x8, #94\n\t"
        "svc 0\n");

#endif
