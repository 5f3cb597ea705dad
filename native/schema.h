/* Generated from schema.py by tools/schema.py. */
#pragma once

#include "message.h"

enum { PROTOCOL_VERSION = 5 };

enum kind_number {
    KIND_HELLO = 1,
    KIND_OPEN = 2,
    KIND_REPLY = 3,
    KIND_ERROR = 4,
    KIND_DATA = 5,
    KIND_EOF = 6,
    KIND_CREDIT = 7,
    KIND_EXIT = 9,
    KIND_CLOSE = 10,
};

enum stream_number {
    STREAM_IN = 0,
    STREAM_OUT = 1,
    STREAM_ERR = 2,
};

enum op_number {
    OP_PING = 1,
    OP_EXEC = 16,
    OP_ATTACH = 17,
    OP_EXECS = 18,
    OP_SIGNAL = 19,
    OP_RESIZE = 20,
    OP_KILL = 21,
    OP_HAND = 22,
    OP_KEEP = 23,
    OP_ECHO = 32,
    OP_STAT = 33,
    OP_MKDIR = 34,
    OP_SET = 35,
    OP_REMOVE = 36,
    OP_MOVE = 37,
    OP_COPY = 38,
    OP_LIST = 39,
    OP_FIND = 40,
    OP_GREP = 41,
    OP_READ = 42,
    OP_WRITE = 43,
    OP_UPLOAD = 44,
    OP_DOWNLOAD = 45,
    OP_WATCH = 46,
    OP_CONNECT = 48,
    OP_ACCEPT = 49,
    OP_IDENTITY = 64,
    OP_BEGIN = 65,
    OP_DEADLINE = 66,
    OP_AGENT = 67,
    OP_LOST = 68,
    OP_PAUSE = 69,
    OP_RESUME = 70,
    OP_TIMES = 71,
    OP_HOLD = 72,
    OP_AWAKE = 73,
    OP_PAUSE_CLOCK = 74,
    OP_RENEW = 75,
    OP_TRUST = 76,
    OP_SHARE = 77,
};

enum limit {
    LIMIT_BODY = 65536, /* bytes of a body, but of OPEN */
    LIMIT_OPEN_BODY = 2162688, /* bytes of the body of an OPEN: the kernel's 2 MiB of arguments and the rest */
    LIMIT_DESCRIPTORS = 4, /* descriptors of a frame */
    LIMIT_CHANNELS = 256, /* open channels of a connection */
    LIMIT_CONNECTIONS = 16, /* connections of an agent */
    LIMIT_COMMANDS = 1024, /* commands that an agent knows, ended ones among them */
    LIMIT_WINDOW = 262144, /* bytes that each stream may carry before the first CREDIT */
    LIMIT_CREDIT = 67108864, /* bytes that a sender may be allowed at one time */
    LIMIT_RING = 524288, /* bytes of output that the guest holds for a foreground command, on each stream */
    LIMIT_BACKGROUND_RING = 16777216, /* bytes of output that it keeps of a background command, on each stream */
    LIMIT_RINGS = 268435456, /* bytes of all rings together; when they are used up, a command gets the ring of a foreground one */
    LIMIT_HELPERS = 64, /* file operations and kills at one time */
    LIMIT_RELAYS = 128, /* connections to ports and from unix sockets at one time, awaited ones among them */
    LIMIT_RELAY_SOCKETS = 8, /* unix sockets on which connections are awaited */
    LIMIT_RELAY_PATH = 100, /* bytes of the path of such a socket */
    LIMIT_ID = 64, /* bytes of a command's id */
    LIMIT_PATH = 4095, /* bytes of a path */
    LIMIT_SHOWN = 1024, /* bytes of a command's arguments in a list */
    LIMIT_NAME = 32, /* bytes of an identity's name */
    LIMIT_IDENTITIES = 4, /* identities of a sandbox */
    LIMIT_FILTER = 32768, /* bytes of a program for seccomp(2) */
    LIMIT_HOLD = 600, /* seconds for which all may be held still */
};

enum exec_flags {
    EXEC_STDIN = 1, /* stream 0, or one more descriptor, is the command's input; else that is /dev/null */
    EXEC_TERMINAL = 2, /* a new terminal, with `rows` and `columns` */
    EXEC_BACKGROUND = 4, /* lives on when the channel ends; its output is kept for ATTACH */
    EXEC_IDENTITY = 8, /* runs as `uid`, `gid`, `groups`; else as the agent */
    EXEC_CGROUP = 16, /* the last descriptor is the directory of the control group it starts in and is killed by */
    EXEC_VITAL = 32, /* the agent ends with it */
    EXEC_OOM = 64, /* `oom_score` is set */
    EXEC_FLAGS = 127,
};

enum attach_flags {
    ATTACH_OUT = 1, /* the output from `out` on, or from the oldest byte that is kept */
    ATTACH_ERR = 2, /* the same of standard error, from `err` on */
    ATTACH_NOW = 4, /* up to what there is now, without EXIT */
    ATTACH_FLAGS = 7,
};

enum attached_flags {
    ATTACHED_TERMINAL = 1, /* it has a terminal */
    ATTACHED_STDIN = 2, /* its stdin is open, and comes by stream 0 */
    ATTACHED_FLAGS = 3,
};

