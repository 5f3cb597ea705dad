"""What host and guest say to each other: plain data, the only place where it is written.

`tools/schema.py` writes `native/schema.h`, `src/paddock/wire/guest.py` and `docs/design/guest-messages.md` from it.

A body is the fixed numbers of its message, packed and little-endian, then fields: u16 tag, u16 0, u32 length, bytes,
zeros up to a multiple of 8. Fields come in the order of their tags; an absent field is an empty one. There is one
encoding of a message: whatever else arrives is an error.
"""

from __future__ import annotations

from typing import NamedTuple

VERSION = 5

KINDS = {
    "HELLO": 1, "OPEN": 2, "REPLY": 3, "ERROR": 4, "DATA": 5,
    "EOF": 6, "CREDIT": 7, "EXIT": 9, "CLOSE": 10,
}  # fmt: skip
STREAMS = {"IN": 0, "OUT": 1, "ERR": 2}
"""The `code` of DATA, EOF and CREDIT. IN is into the sandbox."""
OPS = {
    "PING": 1,
    "EXEC": 16, "ATTACH": 17, "EXECS": 18, "SIGNAL": 19, "RESIZE": 20, "KILL": 21, "HAND": 22, "KEEP": 23,
    "ECHO": 32,
    "STAT": 33, "MKDIR": 34, "SET": 35, "REMOVE": 36, "MOVE": 37, "COPY": 38, "LIST": 39, "FIND": 40, "GREP": 41,
    "READ": 42, "WRITE": 43, "UPLOAD": 44, "DOWNLOAD": 45, "WATCH": 46,
    "CONNECT": 48, "ACCEPT": 49,
    "IDENTITY": 64, "BEGIN": 65, "DEADLINE": 66, "AGENT": 67, "LOST": 68,
    "PAUSE": 69, "RESUME": 70, "TIMES": 71, "HOLD": 72, "AWAKE": 73, "PAUSE_CLOCK": 74, "RENEW": 75, "TRUST": 76,
    "SHARE": 77,
}  # fmt: skip
"""The `code` of OPEN. From 64 on they are orders to pid 1."""

LIMITS = {
    "BODY": (1 << 16, "bytes of a body, but of OPEN"),
    "OPEN_BODY": ((2 << 20) + (1 << 16), "bytes of the body of an OPEN: the kernel's 2 MiB of arguments and the rest"),
    "DESCRIPTORS": (4, "descriptors of a frame"),
    "CHANNELS": (256, "open channels of a connection"),
    "CONNECTIONS": (16, "connections of an agent"),
    "COMMANDS": (1024, "commands that an agent knows, ended ones among them"),
    "WINDOW": (1 << 18, "bytes that each stream may carry before the first CREDIT"),
    "CREDIT": (1 << 26, "bytes that a sender may be allowed at one time"),
    "RING": (1 << 19, "bytes of output that the guest holds for a foreground command, on each stream"),
    "BACKGROUND_RING": (1 << 24, "bytes of output that it keeps of a background command, on each stream"),
    "RINGS": (
        1 << 28,
        "bytes of all rings together; when they are used up, a command gets the ring of a foreground one",
    ),
    "HELPERS": (64, "file operations and kills at one time"),
    "RELAYS": (128, "connections to ports and from unix sockets at one time, awaited ones among them"),
    "RELAY_SOCKETS": (8, "unix sockets on which connections are awaited"),
    "RELAY_PATH": (100, "bytes of the path of such a socket"),
    "ID": (64, "bytes of a command's id"),
    "PATH": (4095, "bytes of a path"),
    "SHOWN": (1024, "bytes of a command's arguments in a list"),
    "NAME": (32, "bytes of an identity's name"),
    "IDENTITIES": (4, "identities of a sandbox"),
    "FILTER": (1 << 15, "bytes of a program for seccomp(2)"),
    "HOLD": (600, "seconds for which all may be held still"),
}


class Field(NamedTuple):
    """`kind`: text (no NUL), bytes, strings (each with a NUL behind it), u32s, u64s, rows (bodies of `rows`, repeated).

    Rows have the last tag of their message."""

    tag: int
    name: str
    kind: str
    limit: int
    doc: str = ""
    rows: str = ""


