/* Constants and structures of the kernel. The guest includes no header but the compiler's own, so that every gcc and
 * clang sees the same, with any headers of the machine. Sizes are asserted. */
#pragma once

#include "tiny.h"

/* errno(3) */
enum {
    EPERM = 1, ENOENT = 2, ESRCH = 3, EINTR = 4, EIO = 5, E2BIG = 7, EBADF = 9, EAGAIN = 11, ENOMEM = 12, EACCES = 13,
    EBUSY = 16, EEXIST = 17, EXDEV = 18, ENODEV = 19, ENOTDIR = 20, EISDIR = 21, EINVAL = 22, ENFILE = 23, EMFILE = 24,
    ENOTTY = 25, ETXTBSY = 26, ENOSPC = 28, EPIPE = 32, ERANGE = 34, ENAMETOOLONG = 36, ENOSYS = 38, ENOTEMPTY = 39,
    ELOOP = 40, ENODATA = 61, EBADMSG = 74, EILSEQ = 84, EMSGSIZE = 90, EOPNOTSUPP = 95,
    ECONNABORTED = 103, ECONNRESET = 104, ENOBUFS = 105, ENOTCONN = 107, ETIMEDOUT = 110, EINPROGRESS = 115,
    ESTALE = 116, ECANCELED = 125,
};

/* open(2); four of them differ between the architectures */
enum {
    O_RDONLY = 0, O_WRONLY = 1, O_RDWR = 2, O_CREAT = 0100, O_EXCL = 0200, O_NOCTTY = 0400, O_TRUNC = 01000,
    O_APPEND = 02000, O_NONBLOCK = 04000, O_CLOEXEC = 02000000, O_PATH = 010000000,
#if defined __aarch64__
    O_DIRECTORY = 040000, O_NOFOLLOW = 0100000, O_DIRECT = 0200000, O_LARGEFILE = 0400000,
#else
    O_DIRECTORY = 0200000, O_NOFOLLOW = 0400000, O_DIRECT = 040000, O_LARGEFILE = 0100000,
#endif
    O_TMPFILE = 020000000 | O_DIRECTORY,
    AT_FDCWD = -100, AT_SYMLINK_NOFOLLOW = 0x100, AT_REMOVEDIR = 0x200, AT_SYMLINK_FOLLOW = 0x400, AT_EMPTY_PATH = 0x1000,
    F_OK = 0, W_OK = 2, SEEK_SET = 0, F_GETFD = 1, F_SETFD = 2, F_SETFL = 4, F_DUPFD_CLOEXEC = 1030,
    PATH_MAX = 4096, NAME_MAX = 255,
};

/* openat2(2) */
struct open_how {
    uint64_t flags, mode, resolve;
};
enum { RESOLVE_NO_SYMLINKS = 4 };

/* statx(2) */
enum {
    S_IFMT = 0170000, S_IFLNK = 0120000, S_IFREG = 0100000, S_IFDIR = 0040000, S_IFIFO = 0010000,
    STATX_BASIC_STATS = 0x7ff, STATX_MNT_ID = 0x1000,
};

struct statx_time {
    int64_t seconds;
    uint32_t nanoseconds;
    int32_t reserved;
};

struct statx {
    uint32_t mask;
    uint32_t block_size;
    uint64_t attributes;
    uint32_t links;
    uint32_t uid;
    uint32_t gid;
    uint16_t mode;
    uint16_t spare0;
    uint64_t inode;
    uint64_t size;
    uint64_t blocks;
    uint64_t attributes_mask;
    struct statx_time accessed, born, changed, modified;
    uint32_t device_major_of_node, device_minor_of_node;
    uint32_t device_major, device_minor;
    uint64_t mount;
    uint64_t spare[13];
};
_Static_assert(sizeof(struct statx) == 256, "statx(2)");

struct timespec {
    int64_t seconds;
    int64_t nanoseconds;
};
enum { CLOCK_REALTIME = 0, CLOCK_MONOTONIC = 1, CLOCK_BOOTTIME = 7, UTIME_OMIT = 0x3ffffffe };

/* getdents64(2): a name with a NUL follows */
struct directory_entry {
    uint64_t inode;
    int64_t offset;
    uint16_t size;
    uint8_t type;
    char name[];
};
enum { DT_UNKNOWN = 0, DT_DIR = 4 };

/* mmap(2) */
enum {
    PROT_READ = 1, PROT_WRITE = 2, MAP_PRIVATE = 2, MAP_ANONYMOUS = 0x20, MAP_NORESERVE = 0x4000, MADV_DONTNEED = 4,
};