enum ended_flags {
    ENDED_TIME = 1, /* killed when its time was over */
    ENDED_OUT_OPEN = 2, /* another process still holds its output; later output is lost */
    ENDED_ERR_OPEN = 4, /* the same of standard error */
    ENDED_UNDRAINED = 8, /* output follows this EXIT: the host has not read it yet */
    ENDED_MEMORY = 16, /* it failed, and the kernel has killed for lack of memory meanwhile; only where `TELLS` */
    ENDED_PROCESSES = 32, /* it failed, and the kernel has refused a process meanwhile; only where `TELLS` */
    ENDED_DISK = 64, /* it failed, and the disk is full; only where `TELLS` */
    ENDED_INODES = 128, /* it failed, and the disk has no room for another file; only where `TELLS` */
    ENDED_FLAGS = 255,
};

enum stat_flags {
    STAT_FOLLOW = 1, /* of what a symbolic link leads to */
    STAT_FLAGS = 1,
};

enum mkdir_flags {
    MKDIR_PARENTS = 1, /* with its parents; may be there already */
    MKDIR_MODE = 2, /* `mode` is set */
    MKDIR_FLAGS = 3,
};

enum set_flags {
    SET_MODE = 1, /* `mode` is set */
    SET_UID = 2, /* `uid` is set */
    SET_GID = 4, /* `gid` is set */
    SET_MODIFIED = 8, /* `modified` is set */
    SET_FLAGS = 15,
};

enum remove_flags {
    REMOVE_RECURSIVE = 1, /* with all that is in it */
    REMOVE_MISSING_OK = 2, /* may be missing */
    REMOVE_FLAGS = 3,
};

enum write_flags {
    WRITE_MODE = 1, /* `mode` is set */
    WRITE_APPEND = 2, /* in place, at its end */
    WRITE_FLAGS = 3,
};

enum upload_flags {
    UPLOAD_EXACT = 1, /* an archive of DOWNLOAD with WHOLE: `path` becomes the same. Files that it doesn't have are deleted, mounts below stay as they are. Devices are skipped. */
    UPLOAD_FLAGS = 1,
};

enum download_flags {
    DOWNLOAD_WHOLE = 1, /* names begin with `top`. FIFOs, attributes of users and exact times as well. An unreadable file is an error. Of mounts below it has the names alone. */
    DOWNLOAD_FLAGS = 1,
};

enum watch_flags {
    WATCH_RECURSIVE = 1, /* all directories below, those too that are made later */
    WATCH_FLAGS = 1,
};

enum walked_flags {
    WALKED_TRUNCATED = 1, /* there is more: deeper, longer by path, or in a directory too large to sort */
    WALKED_FLAGS = 1,
};

enum identity_flags {
    IDENTITY_EAGER = 1, /* its agent starts at once, not with the first connection */
    IDENTITY_ATTENDING = 2, /* its agent runs while all others are held still, and no longer */
    IDENTITY_TELLS = 4, /* its agent says which limit a failed command exceeded */
    IDENTITY_FLAGS = 7,
};

enum part_flags {
    PART_ABSENT = 1, /* none of the paths `absent` is there */
    PART_ENTROPY = 2, /* the kernel's random numbers begin anew with `entropy` */
    PART_HOSTNAME = 4, /* `hostname` */
    PART_HOSTS = 8, /* /etc/hosts names the sandbox `hosts` */
    PART_LIMITS = 16, /* `open_files`, `processes` and `tmp_bytes` */
    PART_MAC_ADDRESS = 32, /* the network interface has this address */
    PART_MACHINE_ID = 64, /* /etc/machine-id */
    PART_NETWORK = 128, /* the network interface is up if `online`, else down */
    PART_CLOCK = 256, /* `clock` */
    PART_FLAGS = 511,
};

enum share_flags {
    SHARE_WRITABLE = 1,
    SHARE_FLAGS = 1,
};

enum listed_flags {
    LISTED_BACKGROUND = 1,
    LISTED_ENDED = 2, /* `code` to `duration` are set */
    LISTED_FLAGS = 3,
};

enum setup_flags {
    SETUP_WHOLE = 1, /* a sandbox has all the ids of a system */
    SETUP_SHARED = 2, /* its user has processes outside: it has a share of what the kernel counts by user */
    SETUP_FLAGS = 3,
};

enum spawn_flags {
    SPAWN_CGROUP = 1, /* the last descriptor is the directory of the control group it starts in */
    SPAWN_OWNED = 2, /* its user namespace belongs to `owner` */
    SPAWN_FLAGS = 3,
};

enum plan_flags {
    PLAN_FRAIL = 1, /* it ends with the first of its agents that does */
    PLAN_UNCOUNTED = 2, /* no control group counts its memory: the filters `uncounted` hold */
    PLAN_HOST_USR = 4, /* the machine's /usr is among its mounts, after the root */
    PLAN_OWN_DEV = 8, /* a /dev follows; then come those of `proc`, /sys and those of `groups` */
    PLAN_FLAGS = 15,
};

struct host_hello_message {
    uint32_t version;
    uint32_t zero;
};
static const struct shape host_hello_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct host_hello_message, version), 4, false},
        {offsetof(struct host_hello_message, zero), 4, true},
    },
    .fields = 0,
    .field = {
    },
};