class Message(NamedTuple):
    """`sender` is host or guest. `fixed` are (name, type, meaning)."""

    name: str
    frame: str
    sender: str
    doc: str
    fixed: tuple[tuple[str, str, str], ...] = ()
    fields: tuple[Field, ...] = ()


FLAGS = {
    "EXEC": {
        "STDIN": (1, "stream 0, or one more descriptor, is the command's input; else that is /dev/null"),
        "TERMINAL": (2, "a new terminal, with `rows` and `columns`"),
        "BACKGROUND": (4, "lives on when the channel ends; its output is kept for ATTACH"),
        "IDENTITY": (8, "runs as `uid`, `gid`, `groups`; else as the agent"),
        "CGROUP": (16, "the last descriptor is the directory of the control group it starts in and is killed by"),
        "VITAL": (32, "the agent ends with it"),
        "OOM": (64, "`oom_score` is set"),
    },
    "ATTACH": {
        "OUT": (1, "the output from `out` on, or from the oldest byte that is kept"),
        "ERR": (2, "the same of standard error, from `err` on"),
        "NOW": (4, "up to what there is now, without EXIT"),
    },
    "ATTACHED": {
        "TERMINAL": (1, "it has a terminal"),
        "STDIN": (2, "its stdin is open, and comes by stream 0"),
    },
    "ENDED": {
        "TIME": (1, "killed when its time was over"),
        "OUT_OPEN": (2, "another process still holds its output; later output is lost"),
        "ERR_OPEN": (4, "the same of standard error"),
        "UNDRAINED": (8, "output follows this EXIT: the host has not read it yet"),
        "MEMORY": (16, "it failed, and the kernel has killed for lack of memory meanwhile; only where `TELLS`"),
        "PROCESSES": (32, "it failed, and the kernel has refused a process meanwhile; only where `TELLS`"),
        "DISK": (64, "it failed, and the disk is full; only where `TELLS`"),
        "INODES": (128, "it failed, and the disk has no room for another file; only where `TELLS`"),
    },
    "STAT": {"FOLLOW": (1, "of what a symbolic link leads to")},
    "MKDIR": {"PARENTS": (1, "with its parents; may be there already"), "MODE": (2, "`mode` is set")},
    "SET": {
        "MODE": (1, "`mode` is set"),
        "UID": (2, "`uid` is set"),
        "GID": (4, "`gid` is set"),
        "MODIFIED": (8, "`modified` is set"),
    },
    "REMOVE": {"RECURSIVE": (1, "with all that is in it"), "MISSING_OK": (2, "may be missing")},
    "WRITE": {"MODE": (1, "`mode` is set"), "APPEND": (2, "in place, at its end")},
    "UPLOAD": {
        "EXACT": (
            1,
            "an archive of DOWNLOAD with WHOLE: `path` becomes the same. Files that it doesn't have are deleted, "
            "mounts below stay as they are. Devices are skipped.",
        )
    },
    "DOWNLOAD": {
        "WHOLE": (
            1,
            "names begin with `top`. FIFOs, attributes of users and exact times as well. An unreadable file is an "
            "error. Of mounts below it has the names alone.",
        )
    },
    "WATCH": {"RECURSIVE": (1, "all directories below, those too that are made later")},
    "WALKED": {"TRUNCATED": (1, "there is more: deeper, longer by path, or in a directory too large to sort")},
    "IDENTITY": {
        "EAGER": (1, "its agent starts at once, not with the first connection"),
        "ATTENDING": (2, "its agent runs while all others are held still, and no longer"),
        "TELLS": (4, "its agent says which limit a failed command exceeded"),
    },
    "PART": {
        "ABSENT": (1, "none of the paths `absent` is there"),
        "ENTROPY": (2, "the kernel's random numbers begin anew with `entropy`"),
        "HOSTNAME": (4, "`hostname`"),
        "HOSTS": (8, "/etc/hosts names the sandbox `hosts`"),
        "LIMITS": (16, "`open_files`, `processes` and `tmp_bytes`"),
        "MAC_ADDRESS": (32, "the network interface has this address"),
        "MACHINE_ID": (64, "/etc/machine-id"),
        "NETWORK": (128, "the network interface is up if `online`, else down"),
        "CLOCK": (256, "`clock`"),
    },
    "SHARE": {"WRITABLE": (1, "")},
    "LISTED": {"BACKGROUND": (1, ""), "ENDED": (2, "`code` to `duration` are set")},
    "SETUP": {
        "WHOLE": (1, "a sandbox has all the ids of a system"),
        "SHARED": (2, "its user has processes outside: it has a share of what the kernel counts by user"),
    },
    "SPAWN": {
        "CGROUP": (1, "the last descriptor is the directory of the control group it starts in"),
        "OWNED": (2, "its user namespace belongs to `owner`"),
    },
    "PLAN": {
        "FRAIL": (1, "it ends with the first of its agents that does"),
        "UNCOUNTED": (2, "no control group counts its memory: the filters `uncounted` hold"),
        "HOST_USR": (4, "the machine's /usr is among its mounts, after the root"),
        "OWN_DEV": (8, "a /dev follows; then come those of `proc`, /sys and those of `groups`"),
    },
}

