/* System calls. Each returns what the kernel returns: a value, or -errno. There is no `errno`.
 *
 * Calls repeat after EINTR: all signals are masked, but SIGSTOP and SIGCONT interrupt some calls. Exceptions are
 * close(2), which has closed, and epoll_pwait(2), whose caller computes its time-out anew. */
#pragma once

#include "kernel.h"

#if defined __x86_64__
#define NUMBER(x86_64, aarch64) (x86_64)
#elif defined __aarch64__
#define NUMBER(x86_64, aarch64) (aarch64)
#else
#error "paddock-guest is for Linux on x86_64 and aarch64"
#endif

/* Numbers of the system calls that have no function below, or one of another name. `tests/native` compares all numbers
 * with the kernel's own headers where there are any. */
enum system_call {
    SYS_accept4 = NUMBER(288, 242), SYS_bind = NUMBER(49, 200), SYS_capget = NUMBER(125, 90),
    SYS_capset = NUMBER(126, 91), SYS_chroot = NUMBER(161, 51), SYS_clock_gettime = NUMBER(228, 113),
    SYS_clock_settime = NUMBER(227, 112), SYS_clone = NUMBER(56, 220), SYS_clone3 = NUMBER(435, 435),
    SYS_close = NUMBER(3, 57), SYS_copy_file_range = NUMBER(326, 285), SYS_epoll_create1 = NUMBER(291, 20),
    SYS_epoll_pwait = NUMBER(281, 22), SYS_exit_group = NUMBER(231, 94), SYS_faccessat2 = NUMBER(439, 439),
    SYS_fchdir = NUMBER(81, 50), SYS_finit_module = NUMBER(313, 273), SYS_fsconfig = NUMBER(431, 431),
    SYS_fsmount = NUMBER(432, 432), SYS_fsopen = NUMBER(430, 430), SYS_getpgid = NUMBER(121, 155),
    SYS_getrandom = NUMBER(318, 278), SYS_getsockopt = NUMBER(55, 209), SYS_getuid = NUMBER(102, 174),
    SYS_landlock_add_rule = NUMBER(445, 445), SYS_landlock_create_ruleset = NUMBER(444, 444),
    SYS_landlock_restrict_self = NUMBER(446, 446), SYS_listen = NUMBER(50, 201), SYS_madvise = NUMBER(28, 233),
    SYS_mmap = NUMBER(9, 222), SYS_mount_setattr = NUMBER(442, 442), SYS_move_mount = NUMBER(429, 429),
    SYS_munmap = NUMBER(11, 215), SYS_nanosleep = NUMBER(35, 101), SYS_open_tree = NUMBER(428, 428),
    SYS_openat = NUMBER(257, 56), SYS_openat2 = NUMBER(437, 437), SYS_pidfd_open = NUMBER(434, 434),
    SYS_pidfd_send_signal = NUMBER(424, 424), SYS_pivot_root = NUMBER(155, 41), SYS_ppoll = NUMBER(271, 73), SYS_prctl = NUMBER(157, 167),
    SYS_recvfrom = NUMBER(45, 207), SYS_rt_sigaction = NUMBER(13, 134), SYS_rt_sigprocmask = NUMBER(14, 135),
    SYS_sendmsg = NUMBER(46, 211), SYS_sendto = NUMBER(44, 206), SYS_setfsuid = NUMBER(122, 151),
    SYS_setgroups = NUMBER(116, 159), SYS_sethostname = NUMBER(170, 161), SYS_setns = NUMBER(308, 268),
    SYS_setresgid = NUMBER(119, 149), SYS_setresuid = NUMBER(117, 147), SYS_setsid = NUMBER(112, 157),
    SYS_signalfd4 = NUMBER(289, 74), SYS_socket = NUMBER(41, 198), SYS_socketpair = NUMBER(53, 199),
    SYS_splice = NUMBER(275, 76), SYS_statfs = NUMBER(137, 43), SYS_umount2 = NUMBER(166, 39), SYS_unshare = NUMBER(272, 97),
    SYS_wait4 = NUMBER(61, 260),
};

