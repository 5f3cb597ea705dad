/* A build for tests: the n-th system call that may fail fails, with the error that was asked for. With error 0 it is the
 * n-th allocation. */
#ifdef GUEST_FAULTS

#include "agent.h"

static uint64_t left, error;

/* `name` is "guest N ERRNO": the program has no other way to be told anything. */
void fault_arm(const char *name)
{
    uint64_t numbers[2] = {0, 0};
    for (size_t i = 0; i < 2; i++) {
        while (*name && *name != ' ')
            name++;
        const char *start = *name ? ++name : name;
        while (*name && *name != ' ')
            name++;
        (void)parse_decimal(start, (size_t)(name - start), &numbers[i]);
    }
    left = numbers[0];
    error = numbers[1];
}

/* These do not fail with our arguments, and after a wait4 that did a child would be lost. */
static bool cannot_fail(long number)
{
    return number == SYS_wait4 || number == SYS_epoll_pwait || number == SYS_getpid || number == SYS_getppid ||
           number == SYS_munmap || number == SYS_kill || number == SYS_rt_sigprocmask || number == SYS_rt_sigaction ||
           number == SYS_setsid || number == SYS_umask || number == SYS_getpgid;
}

bool fault_strikes(long number, long *result)
{
    if (!error || !left || cannot_fail(number) || --left)
        return false;
    *result = -(long)error;
    return true;
}

bool fault_denies(void)
{
    return !error && left && !--left;
}

#else

typedef int nothing; /* a file of C must hold something */

#endif