struct guest_hello_message {
    uint32_t version;
    uint32_t pid;
    struct reader build;
};
static const struct shape guest_hello_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct guest_hello_message, version), 4, false},
        {offsetof(struct guest_hello_message, pid), 4, false},
    },
    .fields = 1,
    .field = {
        {offsetof(struct guest_hello_message, build), 1, FIELD_TEXT, 64},
    },
};

struct ping_reply_message {
    uint32_t pid;
    uint32_t zero;
};
static const struct shape ping_reply_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct ping_reply_message, pid), 4, false},
        {offsetof(struct ping_reply_message, zero), 4, true},
    },
    .fields = 0,
    .field = {
    },
};

struct error_message {
    uint32_t errno;
    uint32_t zero;
    struct reader step;
    struct reader detail;
};
static const struct shape error_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct error_message, errno), 4, false},
        {offsetof(struct error_message, zero), 4, true},
    },
    .fields = 2,
    .field = {
        {offsetof(struct error_message, step), 1, FIELD_TEXT, 32},
        {offsetof(struct error_message, detail), 2, FIELD_TEXT, 256},
    },
};

struct credit_message {
    uint32_t bytes;
};
static const struct shape credit_shape = {
    .numbers = 1,
    .number = {
        {offsetof(struct credit_message, bytes), 4, false},
    },
    .fields = 0,
    .field = {
    },
};

struct exec_message {
    uint32_t flags;
    uint32_t uid;
    uint32_t gid;
    int32_t oom_score;
    uint16_t rows;
    uint16_t columns;
    uint32_t umask;
    uint64_t timeout;
    struct reader id;
    struct reader argv;
    struct reader env;
    struct reader cwd;
    struct reader groups;
    struct reader rlimits;
};
static const struct shape exec_shape = {
    .known = EXEC_FLAGS,
    .numbers = 8,
    .number = {
        {offsetof(struct exec_message, flags), 4, false},
        {offsetof(struct exec_message, uid), 4, false},
        {offsetof(struct exec_message, gid), 4, false},
        {offsetof(struct exec_message, oom_score), 4, false},
        {offsetof(struct exec_message, rows), 2, false},
        {offsetof(struct exec_message, columns), 2, false},
        {offsetof(struct exec_message, umask), 4, false},
        {offsetof(struct exec_message, timeout), 8, false},
    },
    .fields = 6,
    .field = {
        {offsetof(struct exec_message, id), 1, FIELD_TEXT, 64},
        {offsetof(struct exec_message, argv), 2, FIELD_STRINGS, 2097152},
        {offsetof(struct exec_message, env), 3, FIELD_STRINGS, 2097152},
        {offsetof(struct exec_message, cwd), 4, FIELD_TEXT, 4095},
        {offsetof(struct exec_message, groups), 5, FIELD_U32S, 256},
        {offsetof(struct exec_message, rlimits), 6, FIELD_U64S, 384},
    },
};

struct exec_reply_message {
    uint32_t pid;
    uint32_t zero;
};
static const struct shape exec_reply_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct exec_reply_message, pid), 4, false},
        {offsetof(struct exec_reply_message, zero), 4, true},
    },
    .fields = 0,
    .field = {
    },
};

struct exit_message {
    int32_t code;
    uint32_t signal;
    uint32_t ended;
    uint32_t zero;
    uint64_t duration;
};
static const struct shape exit_shape = {
    .numbers = 5,
    .number = {
        {offsetof(struct exit_message, code), 4, false},
        {offsetof(struct exit_message, signal), 4, false},
        {offsetof(struct exit_message, ended), 4, false},
        {offsetof(struct exit_message, zero), 4, true},
        {offsetof(struct exit_message, duration), 8, false},
    },
    .fields = 0,
    .field = {
    },
};

struct attach_message {
    uint32_t flags;
    uint32_t zero;
    uint64_t out;
    uint64_t err;
    struct reader id;
};
static const struct shape attach_shape = {
    .known = ATTACH_FLAGS,
    .numbers = 4,
    .number = {
        {offsetof(struct attach_message, flags), 4, false},
        {offsetof(struct attach_message, zero), 4, true},
        {offsetof(struct attach_message, out), 8, false},
        {offsetof(struct attach_message, err), 8, false},
    },
    .fields = 1,
    .field = {
        {offsetof(struct attach_message, id), 1, FIELD_TEXT, 64},
    },
};

struct attach_reply_message {
    uint32_t pid;
    uint32_t flags;
    uint64_t out;
    uint64_t err;
    uint64_t input;
};
static const struct shape attach_reply_shape = {
    .numbers = 5,
    .number = {
        {offsetof(struct attach_reply_message, pid), 4, false},
        {offsetof(struct attach_reply_message, flags), 4, false},
        {offsetof(struct attach_reply_message, out), 8, false},
        {offsetof(struct attach_reply_message, err), 8, false},
        {offsetof(struct attach_reply_message, input), 8, false},
    },
    .fields = 0,
    .field = {
    },
};

struct execs_message {
    uint64_t before;
};
static const struct shape execs_shape = {
    .numbers = 1,
    .number = {
        {offsetof(struct execs_message, before), 8, false},
    },
    .fields = 0,
    .field = {
    },
};

