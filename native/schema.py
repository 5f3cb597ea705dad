"""What host and guest say to each other: plain data, the only place where it is written.

`tools/schema.py` writes `native/schema.h`, `src/paddock/wire/guest.py` and `docs/design/guest-messages.md` from it.

A body is the fixed numbers of its message, packed and little-endian, then fields: u16 tag, u16 0, u32 length, bytes,
zeros up to a multiple of 8. Fields come in the order of their tags; an absent field is an empty one. There is one
encoding of a message: whatever else arrives is an error.
"""

from __future__ import annotations

from typing import NamedTuple

VERSION = 3

KINDS = {
    "HELLO": 1, "OPEN": 2, "REPLY": 3, "ERROR": 4, "DATA": 5,
    "EOF": 6, "CREDIT": 7, "CONTROL": 8, "EXIT": 9, "CLOSE": 10,
}  # fmt: skip
STREAMS = {"IN": 0, "OUT": 1, "ERR": 2}
"""The `code` of DATA, EOF and CREDIT. IN is into the sandbox."""
OPS = {
    "PING": 1,
    "EXEC": 16, "ATTACH": 17, "EXECS": 18, "SIGNAL": 19, "RESIZE": 20, "KILL": 21,
    "ECHO": 32,
}  # fmt: skip
"""The `code` of OPEN."""
ORDERS = {"SIGNAL": 1, "RESIZE": 2, "KILL": 3}
"""The `code` of CONTROL."""

LIMITS = {
    "BODY": (1 << 16, "bytes of a body, but of OPEN"),
    "OPEN_BODY": ((2 << 20) + (1 << 16), "bytes of the body of an OPEN: the kernel's 2 MiB of arguments and the rest"),
    "DESCRIPTORS": (4, "descriptors of a frame"),
    "CHANNELS": (256, "open channels of a connection"),
    "CONNECTIONS": (16, "connections of an agent"),
    "COMMANDS": (1024, "commands that an agent knows, ended ones among them"),
    "WINDOW": (1 << 18, "bytes that each stream may carry before the first CREDIT"),
    "CREDIT": (1 << 26, "bytes that a sender may be allowed at one time"),
    "RING": (1 << 18, "bytes of output that the guest holds for a foreground command, on each stream"),
    "BACKGROUND_RING": (1 << 24, "bytes of output that it keeps of a background command, on each stream"),
    "RINGS": (1 << 28, "bytes of them all; what is asked for beyond gets a ring of a foreground command"),
    "HELPERS": (64, "file operations and kills at one time"),
    "ID": (64, "bytes of a command's id"),
    "PATH": (4095, "bytes of a path"),
    "SHOWN": (1024, "bytes of a command's arguments in a list"),
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
        "TERMINAL": (2, "a terminal of its own, with `rows` and `columns`"),
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
    "ENDED": {
        "TIME": (1, "killed when its time was over"),
        "OUT_OPEN": (2, "somebody else still holds its output: what comes later is lost"),
        "ERR_OPEN": (4, "the same of standard error"),
        "UNDRAINED": (8, "output follows this EXIT: the host has not read it yet"),
    },
    "LISTED": {"BACKGROUND": (1, ""), "ENDED": (2, "`code` to `duration` are set")},
}

ID = Field(1, "id", "text", LIMITS["ID"][0], "of the command")
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
        "Starts a command. Descriptors: standard input if STDIN, output, error; or none, and the streams carry them.",
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
        "Follows a background command to its end.",
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
        "What comes first on each stream. More than asked for: what is between is not kept any more.",
        (("pid", "u32", ""), ("zero", "u32", ""), ("out", "u64", "offset"), ("err", "u64", "offset")),
    ),
    Message(
        "execs",
        "OPEN",
        "host",
        "What runs, and background commands that have ended, the newest first.",
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
    Message("kill", "OPEN", "host", "Ends a command and all that it has started.", (), (ID,)),
    Message(
        "kill_reply",
        "REPLY",
        "guest",
        "When all are gone.",
        (("survivors", "u32", "not killable"), ("zero", "u32", "")),
    ),
    Message("signal_order", "CONTROL", "host", "", (("number", "u32", ""), ("zero", "u32", ""))),
    Message("resize_order", "CONTROL", "host", "", (("rows", "u16", ""), ("columns", "u16", ""), ("zero", "u32", ""))),
)
"""CLOSE, EOF, the order KILL, and replies that are not here have no body. DATA has bytes."""