ID = Field(1, "id", "text", LIMITS["ID"][0], "of the command")
IDENTITY_NAME = Field(1, "name", "text", LIMITS["NAME"][0], "of the identity")
_TIMES = (
    ("left", "u64", "nanoseconds of its time to live, if it is paused; else the largest number"),
    (
        "deadline",
        "u64",
        "nanoseconds of CLOCK_BOOTTIME: of its time to live, or of the time for which it may be paused",
    ),
)
PATH = Field(1, "path", "text", LIMITS["PATH"][0], "absolute")
NAME = Field(2, "name", "text", LIMITS["PATH"][0], "a shell pattern")
LEFT_OUT = Field(2, "left_out", "strings", 1 << 16, "what is below `path` and stays out of it, relative to it")
SOURCE = Field(1, "source", "text", LIMITS["PATH"][0], "absolute")
DESTINATION = Field(2, "destination", "text", LIMITS["PATH"][0], "absolute")
_STATUS = (
    ("code", "i32", "exit code, or -1"),
    ("signal", "u32", "that killed it, or 0"),
    ("ended", "u32", "flags ENDED"),
    ("zero", "u32", ""),
    ("duration", "u64", "nanoseconds"),
)

MESSAGES = (
    Message("host_hello", "HELLO", "host", "First on a connection.", (("version", "u32", ""), ("zero", "u32", ""))),
    Message(
        "guest_hello",
        "HELLO",
        "guest",
        "First on a connection. A host of another version closes it.",
        (("version", "u32", ""), ("pid", "u32", "of the agent, as it sees itself")),
        (Field(1, "build", "text", 64, "digest of the sources"),),
    ),
    Message("ping_reply", "REPLY", "guest", "", (("pid", "u32", ""), ("zero", "u32", ""))),
    Message(
        "error",
        "ERROR",
        "guest",
        "The last word on a channel.",
        (("errno", "u32", "of the kernel's numbering"), ("zero", "u32", "")),
        (Field(1, "step", "text", 32, "what was tried"), Field(2, "detail", "text", 256, "a name or a path")),
    ),
    Message("credit", "CREDIT", "both", "May be sent on this stream beyond what was allowed.", (("bytes", "u32", ""),)),
    Message(
        "exec",
        "OPEN",
        "host",
        "Starts a command. Descriptors: input if STDIN, output, error; or input; or none. Streams carry the others.",
        (
            ("flags", "u32", "EXEC"),
            ("uid", "u32", ""),
            ("gid", "u32", ""),
            ("oom_score", "i32", "its oom_score_adj"),
            ("rows", "u16", ""),
            ("columns", "u16", ""),
            ("umask", "u32", ""),
            ("timeout", "u64", "nanoseconds awake after which it is killed with all that it started; 0: none"),
        ),
        (
            ID,
            Field(2, "argv", "strings", 2 << 20, "a program, by path or by PATH of `env`, and its arguments"),
            Field(3, "env", "strings", 2 << 20, "all of it: NAME=value"),
            Field(4, "cwd", "text", 4095, "absolute"),
            Field(5, "groups", "u32s", 4 * 64, ""),
            Field(6, "rlimits", "u64s", 24 * 16, "resource, soft, hard of each"),
        ),
    ),
    Message("exec_reply", "REPLY", "guest", "It runs.", (("pid", "u32", ""), ("zero", "u32", ""))),
    Message("exit", "EXIT", "guest", "Its main process has ended.", _STATUS),
    Message(
        "attach",
        "OPEN",
        "host",
        "Follows a background command to its end, or goes on with one that is kept.",
        (
            ("flags", "u32", "ATTACH"),
            ("zero", "u32", ""),
            ("out", "u64", "offset of the first byte wanted"),
            ("err", "u64", ""),
        ),
        (ID,),
    ),
    Message(
        "attach_reply",
        "REPLY",
        "guest",
        "The offset of the first byte on each stream. If it is above the requested one, the guest has dropped bytes.",
        (
            ("pid", "u32", ""),
            ("flags", "u32", "ATTACHED"),
            ("out", "u64", "offset"),
            ("err", "u64", "offset"),
            ("input", "u64", "bytes that it has read of its stdin: the host sends what follows"),
        ),
    ),
    Message(
        "execs",
        "OPEN",
        "host",
        "Lists running commands, and background commands that have ended, the newest first.",
        (("before", "u64", "only those with a lower number; 0: all"),),
    ),
    Message(
        "execs_reply",
        "REPLY",
        "guest",
        "",
        (("before", "u64", "there are more, to be asked for with this; 0: no"),),
        (Field(1, "execs", "rows", LIMITS["BODY"][0], "", "listed"),),
    ),
    Message(
        "listed",
        "",
        "guest",
        "A row of `execs_reply`.",
        (
            ("number", "u64", ""),
            ("started", "u64", "nanoseconds since 1970"),
            ("pid", "u32", ""),
            ("flags", "u32", "LISTED"),
            *_STATUS,
        ),
        (ID, Field(2, "argv", "strings", LIMITS["SHOWN"][0], "as much as fits")),
    ),
    Message("signal", "OPEN", "host", "", (("number", "u32", "1 to 64"), ("zero", "u32", "")), (ID,)),
    Message("resize", "OPEN", "host", "", (("rows", "u16", ""), ("columns", "u16", ""), ("zero", "u32", "")), (ID,)),
    Message(
        "keep",
        "OPEN",
        "host",
        "A command of the foreground lives on when its connection ends. Its channel is the host's to close.",
        (("timeout", "u64", "nanoseconds from now, or 0"),),
        (ID,),
    ),
    Message("kill", "OPEN", "host", "Ends a command and all that it has started.", (), (ID,)),
    Message(
        "kill_reply",
        "REPLY",
        "guest",
        "When all are gone.",
        (("survivors", "u32", "not killable"), ("zero", "u32", "")),
    ),
    Message(
        "file",
        "REPLY",
        "guest",
        "The object behind a name: of STAT, MKDIR, SET; a row of LIST and FIND; the EXIT of MOVE, COPY, WRITE, UPLOAD.",
        (
            ("kind", "u32", "1 file, 2 directory, 3 symbolic link, 4 something else"),
            ("mode", "u32", "permission bits"),
            ("uid", "u32", ""),
            ("gid", "u32", ""),
            ("size", "u64", "bytes"),
            ("modified", "i64", "nanoseconds since 1970"),
        ),
        (PATH, Field(2, "target", "text", LIMITS["PATH"][0], "of a symbolic link")),
    ),
    Message("stat", "OPEN", "host", "", (("flags", "u32", "STAT"), ("zero", "u32", "")), (PATH,)),
    Message("mkdir", "OPEN", "host", "", (("flags", "u32", "MKDIR"), ("mode", "u32", "")), (PATH,)),
    Message(
        "set",
        "OPEN",
        "host",
        "Attributes. Of a symbolic link the owner is its own; mode and time are of what it leads to.",
        (
            ("flags", "u32", "SET"),
            ("mode", "u32", ""),
            ("uid", "u32", ""),
            ("gid", "u32", ""),
            ("modified", "i64", "nanoseconds since 1970"),
        ),
        (PATH,),
    ),
    Message("remove", "OPEN", "host", "", (("flags", "u32", "REMOVE"), ("zero", "u32", "")), (PATH,)),
    Message("move", "OPEN", "host", "Renames; between file systems, copies and removes.", (), (SOURCE, DESTINATION)),
    Message("copy", "OPEN", "host", "With all that is in it, links as links.", (), (SOURCE, DESTINATION)),
    Message("list", "OPEN", "host", "", (("depth", "u32", "1: the directory itself"), ("zero", "u32", "")), (PATH,)),
    Message(
        "find",
        "OPEN",
        "host",
        "Rows of those below `path` whose name matches.",
        (("limit", "u64", "rows"),),
        (PATH, NAME),
    ),
    Message(
        "grep",
        "OPEN",
        "host",
        "Rows of the lines that hold a match, in files whose name matches. Binary files are passed over.",
        (("limit", "u64", "rows"),),
        (
            PATH,
            NAME,
            Field(3, "steps", "u32s", 12 * 4096, "of the program (patterns.h): operation, first, second"),
            Field(4, "ranges", "u32s", 8 * 4096, "of characters: first, last"),
            Field(5, "literal", "bytes", 64, "each line that matches holds it"),
            Field(6, "begins", "u32s", 32, "a bit for each byte with which a match may begin; empty: any"),
        ),
    ),
    Message(
        "match",
        "",
        "guest",
        "A row of `grep`.",
        (("line_number", "u64", "from 1"),),
        (PATH, Field(2, "line", "bytes", 8192, "its beginning, without its end")),
    ),
    Message(
        "walked", "EXIT", "guest", "Of LIST, FIND, GREP, DOWNLOAD.", (("flags", "u32", "WALKED"), ("zero", "u32", ""))
    ),
    Message(
        "read",
        "OPEN",
        "host",
        "A file's bytes, on stream 1.",
        (("offset", "u64", ""), ("length", "u64", "at most so many")),
        (PATH,),
    ),
    Message("read_reply", "REPLY", "guest", "", (("size", "u64", "bytes of the whole file"),)),
    Message(
        "write",
        "OPEN",
        "host",
        "A file's new bytes, on stream 0: they replace the old ones at once, when EOF has come. Makes missing parents.",
        (("flags", "u32", "WRITE"), ("mode", "u32", "")),
        (PATH,),
    ),
    Message(
        "upload",
        "OPEN",
        "host",
        "A tar archive, on stream 0, to be unpacked below `path`.",
        (("flags", "u32", "UPLOAD"), ("zero", "u32", "")),
        (
            PATH,
            LEFT_OUT,
            Field(
                3, "owner", "u32s", 8, "with EXACT: uid and gid of all of it, without set-id bits; empty: as it says"
            ),
        ),
    ),
    Message(
        "download",
        "OPEN",
        "host",
        "What is below `path`, as a tar archive on stream 1.",
        (("flags", "u32", "DOWNLOAD"), ("zero", "u32", "")),
        (PATH, LEFT_OUT),
    ),
    Message(
        "watch",
        "OPEN",
        "host",
        "Rows of changes. Nothing that happens after the REPLY is missed.",
        (("flags", "u32", "WATCH"), ("zero", "u32", "")),
        (PATH,),
    ),
    Message(
        "change",
        "",
        "guest",
        "A row of `watch`.",
        (
            ("kind", "u32", "1 created, 2 modified, 3 removed, 4 moved from, 5 moved to, 6 overflow"),
            ("zero", "u32", ""),
        ),
        (PATH,),
    ),
    Message(
        "connect",
        "OPEN",
        "host",
        "A TCP connection to a port of the own loopback: stream 0 to it, stream 1 from it. REPLY: it is made.",
        (("port", "u32", "1 to 65535"), ("zero", "u32", "")),
    ),
    Message(
        "accept",
        "OPEN",
        "host",
        "The next connection to the unix socket at `path`, which is there meanwhile. REPLY: it is made.",
        (),
        (Field(1, "path", "text", LIMITS["RELAY_PATH"][0], "absolute"),),
    ),
    Message(
        "hand",
        "OPEN",
        "host",
        "Passes the descriptors on, with a text, to the abstract datagram socket of that name.",
        (),
        (Field(1, "name", "text", 64), Field(2, "text", "text", 64)),
    ),
    Message(
        "identity",
        "OPEN",
        "host",
        "To pid 1 before BEGIN: an agent that it is to start, and (a descriptor) the socket on which that serves.",
        (("flags", "u32", "IDENTITY"), ("uid", "u32", ""), ("gid", "u32", ""), ("zero", "u32", "")),
        (
            IDENTITY_NAME,
            Field(2, "groups", "u32s", 4 * 64, ""),
            Field(3, "filter", "bytes", LIMITS["FILTER"][0], "instructions of seccomp(2) for all that it starts"),
        ),
    ),
    Message(
        "begin",
        "OPEN",
        "host",
        "The last of the first orders. The descriptor is the socket for further ones.",
        (
            ("deadline", "u64", "nanoseconds of CLOCK_BOOTTIME"),
            ("idle", "u64", "nanoseconds without a use after which pid 1 pauses it; 0: never"),
            ("retention", "u64", "nanoseconds for which it may be paused"),
        ),
        (Field(1, "rlimits", "u64s", 16 * 16, "resource and hard limit of each"),),
    ),
    Message("deadline", "OPEN", "host", "Moves it.", (("deadline", "u64", "nanoseconds of CLOCK_BOOTTIME"),)),
    Message("agent", "OPEN", "host", "Asks after the agent of an identity.", (), (IDENTITY_NAME,)),
    Message("agent_reply", "REPLY", "guest", "", (("pid", "u32", "0: none runs"), ("zero", "u32", ""))),
    Message(
        "lost",
        "OPEN",
        "host",
        "Asks for the end of an agent whose connection ended. The answer comes when none of its processes is left.",
        (("pid", "u32", "that it had; 0: not known"), ("zero", "u32", "")),
        (IDENTITY_NAME,),
    ),
    Message(
        "lost_reply",
        "REPLY",
        "guest",
        "",
        (("alive", "u32", "1: it runs"), ("signal", "u32", "that killed it, or 0")),
    ),
    Message(
        "renew",
        "OPEN",
        "host",
        "The new identity of a machine that was copied or slept. The guest sets parts in the order of their flags.",
        (
            ("parts", "u32", "PART"),
            ("online", "u32", "1: the machine has network access"),
            ("open_files", "u64", "of a process"),
            ("processes", "u64", ""),
            ("tmp_bytes", "u64", "of each directory that is memory"),
            ("clock", "u64", "nanoseconds since 1970"),
        ),
        (
            Field(1, "absent", "strings", 1 << 16, "absolute"),
            Field(2, "entropy", "bytes", 512, ""),
            Field(3, "hostname", "text", 64, ""),
            Field(4, "hosts", "text", 64, ""),
            Field(5, "mac_address", "bytes", 6, ""),
            Field(6, "machine_id", "text", 32, ""),
        ),
    ),
    Message(
        "share",
        "OPEN",
        "host",
        "A directory of the host's appears at `target`, unless it is there from before.",
        (("flags", "u32", "SHARE"), ("number", "u32", "by which its server knows it; below 256")),
        (Field(1, "target", "text", LIMITS["PATH"][0], "absolute"),),
    ),
    Message("renew_reply", "REPLY", "guest", "", (("done", "u32", "PART"), ("failed", "u32", "PART"))),
    Message(
        "trust",
        "OPEN",
        "host",
        "Certificates that programs trust in the gateway: a file at `place`, and at each of `systems` that exists.",
        (),
        (
            Field(1, "place", "text", LIMITS["PATH"][0], "absolute"),
            Field(2, "systems", "strings", 1 << 12, "absolute"),
            Field(3, "data", "bytes", 2 << 20, ""),
        ),
    ),
    Message("times_reply", "REPLY", "guest", "Of PAUSE, RESUME, TIMES and AWAKE.", _TIMES),
    Message(
        "hold",
        "OPEN",
        "host",
        "All but pid 1 stand still until the channel ends.",
        (("seconds", "u32", "at most"), ("zero", "u32", "")),
    ),
    Message(
        "pause_clock",
        "OPEN",
        "host",
        "Answered when it is otherwise than the host knows.",
        (("paused", "u32", "1: paused, as far as is known"), ("zero", "u32", "")),
    ),
    Message(
        "setup",
        "",
        "host",
        "To the spawner, first: what all jails have in common. Descriptors: namespaces to enter.",
        (("flags", "u32", "SETUP"), ("zero", "u32", ""), ("below_root", "u64", "what Landlock allows below the root")),
        (
            Field(1, "ids", "text", 256, "lines of the id maps of the agents' user namespace"),
            Field(2, "filter", "bytes", LIMITS["FILTER"][0], "instructions of seccomp(2) for agents and commands"),
            Field(3, "uncounted", "bytes", LIMITS["FILTER"][0], "one more, where System V IPC has its limits"),
            Field(4, "uncounted_ipc", "bytes", LIMITS["FILTER"][0], "one more, where it has none"),
            Field(5, "landlock", "bytes", 64, "struct landlock_ruleset_attr; empty: there is no Landlock to use"),
            Field(6, "rlimits", "u64s", 16 * 16, "resource and hard limit of each"),
            Field(7, "counts", "strings", 1024, "files below /proc and their values: limits of a user namespace"),
            Field(8, "ipc", "strings", 1024, "the same of an ipc namespace, which the kernel may refuse"),
            Field(
                9, "stage", "text", LIMITS["PATH"][0], "where `root`, `dev` and `proc` of a sandbox are mounted first"
            ),
            Field(10, "dev", "text", LIMITS["PATH"][0], "the devices of all sandboxes"),
            Field(
                11,
                "masks",
                "strings",
                2048,
                "files of /proc that are the whole machine's, and the file of `stage/told` over each",
            ),
        ),
    ),
    Message(
        "spawn",
        "",
        "host",
        "To the spawner: a new spare. Descriptors: its stream, its sockets, files to join control groups by.",
        (("flags", "u32", "SPAWN"), ("owner", "u32", "a uid")),
        (Field(1, "fault", "text", 32, "for tests: the step at which to fail, or with a `!` to die"),),
    ),
    Message("spawned", "", "guest", "", (("pid", "u32", "0: it failed"), ("errno", "u32", ""))),
    Message(
        "plan",
        "",
        "host",
        "To pid 1 of a jail: the sandbox that it becomes, with its mounts. Its deadline follows when it is written.",
        (
            ("flags", "u32", "PLAN"),
            ("uid", "u32", "of the default user"),
            ("gid", "u32", ""),
            ("root_uid", "u32", ""),
            ("root_gid", "u32", ""),
            ("zero", "u32", ""),
            ("grace", "u64", "nanoseconds after the deadline in which another one is still heard"),
            ("tmp_bytes", "u64", "of /tmp; /dev/shm has half of it"),
            ("inodes", "u64", "of each of them"),
        ),
        (
            Field(1, "rlimits", "u64s", 16 * 16, "resource and hard limit of each"),
            Field(2, "hostname", "text", 64, "empty: it has none of its own"),
            Field(3, "proc", "strings", 512, "files of /proc to mount over"),
            Field(4, "groups", "strings", 512, "directories of /sys to mount control groups on"),
        ),
    ),
    Message(
        "report",
        "",
        "guest",
        "From pid 1 of a jail and then from its first agent: it is ready, or it has failed and ends.",
        (("failed", "u32", "0 or 1"), ("errno", "u32", "of the failure; 0: a test asked for it")),
        (
            Field(1, "step", "text", 32, "at which it failed"),
            Field(2, "steps", "strings", 512, "that are done"),
            Field(3, "took", "u64s", 8 * 16, "nanoseconds of each"),
        ),
    ),
    Message("pause_clock_reply", "REPLY", "guest", "", (("paused", "u32", ""), ("zero", "u32", ""), *_TIMES)),
)
"""CLOSE, EOF, the order KILL, and replies that are not here have no body. DATA has bytes.
On the streams of CONNECT and ACCEPT nothing is sent before the REPLY."""