struct execs_reply_message {
    uint64_t before;
    struct reader execs;
};
static const struct shape execs_reply_shape = {
    .numbers = 1,
    .number = {
        {offsetof(struct execs_reply_message, before), 8, false},
    },
    .fields = 1,
    .field = {
        {offsetof(struct execs_reply_message, execs), 1, FIELD_ROWS, 65536},
    },
};

struct listed_message {
    uint64_t number;
    uint64_t started;
    uint32_t pid;
    uint32_t flags;
    int32_t code;
    uint32_t signal;
    uint32_t ended;
    uint32_t zero;
    uint64_t duration;
    struct reader id;
    struct reader argv;
};
static const struct shape listed_shape = {
    .numbers = 9,
    .number = {
        {offsetof(struct listed_message, number), 8, false},
        {offsetof(struct listed_message, started), 8, false},
        {offsetof(struct listed_message, pid), 4, false},
        {offsetof(struct listed_message, flags), 4, false},
        {offsetof(struct listed_message, code), 4, false},
        {offsetof(struct listed_message, signal), 4, false},
        {offsetof(struct listed_message, ended), 4, false},
        {offsetof(struct listed_message, zero), 4, true},
        {offsetof(struct listed_message, duration), 8, false},
    },
    .fields = 2,
    .field = {
        {offsetof(struct listed_message, id), 1, FIELD_TEXT, 64},
        {offsetof(struct listed_message, argv), 2, FIELD_STRINGS, 1024},
    },
};

struct signal_message {
    uint32_t number;
    uint32_t zero;
    struct reader id;
};
static const struct shape signal_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct signal_message, number), 4, false},
        {offsetof(struct signal_message, zero), 4, true},
    },
    .fields = 1,
    .field = {
        {offsetof(struct signal_message, id), 1, FIELD_TEXT, 64},
    },
};

struct resize_message {
    uint16_t rows;
    uint16_t columns;
    uint32_t zero;
    struct reader id;
};
static const struct shape resize_shape = {
    .numbers = 3,
    .number = {
        {offsetof(struct resize_message, rows), 2, false},
        {offsetof(struct resize_message, columns), 2, false},
        {offsetof(struct resize_message, zero), 4, true},
    },
    .fields = 1,
    .field = {
        {offsetof(struct resize_message, id), 1, FIELD_TEXT, 64},
    },
};

struct keep_message {
    uint64_t timeout;
    struct reader id;
};
static const struct shape keep_shape = {
    .numbers = 1,
    .number = {
        {offsetof(struct keep_message, timeout), 8, false},
    },
    .fields = 1,
    .field = {
        {offsetof(struct keep_message, id), 1, FIELD_TEXT, 64},
    },
};

struct kill_message {
    struct reader id;
};
static const struct shape kill_shape = {
    .numbers = 0,
    .number = {
    },
    .fields = 1,
    .field = {
        {offsetof(struct kill_message, id), 1, FIELD_TEXT, 64},
    },
};

struct kill_reply_message {
    uint32_t survivors;
    uint32_t zero;
};
static const struct shape kill_reply_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct kill_reply_message, survivors), 4, false},
        {offsetof(struct kill_reply_message, zero), 4, true},
    },
    .fields = 0,
    .field = {
    },
};

struct file_message {
    uint32_t kind;
    uint32_t mode;
    uint32_t uid;
    uint32_t gid;
    uint64_t size;
    int64_t modified;
    struct reader path;
    struct reader target;
};
static const struct shape file_shape = {
    .numbers = 6,
    .number = {
        {offsetof(struct file_message, kind), 4, false},
        {offsetof(struct file_message, mode), 4, false},
        {offsetof(struct file_message, uid), 4, false},
        {offsetof(struct file_message, gid), 4, false},
        {offsetof(struct file_message, size), 8, false},
        {offsetof(struct file_message, modified), 8, false},
    },
    .fields = 2,
    .field = {
        {offsetof(struct file_message, path), 1, FIELD_TEXT, 4095},
        {offsetof(struct file_message, target), 2, FIELD_TEXT, 4095},
    },
};

struct stat_message {
    uint32_t flags;
    uint32_t zero;
    struct reader path;
};
static const struct shape stat_shape = {
    .known = STAT_FLAGS,
    .numbers = 2,
    .number = {
        {offsetof(struct stat_message, flags), 4, false},
        {offsetof(struct stat_message, zero), 4, true},
    },
    .fields = 1,
    .field = {
        {offsetof(struct stat_message, path), 1, FIELD_TEXT, 4095},
    },
};

struct mkdir_message {
    uint32_t flags;
    uint32_t mode;
    struct reader path;
};
static const struct shape mkdir_shape = {
    .known = MKDIR_FLAGS,
    .numbers = 2,
    .number = {
        {offsetof(struct mkdir_message, flags), 4, false},
        {offsetof(struct mkdir_message, mode), 4, false},
    },
    .fields = 1,
    .field = {
        {offsetof(struct mkdir_message, path), 1, FIELD_TEXT, 4095},
    },
};