/* epoll(7) */
enum {
    EPOLLIN = 1, EPOLLOUT = 4, EPOLLHUP = 16, EPOLLRDHUP = 0x2000, EPOLL_CTL_ADD = 1, EPOLL_CTL_DEL = 2,
    EPOLL_CTL_MOD = 3, EPOLL_CLOEXEC = O_CLOEXEC,
};
struct epoll_event {
    uint32_t events;
    uint64_t data;
}
#if defined __x86_64__
__attribute__((packed))
#endif
;

/* poll(2): the events are those of epoll */
struct poll {
    int fd;
    short events, happened;
};

/* sockets */
enum {
    AF_UNIX = 1, AF_INET = 2, AF_INET6 = 10, SOCK_STREAM = 1, SOCK_DGRAM = 2, SOCK_SEQPACKET = 5,
    SOCK_NONBLOCK = O_NONBLOCK, SOCK_CLOEXEC = O_CLOEXEC, SOL_SOCKET = 1, SO_TYPE = 3, SO_ERROR = 4, SO_ACCEPTCONN = 30,
    SCM_RIGHTS = 1, MSG_CTRUNC = 8, MSG_DONTWAIT = 0x40, MSG_NOSIGNAL = 0x4000, MSG_CMSG_CLOEXEC = 0x40000000,
    SHUT_WR = 1,
};
struct iovec {
    void *base;
    size_t size;
};
struct message {
    void *name;
    uint32_t name_size;
    struct iovec *parts;
    size_t part_count;
    void *control;
    size_t control_size;
    int32_t flags;
};
struct control_header {
    size_t size;
    int32_t level;
    int32_t type;
};
struct unix_address {
    uint16_t family;
    char path[108];
};
struct ipv4_address {
    uint16_t family;
    uint8_t port[2]; /* the network's order */
    uint8_t host[4];
    uint8_t zero[8];
};
struct ipv6_address {
    uint16_t family;
    uint8_t port[2];
    uint32_t flow;
    uint8_t host[16];
    uint32_t scope;
};

/* signal(7) */
enum {
    SIGKILL = 9, SIGPIPE = 13, SIGTERM = 15, SIGCHLD = 17, SIGCONT = 18, SIGSTOP = 19, SIG_BLOCK = 0, SIG_SETMASK = 2,
    LAST_SIGNAL = 64,
};
struct signal_information { /* of signalfd(2) */
    uint32_t number;
    int32_t error;
    int32_t code;
    uint32_t pid; /* of the sender, as we see it; 0: outside of our namespace */
    uint8_t rest[112];
};
struct signal_action { /* as the kernel takes it, not as libc does */
    void *handler;
    uint64_t flags;
#if defined __x86_64__
    void *restorer;
#endif
    uint64_t mask;
};

/* processes */
enum {
    CLONE_VM = 0x100, CLONE_VFORK = 0x4000, CLONE_PARENT = 0x8000, CLONE_NEWNS = 0x20000, CLONE_NEWCGROUP = 0x2000000,
    CLONE_NEWUTS = 0x4000000, CLONE_NEWIPC = 0x8000000, CLONE_NEWUSER = 0x10000000, CLONE_NEWPID = 0x20000000,
    CLONE_NEWNET = 0x40000000, WNOHANG = 1, WUNTRACED = 2, STOPPED = 0x7f, PR_SET_PDEATHSIG = 1, PR_SET_DUMPABLE = 4,
    PR_SET_NAME = 15, PR_SET_NO_NEW_PRIVS = 38, PR_SET_SECCOMP = 22, PR_CAPBSET_DROP = 24, SECCOMP_MODE_FILTER = 2,
    PR_SET_CHILD_SUBREAPER = 36, PR_SET_IO_FLUSHER = 57, CLOSE_RANGE_CLOEXEC = 4, RLIMIT_CPU = 0, RLIMIT_DATA = 2,
    RLIMIT_RSS = 5, RLIMIT_NPROC = 6, RLIMIT_NOFILE = 7, RLIMIT_CORE = 4, RLIMIT_SIGPENDING = 11, RLIMIT_MSGQUEUE = 12,
    RLIMITS = 16, AT_NULL = 0, AT_SECURE = 23,
};
struct rlimit {
    uint64_t soft;
    uint64_t hard;
};
struct filter_program { /* seccomp(2): instructions of 8 bytes */
    uint16_t length;
    const void *instructions;
};

