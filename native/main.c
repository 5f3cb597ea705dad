/* The start. It does nothing unless the supervisor has started it: with no arguments, with descriptor 3. Or it is pid 1
 * of a container, which calls its host.
 *
 * A user who gets hold of the file and executes it, by `#!/proc/self/exe` say, gets exit code 125 (CVE-2019-5736). */
#include "init.h"

enum { REFUSED = 125 };

static struct agent agent;

/* 0, 1 and 2 are always open, so no other descriptor ever has their numbers. */
int open_null(void)
{
    int fd;
    do
        fd = sys_openat(AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0);
    while (fd >= 0 && fd < 3);
    return fd;
}

static bool secure(const unsigned long *auxiliary)
{
    for (; auxiliary[0] != AT_NULL; auxiliary += 2)
        if (auxiliary[0] == AT_SECURE)
            return auxiliary[1];
    return false;
}

/* `stack` as the kernel leaves it: argc, argv, NULL, environment, NULL, auxiliary vector. */
int guest_main(const unsigned long *stack);
int guest_main(const unsigned long *stack)
{
    const unsigned long *at = stack + 1 + stack[0] + 1;
    while (*at)
        at++;
#ifdef GUEST_FAULTS
    fault_arm((const char *)stack[1]);
#endif
    agent.oom_score = -1;
    if (stack[0] != 1 || secure(at + 1))
        return REFUSED;
    if (sys_getpid() == 1 && sys_fcntl(ENTRANCE, F_GETFD, 0) < 0)
        return init_run(&agent) ? REFUSED : 0;
    if (sys_fcntl(ENTRANCE, F_GETFD, 0) < 0)
        return REFUSED;
    bool has_parent = sys_fcntl(LIFELINE, F_GETFD, 0) >= 0 && sys_fcntl(REPORT, F_GETFD, 0) >= 0;
    (void)sys_close_range(has_parent ? REPORT + 1 : LIFELINE + 1, ~0u, 0);
    if (has_parent && parent_make())
        return REFUSED;
    agent.lifeline.fd = sys_fcntl(LIFELINE, F_GETFD, 0) < 0 ? -1 : LIFELINE; /* before anything is opened */
    agent.null = open_null();
    if (agent.null < 0)
        return REFUSED;
    return agent_run(&agent) ? REFUSED : 0;
}

#ifdef GUEST_HOSTED

int main(int argc, char **argv);
int main(int argc, char **argv)
{
    (void)argc;
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