struct set_message {
    uint32_t flags;
    uint32_t mode;
    uint32_t uid;
    uint32_t gid;
    int64_t modified;
    struct reader path;
};
static const struct shape set_shape = {
    .known = SET_FLAGS,
    .numbers = 5,
    .number = {
        {offsetof(struct set_message, flags), 4, false},
        {offsetof(struct set_message, mode), 4, false},
        {offsetof(struct set_message, uid), 4, false},
        {offsetof(struct set_message, gid), 4, false},
        {offsetof(struct set_message, modified), 8, false},
    },
    .fields = 1,
    .field = {
        {offsetof(struct set_message, path), 1, FIELD_TEXT, 4095},
    },
};

struct remove_message {
    uint32_t flags;
    uint32_t zero;
    struct reader path;
};
static const struct shape remove_shape = {
    .known = REMOVE_FLAGS,
    .numbers = 2,
    .number = {
        {offsetof(struct remove_message, flags), 4, false},
        {offsetof(struct remove_message, zero), 4, true},
    },
    .fields = 1,
    .field = {
        {offsetof(struct remove_message, path), 1, FIELD_TEXT, 4095},
    },
};

struct move_message {
    struct reader source;
    struct reader destination;
};
static const struct shape move_shape = {
    .numbers = 0,
    .number = {
    },
    .fields = 2,
    .field = {
        {offsetof(struct move_message, source), 1, FIELD_TEXT, 4095},
        {offsetof(struct move_message, destination), 2, FIELD_TEXT, 4095},
    },
};

struct copy_message {
    struct reader source;
    struct reader destination;
};
static const struct shape copy_shape = {
    .numbers = 0,
    .number = {
    },
    .fields = 2,
    .field = {
        {offsetof(struct copy_message, source), 1, FIELD_TEXT, 4095},
        {offsetof(struct copy_message, destination), 2, FIELD_TEXT, 4095},
    },
};

struct list_message {
    uint32_t depth;
    uint32_t zero;
    struct reader path;
};
static const struct shape list_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct list_message, depth), 4, false},
        {offsetof(struct list_message, zero), 4, true},
    },
    .fields = 1,
    .field = {
        {offsetof(struct list_message, path), 1, FIELD_TEXT, 4095},
    },
};

struct find_message {
    uint64_t limit;
    struct reader path;
    struct reader name;
};
static const struct shape find_shape = {
    .numbers = 1,
    .number = {
        {offsetof(struct find_message, limit), 8, false},
    },
    .fields = 2,
    .field = {
        {offsetof(struct find_message, path), 1, FIELD_TEXT, 4095},
        {offsetof(struct find_message, name), 2, FIELD_TEXT, 4095},
    },
};

struct grep_message {
    uint64_t limit;
    struct reader path;
    struct reader name;
    struct reader steps;
    struct reader ranges;
    struct reader literal;
    struct reader begins;
};
static const struct shape grep_shape = {
    .numbers = 1,
    .number = {
        {offsetof(struct grep_message, limit), 8, false},
    },
    .fields = 6,
    .field = {
        {offsetof(struct grep_message, path), 1, FIELD_TEXT, 4095},
        {offsetof(struct grep_message, name), 2, FIELD_TEXT, 4095},
        {offsetof(struct grep_message, steps), 3, FIELD_U32S, 49152},
        {offsetof(struct grep_message, ranges), 4, FIELD_U32S, 32768},
        {offsetof(struct grep_message, literal), 5, FIELD_BYTES, 64},
        {offsetof(struct grep_message, begins), 6, FIELD_U32S, 32},
    },
};

struct match_message {
    uint64_t line_number;
    struct reader path;
    struct reader line;
};
static const struct shape match_shape = {
    .numbers = 1,
    .number = {
        {offsetof(struct match_message, line_number), 8, false},
    },
    .fields = 2,
    .field = {
        {offsetof(struct match_message, path), 1, FIELD_TEXT, 4095},
        {offsetof(struct match_message, line), 2, FIELD_BYTES, 8192},
    },
};

struct walked_message {
    uint32_t flags;
    uint32_t zero;
};
static const struct shape walked_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct walked_message, flags), 4, false},
        {offsetof(struct walked_message, zero), 4, true},
    },
    .fields = 0,
    .field = {
    },
};

struct read_message {
    uint64_t offset;
    uint64_t length;
    struct reader path;
};
static const struct shape read_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct read_message, offset), 8, false},
        {offsetof(struct read_message, length), 8, false},
    },
    .fields = 1,
    .field = {
        {offsetof(struct read_message, path), 1, FIELD_TEXT, 4095},
    },
};

struct read_reply_message {
    uint64_t size;
};
static const struct shape read_reply_shape = {
    .numbers = 1,
    .number = {
        {offsetof(struct read_reply_message, size), 8, false},
    },
    .fields = 0,
    .field = {
    },
};

struct write_message {
    uint32_t flags;
    uint32_t mode;
    struct reader path;
};
static const struct shape write_shape = {
    .known = WRITE_FLAGS,
    .numbers = 2,
    .number = {
        {offsetof(struct write_message, flags), 4, false},
        {offsetof(struct write_message, mode), 4, false},
    },
    .fields = 1,
    .field = {
        {offsetof(struct write_message, path), 1, FIELD_TEXT, 4095},
    },
};