/* capabilities(7) */
enum {
    CAP_CHOWN = 0, CAP_DAC_OVERRIDE = 1, CAP_FOWNER = 3, CAP_FSETID = 4, CAP_KILL = 5, CAP_SETGID = 6, CAP_SETUID = 7,
    CAP_SYS_ADMIN = 21, CAP_SETFCAP = 31, CAPABILITIES = 64, CAPABILITY_VERSION = 0x20080522,
};
struct capability_header {
    uint32_t version;
    int32_t pid;
};
struct capability_words { /* two of them: the low halves, the high ones */
    uint32_t effective, permitted, inheritable;
};

/* fsopen(2), fsconfig(2), fsmount(2), open_tree(2), mount_setattr(2), move_mount(2) */
enum {
    FSOPEN_CLOEXEC = 1, FSMOUNT_CLOEXEC = 1, FSCONFIG_SET_FLAG = 0, FSCONFIG_SET_STRING = 1, FSCONFIG_CMD_CREATE = 6,
    MOUNT_ATTR_RDONLY = 1, MOUNT_ATTR_NOSUID = 2, MOUNT_ATTR_NODEV = 4, MOUNT_ATTR_NOEXEC = 8, OPEN_TREE_CLONE = 1,
    OPEN_TREE_CLOEXEC = O_CLOEXEC, AT_RECURSIVE = 0x8000, MOVE_MOUNT_F_EMPTY_PATH = 4, MOVE_MOUNT_T_EMPTY_PATH = 0x40,
    MNT_DETACH = 2,
};
struct mount_attributes {
    uint64_t set, clear, propagation, namespace;
};

/* sock_diag(7) */
enum { AF_NETLINK = 16, SOCK_RAW = 3, NETLINK_SOCK_DIAG = 4 };

/* landlock(7) */
enum { LANDLOCK_RULE_PATH_BENEATH = 1 };
struct path_beneath {
    uint64_t access;
    int32_t directory;
} __attribute__((packed));
_Static_assert(sizeof(struct path_beneath) == 12, "landlock(7)");

struct clone_arguments {
    uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup;
};
#define CLONE_INTO_CGROUP 0x200000000ull

/* ioctl_tty(2) */
enum { FIONREAD = 0x541b, TIOCSCTTY = 0x540e, TIOCSWINSZ = 0x5414, TIOCSPTLCK = 0x40045431, TIOCGPTPEER = 0x5441 };
struct window_size {
    uint16_t rows, columns, x_pixels, y_pixels;
};

/* mount(2), filesystems(5) */
enum { MS_RDONLY = 1, MS_NOSUID = 2, MS_NODEV = 4, MS_NOEXEC = 8, MS_REMOUNT = 32, MS_BIND = 4096, MS_MOVE = 8192 };
struct statfs {
    int64_t type, block_size;
    uint64_t blocks, free, available, inodes, free_inodes;
    int32_t id[2];
    int64_t name_size, fragment_size, flags, spare[4];
};

/* netdevice(7), rt(7) */
enum {
    SIOCADDRT = 0x890b, SIOCSIFFLAGS = 0x8914, SIOCSIFADDR = 0x8916, SIOCSIFNETMASK = 0x891c, SIOCSIFHWADDR = 0x8924,
    RTF_UP = 1, RTF_GATEWAY = 2, ARPHRD_ETHER = 1, IFF_UP = 1,
};
struct interface_request {
    char name[16];
    union {
        struct ipv4_address address;
        struct {
            uint16_t family;
            unsigned char bytes[14];
        } hardware;
        int16_t flags;
        unsigned char all[24];
    } is;
};
struct route {
    uint64_t pad1;
    struct ipv4_address destination, gateway, mask;
    uint16_t flags;
    int16_t pad2;
    uint64_t pad3;
    void *pad4;
    int16_t metric;
    char *device;
    uint64_t mtu, window;
    uint16_t rtt;
};

/* random(4) */
enum { RNDADDENTROPY = 0x40085203, RNDRESEEDCRNG = 0x5207 };

/* inotify(7): a name padded with NULs follows */
struct inotify_event {
    int32_t watch;
    uint32_t mask;
    uint32_t cookie;
    uint32_t size;
    char name[];
};
enum {
    IN_MODIFY = 2, IN_ATTRIB = 4, IN_MOVED_FROM = 0x40, IN_MOVED_TO = 0x80, IN_CREATE = 0x100, IN_DELETE = 0x200,
    IN_DELETE_SELF = 0x400, IN_MOVE_SELF = 0x800, IN_Q_OVERFLOW = 0x4000, IN_IGNORED = 0x8000, IN_ONLYDIR = 0x1000000,
    IN_DONT_FOLLOW = 0x2000000, IN_EXCL_UNLINK = 0x4000000, IN_ISDIR = 0x40000000,
};
