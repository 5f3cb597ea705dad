/* A build for tests: the n-th system call that may fail fails, with the error that was asked for. With error 0 it is the
 * n-th allocation. */
#ifdef GUEST_FAULTS

#include "agent.h"
#include "process.h"

static uint64_t left, error;

/* `words` are "NAME N ERRNO": of an agent the only argument, of a jail what its supervisor is to say of faults. Of another
 * name than `name`, or without the numbers, nothing fails. NULL: of any name. */
void fault_arm(struct reader words, const char *name)
{
    uint64_t numbers[2] = {0, 0};
    size_t at = 0, size = process_word((const char *)words.at, words.left, &at);
    bool concerned = !name || reader_is(reader_of(words.at, size), name);
    for (size_t i = 0; i < 2; i++) {
        at += size;
        size = process_word((const char *)words.at, words.left, &at);
        (void)parse_decimal((const char *)words.at + at, size, &numbers[i]);
    }
    left = concerned ? numbers[0] : 0;
    error = numbers[1];
}

/* These do not fail with our arguments, and after a wait4 that did a child would be lost. */
static bool cannot_fail(long number)
{
    return number == SYS_wait4 || number == SYS_epoll_pwait || number == SYS_getpid || number == SYS_getppid ||
           number == SYS_munmap || number == SYS_kill || number == SYS_rt_sigprocmask || number == SYS_rt_sigaction ||
           number == SYS_setsid || number == SYS_umask || number == SYS_getpgid || number == SYS_getuid;
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