struct upload_message {
    uint32_t flags;
    uint32_t zero;
    struct reader path;
    struct reader left_out;
    struct reader owner;
};
static const struct shape upload_shape = {
    .known = UPLOAD_FLAGS,
    .numbers = 2,
    .number = {
        {offsetof(struct upload_message, flags), 4, false},
        {offsetof(struct upload_message, zero), 4, true},
    },
    .fields = 3,
    .field = {
        {offsetof(struct upload_message, path), 1, FIELD_TEXT, 4095},
        {offsetof(struct upload_message, left_out), 2, FIELD_STRINGS, 65536},
        {offsetof(struct upload_message, owner), 3, FIELD_U32S, 8},
    },
};

struct download_message {
    uint32_t flags;
    uint32_t zero;
    struct reader path;
    struct reader left_out;
};
static const struct shape download_shape = {
    .known = DOWNLOAD_FLAGS,
    .numbers = 2,
    .number = {
        {offsetof(struct download_message, flags), 4, false},
        {offsetof(struct download_message, zero), 4, true},
    },
    .fields = 2,
    .field = {
        {offsetof(struct download_message, path), 1, FIELD_TEXT, 4095},
        {offsetof(struct download_message, left_out), 2, FIELD_STRINGS, 65536},
    },
};

struct watch_message {
    uint32_t flags;
    uint32_t zero;
    struct reader path;
};
static const struct shape watch_shape = {
    .known = WATCH_FLAGS,
    .numbers = 2,
    .number = {
        {offsetof(struct watch_message, flags), 4, false},
        {offsetof(struct watch_message, zero), 4, true},
    },
    .fields = 1,
    .field = {
        {offsetof(struct watch_message, path), 1, FIELD_TEXT, 4095},
    },
};

struct change_message {
    uint32_t kind;
    uint32_t zero;
    struct reader path;
};
static const struct shape change_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct change_message, kind), 4, false},
        {offsetof(struct change_message, zero), 4, true},
    },
    .fields = 1,
    .field = {
        {offsetof(struct change_message, path), 1, FIELD_TEXT, 4095},
    },
};

struct connect_message {
    uint32_t port;
    uint32_t zero;
};
static const struct shape connect_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct connect_message, port), 4, false},
        {offsetof(struct connect_message, zero), 4, true},
    },
    .fields = 0,
    .field = {
    },
};

struct accept_message {
    struct reader path;
};
static const struct shape accept_shape = {
    .numbers = 0,
    .number = {
    },
    .fields = 1,
    .field = {
        {offsetof(struct accept_message, path), 1, FIELD_TEXT, 100},
    },
};

struct hand_message {
    struct reader name;
    struct reader text;
};
static const struct shape hand_shape = {
    .numbers = 0,
    .number = {
    },
    .fields = 2,
    .field = {
        {offsetof(struct hand_message, name), 1, FIELD_TEXT, 64},
        {offsetof(struct hand_message, text), 2, FIELD_TEXT, 64},
    },
};

struct identity_message {
    uint32_t flags;
    uint32_t uid;
    uint32_t gid;
    uint32_t zero;
    struct reader name;
    struct reader groups;
    struct reader filter;
};
static const struct shape identity_shape = {
    .known = IDENTITY_FLAGS,
    .numbers = 4,
    .number = {
        {offsetof(struct identity_message, flags), 4, false},
        {offsetof(struct identity_message, uid), 4, false},
        {offsetof(struct identity_message, gid), 4, false},
        {offsetof(struct identity_message, zero), 4, true},
    },
    .fields = 3,
    .field = {
        {offsetof(struct identity_message, name), 1, FIELD_TEXT, 32},
        {offsetof(struct identity_message, groups), 2, FIELD_U32S, 256},
        {offsetof(struct identity_message, filter), 3, FIELD_BYTES, 32768},
    },
};

struct begin_message {
    uint64_t deadline;
    uint64_t idle;
    uint64_t retention;
    struct reader rlimits;
};
static const struct shape begin_shape = {
    .numbers = 3,
    .number = {
        {offsetof(struct begin_message, deadline), 8, false},
        {offsetof(struct begin_message, idle), 8, false},
        {offsetof(struct begin_message, retention), 8, false},
    },
    .fields = 1,
    .field = {
        {offsetof(struct begin_message, rlimits), 1, FIELD_U64S, 256},
    },
};

struct deadline_message {
    uint64_t deadline;
};
static const struct shape deadline_shape = {
    .numbers = 1,
    .number = {
        {offsetof(struct deadline_message, deadline), 8, false},
    },
    .fields = 0,
    .field = {
    },
};

struct agent_message {
    struct reader name;
};
static const struct shape agent_shape = {
    .numbers = 0,
    .number = {
    },
    .fields = 1,
    .field = {
        {offsetof(struct agent_message, name), 1, FIELD_TEXT, 32},
    },
};

struct agent_reply_message {
    uint32_t pid;
    uint32_t zero;
};
static const struct shape agent_reply_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct agent_reply_message, pid), 4, false},
        {offsetof(struct agent_reply_message, zero), 4, true},
    },
    .fields = 0,
    .field = {
    },
};

struct lost_message {
    uint32_t pid;
    uint32_t zero;
    struct reader name;
};
static const struct shape lost_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct lost_message, pid), 4, false},
        {offsetof(struct lost_message, zero), 4, true},
    },
    .fields = 1,
    .field = {
        {offsetof(struct lost_message, name), 1, FIELD_TEXT, 32},
    },
};