#if defined __x86_64__
static inline long raw_call(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#else
static inline long raw_call(long number, long a, long b, long c, long d, long e, long f)
{
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = f;
    __asm__ volatile("svc 0"
                     : "+r"(x0)
                     : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5)
                     : "memory");
    return x0;
}
#endif

/* The test build counts calls and fails the n-th, or the n-th allocation (fault.c); in the product this is nothing. */
#ifdef GUEST_FAULTS
bool fault_strikes(long number, long *result);
bool fault_denies(void);
#else
static inline bool fault_strikes(long number, long *result)
{
    return false;
}
static inline bool fault_denies(void)
{
    return false;
}
#endif

static inline long call_once(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    return fault_strikes(number, &result) ? result : raw_call(number, a, b, c, d, e, f);
}

static inline long call(long number, long a, long b, long c, long d, long e, long f)
{
    long result;
    do
        result = call_once(number, a, b, c, d, e, f);
    while (result == -EINTR);
    return result;
}

#define P(pointer) ((long)(pointer))
#define CALL0(name) call(SYS_##name, 0, 0, 0, 0, 0, 0)
#define CALL1(name, a) call(SYS_##name, (a), 0, 0, 0, 0, 0)
#define CALL2(name, a, b) call(SYS_##name, (a), (b), 0, 0, 0, 0)
#define CALL3(name, a, b, c) call(SYS_##name, (a), (b), (c), 0, 0, 0)
#define CALL4(name, a, b, c, d) call(SYS_##name, (a), (b), (c), (d), 0, 0)
#define CALL5(name, a, b, c, d, e) call(SYS_##name, (a), (b), (c), (d), (e), 0)
#define CALL6(name, a, b, c, d, e, f) call(SYS_##name, (a), (b), (c), (d), (e), (f))

/* A call and its function sys_NAME, which takes the parameters as they are: what it returns, NAME (without the width
 * that the kernel's may carry), the numbers, the parameters. */