struct lost_reply_message {
    uint32_t alive;
    uint32_t signal;
};
static const struct shape lost_reply_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct lost_reply_message, alive), 4, false},
        {offsetof(struct lost_reply_message, signal), 4, false},
    },
    .fields = 0,
    .field = {
    },
};

struct renew_message {
    uint32_t parts;
    uint32_t online;
    uint64_t open_files;
    uint64_t processes;
    uint64_t tmp_bytes;
    uint64_t clock;
    struct reader absent;
    struct reader entropy;
    struct reader hostname;
    struct reader hosts;
    struct reader mac_address;
    struct reader machine_id;
};
static const struct shape renew_shape = {
    .known = PART_FLAGS,
    .numbers = 6,
    .number = {
        {offsetof(struct renew_message, parts), 4, false},
        {offsetof(struct renew_message, online), 4, false},
        {offsetof(struct renew_message, open_files), 8, false},
        {offsetof(struct renew_message, processes), 8, false},
        {offsetof(struct renew_message, tmp_bytes), 8, false},
        {offsetof(struct renew_message, clock), 8, false},
    },
    .fields = 6,
    .field = {
        {offsetof(struct renew_message, absent), 1, FIELD_STRINGS, 65536},
        {offsetof(struct renew_message, entropy), 2, FIELD_BYTES, 512},
        {offsetof(struct renew_message, hostname), 3, FIELD_TEXT, 64},
        {offsetof(struct renew_message, hosts), 4, FIELD_TEXT, 64},
        {offsetof(struct renew_message, mac_address), 5, FIELD_BYTES, 6},
        {offsetof(struct renew_message, machine_id), 6, FIELD_TEXT, 32},
    },
};

struct share_message {
    uint32_t flags;
    uint32_t number;
    struct reader target;
};
static const struct shape share_shape = {
    .known = SHARE_FLAGS,
    .numbers = 2,
    .number = {
        {offsetof(struct share_message, flags), 4, false},
        {offsetof(struct share_message, number), 4, false},
    },
    .fields = 1,
    .field = {
        {offsetof(struct share_message, target), 1, FIELD_TEXT, 4095},
    },
};

struct renew_reply_message {
    uint32_t done;
    uint32_t failed;
};
static const struct shape renew_reply_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct renew_reply_message, done), 4, false},
        {offsetof(struct renew_reply_message, failed), 4, false},
    },
    .fields = 0,
    .field = {
    },
};

struct trust_message {
    struct reader place;
    struct reader systems;
    struct reader data;
};
static const struct shape trust_shape = {
    .numbers = 0,
    .number = {
    },
    .fields = 3,
    .field = {
        {offsetof(struct trust_message, place), 1, FIELD_TEXT, 4095},
        {offsetof(struct trust_message, systems), 2, FIELD_STRINGS, 4096},
        {offsetof(struct trust_message, data), 3, FIELD_BYTES, 2097152},
    },
};

struct times_reply_message {
    uint64_t left;
    uint64_t deadline;
};
static const struct shape times_reply_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct times_reply_message, left), 8, false},
        {offsetof(struct times_reply_message, deadline), 8, false},
    },
    .fields = 0,
    .field = {
    },
};

struct hold_message {
    uint32_t seconds;
    uint32_t zero;
};
static const struct shape hold_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct hold_message, seconds), 4, false},
        {offsetof(struct hold_message, zero), 4, true},
    },
    .fields = 0,
    .field = {
    },
};

struct pause_clock_message {
    uint32_t paused;
    uint32_t zero;
};
static const struct shape pause_clock_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct pause_clock_message, paused), 4, false},
        {offsetof(struct pause_clock_message, zero), 4, true},
    },
    .fields = 0,
    .field = {
    },
};

struct setup_message {
    uint32_t flags;
    uint32_t zero;
    uint64_t below_root;
    struct reader ids;
    struct reader filter;
    struct reader uncounted;
    struct reader uncounted_ipc;
    struct reader landlock;
    struct reader rlimits;
    struct reader counts;
    struct reader ipc;
    struct reader stage;
    struct reader dev;
    struct reader masks;
};
static const struct shape setup_shape = {
    .known = SETUP_FLAGS,
    .numbers = 3,
    .number = {
        {offsetof(struct setup_message, flags), 4, false},
        {offsetof(struct setup_message, zero), 4, true},
        {offsetof(struct setup_message, below_root), 8, false},
    },
    .fields = 11,
    .field = {
        {offsetof(struct setup_message, ids), 1, FIELD_TEXT, 256},
        {offsetof(struct setup_message, filter), 2, FIELD_BYTES, 32768},
        {offsetof(struct setup_message, uncounted), 3, FIELD_BYTES, 32768},
        {offsetof(struct setup_message, uncounted_ipc), 4, FIELD_BYTES, 32768},
        {offsetof(struct setup_message, landlock), 5, FIELD_BYTES, 64},
        {offsetof(struct setup_message, rlimits), 6, FIELD_U64S, 256},
        {offsetof(struct setup_message, counts), 7, FIELD_STRINGS, 1024},
        {offsetof(struct setup_message, ipc), 8, FIELD_STRINGS, 1024},
        {offsetof(struct setup_message, stage), 9, FIELD_TEXT, 4095},
        {offsetof(struct setup_message, dev), 10, FIELD_TEXT, 4095},
        {offsetof(struct setup_message, masks), 11, FIELD_STRINGS, 2048},
    },
};

struct spawn_message {
    uint32_t flags;
    uint32_t owner;
    struct reader fault;
};
static const struct shape spawn_shape = {
    .known = SPAWN_FLAGS,
    .numbers = 2,
    .number = {
        {offsetof(struct spawn_message, flags), 4, false},
        {offsetof(struct spawn_message, owner), 4, false},
    },
    .fields = 1,
    .field = {
        {offsetof(struct spawn_message, fault), 1, FIELD_TEXT, 32},
    },
};

struct spawned_message {
    uint32_t pid;
    uint32_t errno;
};
static const struct shape spawned_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct spawned_message, pid), 4, false},
        {offsetof(struct spawned_message, errno), 4, false},
    },
    .fields = 0,
    .field = {
    },
};

struct plan_message {
    uint32_t flags;
    uint32_t uid;
    uint32_t gid;
    uint32_t root_uid;
    uint32_t root_gid;
    uint32_t zero;
    uint64_t grace;
    uint64_t tmp_bytes;
    uint64_t inodes;
    struct reader rlimits;
    struct reader hostname;
    struct reader proc;
    struct reader groups;
};
static const struct shape plan_shape = {
    .known = PLAN_FLAGS,
    .numbers = 9,
    .number = {
        {offsetof(struct plan_message, flags), 4, false},
        {offsetof(struct plan_message, uid), 4, false},
        {offsetof(struct plan_message, gid), 4, false},
        {offsetof(struct plan_message, root_uid), 4, false},
        {offsetof(struct plan_message, root_gid), 4, false},
        {offsetof(struct plan_message, zero), 4, true},
        {offsetof(struct plan_message, grace), 8, false},
        {offsetof(struct plan_message, tmp_bytes), 8, false},
        {offsetof(struct plan_message, inodes), 8, false},
    },
    .fields = 4,
    .field = {
        {offsetof(struct plan_message, rlimits), 1, FIELD_U64S, 256},
        {offsetof(struct plan_message, hostname), 2, FIELD_TEXT, 64},
        {offsetof(struct plan_message, proc), 3, FIELD_STRINGS, 512},
        {offsetof(struct plan_message, groups), 4, FIELD_STRINGS, 512},
    },
};

struct report_message {
    uint32_t failed;
    uint32_t errno;
    struct reader step;
    struct reader steps;
    struct reader took;
};
static const struct shape report_shape = {
    .numbers = 2,
    .number = {
        {offsetof(struct report_message, failed), 4, false},
        {offsetof(struct report_message, errno), 4, false},
    },
    .fields = 3,
    .field = {
        {offsetof(struct report_message, step), 1, FIELD_TEXT, 32},
        {offsetof(struct report_message, steps), 2, FIELD_STRINGS, 512},
        {offsetof(struct report_message, took), 3, FIELD_U64S, 128},
    },
};

struct pause_clock_reply_message {
    uint32_t paused;
    uint32_t zero;
    uint64_t left;
    uint64_t deadline;
};
static const struct shape pause_clock_reply_shape = {
    .numbers = 4,
    .number = {
        {offsetof(struct pause_clock_reply_message, paused), 4, false},
        {offsetof(struct pause_clock_reply_message, zero), 4, true},
        {offsetof(struct pause_clock_reply_message, left), 8, false},
        {offsetof(struct pause_clock_reply_message, deadline), 8, false},
    },
    .fields = 0,
    .field = {
    },
};

/* Of all messages, in this order. */
#define EVERY_SHAPE \
    &host_hello_shape, \
    &guest_hello_shape, \
    &ping_reply_shape, \
    &error_shape, \
    &credit_shape, \
    &exec_shape, \
    &exec_reply_shape, \
    &exit_shape, \
    &attach_shape, \
    &attach_reply_shape, \
    &execs_shape, \
    &execs_reply_shape, \
    &listed_shape, \
    &signal_shape, \
    &resize_shape, \
    &keep_shape, \
    &kill_shape, \
    &kill_reply_shape, \
    &file_shape, \
    &stat_shape, \
    &mkdir_shape, \
    &set_shape, \
    &remove_shape, \
    &move_shape, \
    &copy_shape, \
    &list_shape, \
    &find_shape, \
    &grep_shape, \
    &match_shape, \
    &walked_shape, \
    &read_shape, \
    &read_reply_shape, \
    &write_shape, \
    &upload_shape, \
    &download_shape, \
    &watch_shape, \
    &change_shape, \
    &connect_shape, \
    &accept_shape, \
    &hand_shape, \
    &identity_shape, \
    &begin_shape, \
    &deadline_shape, \
    &agent_shape, \
    &agent_reply_shape, \
    &lost_shape, \
    &lost_reply_shape, \
    &renew_shape, \
    &share_shape, \
    &renew_reply_shape, \
    &trust_shape, \
    &times_reply_shape, \
    &hold_shape, \
    &pause_clock_shape, \
    &setup_shape, \
    &spawn_shape, \
    &spawned_shape, \
    &plan_shape, \
    &report_shape, \
    &pause_clock_reply_shape