#define DEFINE0(result, name, x86_64, aarch64) \
    enum { SYS_##name = NUMBER(x86_64, aarch64) }; \
    static inline result sys_##name(void) { return (result)CALL0(name); }
#define DEFINE1(result, name, x86_64, aarch64, type_a, a) \
    enum { SYS_##name = NUMBER(x86_64, aarch64) }; \
    static inline result sys_##name(type_a a) { return (result)CALL1(name, P(a)); }
#define DEFINE2(result, name, x86_64, aarch64, type_a, a, type_b, b) \
    enum { SYS_##name = NUMBER(x86_64, aarch64) }; \
    static inline result sys_##name(type_a a, type_b b) { return (result)CALL2(name, P(a), P(b)); }
#define DEFINE3(result, name, x86_64, aarch64, type_a, a, type_b, b, type_c, c) \
    enum { SYS_##name = NUMBER(x86_64, aarch64) }; \
    static inline result sys_##name(type_a a, type_b b, type_c c) { return (result)CALL3(name, P(a), P(b), P(c)); }
#define DEFINE4(result, name, x86_64, aarch64, type_a, a, type_b, b, type_c, c, type_d, d) \
    enum { SYS_##name = NUMBER(x86_64, aarch64) }; \
    static inline result sys_##name(type_a a, type_b b, type_c c, type_d d) \
    { return (result)CALL4(name, P(a), P(b), P(c), P(d)); }
#define DEFINE5(result, name, x86_64, aarch64, type_a, a, type_b, b, type_c, c, type_d, d, type_e, e) \
    enum { SYS_##name = NUMBER(x86_64, aarch64) }; \
    static inline result sys_##name(type_a a, type_b b, type_c c, type_d d, type_e e) \
    { return (result)CALL5(name, P(a), P(b), P(c), P(d), P(e)); }

/* The same for one that takes others: PARAMETERS in parentheses, and the call. */
#define DEFINE(result, name, parameters, value) \
    static inline result sys_##name parameters { return (result)(value); }

/* -1 stands for no descriptor, and closing it does nothing. Sets -1: one owner, closed once. */
static inline void fd_close(int *fd)
{
    if (*fd >= 0)
        (void)raw_call(SYS_close, *fd, 0, 0, 0, 0, 0);
    *fd = -1;
}

/* A variable whose descriptor is closed when it goes out of scope, unless another owner has taken it. */
#define HELD __attribute__((cleanup(fd_close)))

/* The descriptor has a new owner. */
static inline int fd_take(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

_Noreturn static inline void sys_exit(int code)
{
    for (;;)
        (void)raw_call(SYS_exit_group, code, 0, 0, 0, 0, 0);
}

/* bytes */

DEFINE3(long, read, 0, 63, int, fd, void *, to, size_t, size)
DEFINE3(long, write, 1, 64, int, fd, const void *, from, size_t, size)
DEFINE4(long, pread, 17, 67, int, fd, void *, to, size_t, size, int64_t, offset)
DEFINE4(long, pwrite, 18, 68, int, fd, const void *, from, size_t, size, int64_t, offset)
DEFINE3(int64_t, lseek, 8, 62, int, fd, int64_t, offset, int, whence)

DEFINE(long, splice, (int from, int to, size_t size, unsigned flags), CALL6(splice, from, 0, to, 0, (long)size, flags))
DEFINE(long, copy_file_range, (int from, int64_t *from_offset, int to, int64_t *to_offset, size_t size),
       CALL6(copy_file_range, from, P(from_offset), to, P(to_offset), (long)size, 0))
/* descriptors */

DEFINE3(int, fcntl, 72, 25, int, fd, int, command, long, argument)
DEFINE3(int, dup3, 292, 24, int, from, int, to, int, flags)
DEFINE2(int, pipe2, 293, 59, int *, ends, int, flags)
/* gVisor refuses a `last` above INT32_MAX, which is as good as all. */
DEFINE3(int, close_range, 436, 436, unsigned, first, unsigned, last, unsigned, flags)
DEFINE3(int, ioctl, 16, 29, int, fd, unsigned long, request, long, argument)

/* files, relative to a directory's descriptor */

DEFINE(int, openat, (int directory, const char *path, int flags, unsigned mode),
       CALL4(openat, directory, P(path), flags | O_LARGEFILE, mode))
DEFINE5(int, statx, 332, 291, int, directory, const char *, path, int, flags, unsigned, mask, struct statx *, to)
DEFINE3(long, getdents, 217, 61, int, fd, void *, to, size_t, size)
DEFINE3(int, mkdirat, 258, 34, int, directory, const char *, path, unsigned, mode)
DEFINE3(int, unlinkat, 263, 35, int, directory, const char *, path, int, flags)
DEFINE5(int, renameat2, 316, 276, int, from_directory, const char *, from, int, to_directory, const char *, to, unsigned,
        flags)
DEFINE5(int, linkat, 265, 37, int, from_directory, const char *, from, int, to_directory, const char *, to, int, flags)
DEFINE3(int, symlinkat, 266, 36, const char *, target, int, directory, const char *, path)
DEFINE4(long, readlinkat, 267, 78, int, directory, const char *, path, char *, to, size_t, size)
DEFINE4(int, mknodat, 259, 33, int, directory, const char *, path, unsigned, mode, uint64_t, device)
DEFINE2(int, fchmod, 91, 52, int, fd, unsigned, mode)
DEFINE3(int, fchmodat, 268, 53, int, directory, const char *, path, unsigned, mode)
DEFINE5(int, fchownat, 260, 54, int, directory, const char *, path, uint32_t, uid, uint32_t, gid, int, flags)
DEFINE3(int, faccessat, 269, 48, int, directory, const char *, path, int, mode)
DEFINE4(int, utimensat, 280, 88, int, directory, const char *, path, const struct timespec *, times, int, flags)
DEFINE2(int, ftruncate, 77, 46, int, fd, int64_t, size)
DEFINE1(int, chdir, 80, 49, const char *, path)
DEFINE2(long, getcwd, 79, 17, char *, to, size_t, size)
DEFINE1(unsigned, umask, 95, 166, unsigned, mask)
DEFINE5(int, mount, 165, 40, const char *, source, const char *, target, const char *, kind, unsigned long, flags,
        const char *, options)

/* attributes */

DEFINE4(long, fgetxattr, 193, 10, int, fd, const char *, name, void *, to, size_t, size)
DEFINE3(long, flistxattr, 196, 13, int, fd, char *, to, size_t, size)
DEFINE5(int, fsetxattr, 190, 7, int, fd, const char *, name, const void *, from, size_t, size, int, flags)
DEFINE1(int, inotify_init1, 294, 26, int, flags)
DEFINE3(int, inotify_add_watch, 254, 27, int, fd, const char *, path, uint32_t, mask)
DEFINE2(int, inotify_rm_watch, 255, 28, int, fd, int, watch)

/* sockets */

DEFINE(int, socketpair, (int domain, int type, int ends[2]), CALL4(socketpair, domain, type, 0, P(ends)))
DEFINE(int, accept4, (int fd, int flags), CALL4(accept4, fd, 0, 0, flags))
DEFINE3(long, recvmsg, 47, 212, int, fd, struct message *, message, int, flags)

DEFINE(long, send, (int fd, const void *from, size_t size, int flags),
       CALL6(sendto, fd, P(from), (long)size, flags, 0, 0))
DEFINE(long, recv, (int fd, void *to, size_t size, int flags), CALL6(recvfrom, fd, P(to), (long)size, flags, 0, 0))
static inline int sys_getsockopt(int fd, int level, int option, int *value)
{
    uint32_t size = sizeof *value;
    return (int)CALL5(getsockopt, fd, level, option, P(value), P(&size));
}

DEFINE(int, socket, (int family, int type), CALL3(socket, family, type, 0))
DEFINE3(int, connect, 42, 203, int, fd, const void *, address, size_t, size)
DEFINE2(int, shutdown, 48, 210, int, fd, int, how)

/* memory */

static inline void *sys_map(size_t size)
{
    long at = CALL6(mmap, 0, (long)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return at < 0 && at > -4096 ? NULL : (void *)at;
}

DEFINE(void, unmap, (void *at, size_t size), CALL2(munmap, P(at), (long)size))
/* processes and signals */

DEFINE0(int, getpid, 39, 172)
DEFINE0(int, getppid, 110, 173)
DEFINE2(int, kill, 62, 129, int, pid, int, number)

DEFINE(int, prctl, (int option, long argument), CALL5(prctl, option, argument, 0, 0, 0))
DEFINE4(int, prlimit, 302, 261, int, pid, int, resource, const struct rlimit *, new_limit, struct rlimit *, old_limit)

DEFINE(int, sigprocmask, (int how, const uint64_t *mask), CALL4(rt_sigprocmask, how, P(mask), 0, sizeof *mask))
DEFINE(int, sigaction, (int number, const struct signal_action *action),
       CALL4(rt_sigaction, number, P(action), 0, sizeof action->mask))
DEFINE(int, signalfd, (const uint64_t *mask, int flags), CALL4(signalfd4, -1, P(mask), sizeof *mask, flags))
/* A copy of this process; 0 in the child. */
DEFINE(int, fork, (void), CALL5(clone, SIGCHLD, 0, 0, 0, 0))
DEFINE3(int, execve, 59, 221, const char *, path, char *const *, argv, char *const *, env)

/* events and time */

DEFINE4(int, epoll_ctl, 233, 21, int, epoll, int, command, int, fd, struct epoll_event *, event)

static inline int sys_epoll_wait(int epoll, struct epoll_event *event, int count, int milliseconds)
{
    return (int)call_once(SYS_epoll_pwait, epoll, P(event), count, milliseconds, 0, 8);
}

/* `time` NULL: for ever. */
DEFINE(int, poll, (struct poll *polls, size_t count, struct timespec *time),
       CALL5(ppoll, P(polls), (long)count, P(time), 0, 8))
static inline uint64_t sys_now(int clock)
{
    struct timespec now = {0, 0};
    (void)raw_call(SYS_clock_gettime, clock, P(&now), 0, 0, 0, 0);
    return (uint64_t)now.seconds * 1000000000u + (uint64_t)now.nanoseconds;
}

static inline void sys_sleep(uint64_t nanoseconds)
{
    struct timespec time = {(int64_t)(nanoseconds / 1000000000u), (int64_t)(nanoseconds % 1000000000u)};
    (void)raw_call(SYS_nanosleep, P(&time), 0, 0, 0, 0, 0);
}

DEFINE(long, getrandom, (void *to, size_t size), CALL3(getrandom, P(to), (long)size, 0))
