"""The messages of a guest. Generated from native/schema.py by tools/schema.py."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from struct import Struct

from ._frames import Kind as Kind
from .message import Field, Message, Shape

VERSION = 5


class Stream(IntEnum):
    IN = 0
    OUT = 1
    ERR = 2


class Op(IntEnum):
    PING = 1
    EXEC = 16
    ATTACH = 17
    EXECS = 18
    SIGNAL = 19
    RESIZE = 20
    KILL = 21
    HAND = 22
    KEEP = 23
    ECHO = 32
    STAT = 33
    MKDIR = 34
    SET = 35
    REMOVE = 36
    MOVE = 37
    COPY = 38
    LIST = 39
    FIND = 40
    GREP = 41
    READ = 42
    WRITE = 43
    UPLOAD = 44
    DOWNLOAD = 45
    WATCH = 46
    CONNECT = 48
    ACCEPT = 49
    IDENTITY = 64
    BEGIN = 65
    DEADLINE = 66
    AGENT = 67
    LOST = 68
    PAUSE = 69
    RESUME = 70
    TIMES = 71
    HOLD = 72
    AWAKE = 73
    PAUSE_CLOCK = 74
    RENEW = 75
    TRUST = 76
    SHARE = 77


class Limit:
    BODY = 65536
    # Bytes of a body, but of OPEN.
    OPEN_BODY = 2162688
    # Bytes of the body of an OPEN: the kernel's 2 MiB of arguments and the rest.
    DESCRIPTORS = 4
    # Descriptors of a frame.
    CHANNELS = 256
    # Open channels of a connection.
    CONNECTIONS = 16
    # Connections of an agent.
    COMMANDS = 1024
    # Commands that an agent knows, ended ones among them.
    WINDOW = 262144
    # Bytes that each stream may carry before the first CREDIT.
    CREDIT = 67108864
    # Bytes that a sender may be allowed at one time.
    RING = 524288
    # Bytes of output that the guest holds for a foreground command, on each stream.
    BACKGROUND_RING = 16777216
    # Bytes of output that it keeps of a background command, on each stream.
    RINGS = 268435456
    # Bytes of all rings together; when they are used up, a command gets the ring of a foreground one.
    HELPERS = 64
    # File operations and kills at one time.
    RELAYS = 128
    # Connections to ports and from unix sockets at one time, awaited ones among them.
    RELAY_SOCKETS = 8
    # Unix sockets on which connections are awaited.
    RELAY_PATH = 100
    # Bytes of the path of such a socket.
    ID = 64
    # Bytes of a command's id.
    PATH = 4095
    # Bytes of a path.
    SHOWN = 1024
    # Bytes of a command's arguments in a list.
    NAME = 32
    # Bytes of an identity's name.
    IDENTITIES = 4
    # Identities of a sandbox.
    FILTER = 32768
    # Bytes of a program for seccomp(2).
    HOLD = 600
    # Seconds for which all may be held still.


class ExecFlags(IntFlag):
    STDIN = 1
    TERMINAL = 2
    BACKGROUND = 4
    IDENTITY = 8
    CGROUP = 16
    VITAL = 32
    OOM = 64


class AttachFlags(IntFlag):
    OUT = 1
    ERR = 2
    NOW = 4


class AttachedFlags(IntFlag):
    TERMINAL = 1
    STDIN = 2


class EndedFlags(IntFlag):
    TIME = 1
    OUT_OPEN = 2
    ERR_OPEN = 4
    UNDRAINED = 8
    MEMORY = 16
    PROCESSES = 32
    DISK = 64
    INODES = 128


class StatFlags(IntFlag):
    FOLLOW = 1


class MkdirFlags(IntFlag):
    PARENTS = 1
    MODE = 2


class SetFlags(IntFlag):
    MODE = 1
    UID = 2
    GID = 4
    MODIFIED = 8


class RemoveFlags(IntFlag):
    RECURSIVE = 1
    MISSING_OK = 2


class WriteFlags(IntFlag):
    MODE = 1
    APPEND = 2


class UploadFlags(IntFlag):
    EXACT = 1


class DownloadFlags(IntFlag):
    WHOLE = 1


class WatchFlags(IntFlag):
    RECURSIVE = 1


class WalkedFlags(IntFlag):
    TRUNCATED = 1


class IdentityFlags(IntFlag):
    EAGER = 1
    ATTENDING = 2
    TELLS = 4


class PartFlags(IntFlag):
    ABSENT = 1
    ENTROPY = 2
    HOSTNAME = 4
    HOSTS = 8
    LIMITS = 16
    MAC_ADDRESS = 32
    MACHINE_ID = 64
    NETWORK = 128
    CLOCK = 256


class ShareFlags(IntFlag):
    WRITABLE = 1


class ListedFlags(IntFlag):
    BACKGROUND = 1
    ENDED = 2


class SetupFlags(IntFlag):
    WHOLE = 1
    SHARED = 2


class SpawnFlags(IntFlag):
    CGROUP = 1
    OWNED = 2


class PlanFlags(IntFlag):
    FRAIL = 1
    UNCOUNTED = 2
    HOST_USR = 4
    OWN_DEV = 8


class HostHello(Message):
    """First on a connection."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("version",),
        ((4, 8),),
        (),
    )

    def __init__(
        self,
        version: int = 0,
    ) -> None:
        self.version = version


class GuestHello(Message):
    """First on a connection. A host of another version closes it."""

    SHAPE = Shape(
        Struct("<II"),
        ("version", "pid"),
        (),
        (Field(1, "build", "text", 64),),
    )

    def __init__(
        self,
        version: int = 0,
        pid: int = 0,
        build: bytes = b"",
    ) -> None:
        self.version = version
        self.pid = pid
        self.build = build


class PingReply(Message):
    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("pid",),
        ((4, 8),),
        (),
    )

    def __init__(
        self,
        pid: int = 0,
    ) -> None:
        self.pid = pid


class Error(Message):
    """The last word on a channel."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("errno",),
        ((4, 8),),
        (
            Field(1, "step", "text", 32),
            Field(2, "detail", "text", 256),
        ),
    )

    def __init__(
        self,
        errno: int = 0,
        step: bytes = b"",
        detail: bytes = b"",
    ) -> None:
        self.errno = errno
        self.step = step
        self.detail = detail


class Credit(Message):
    """May be sent on this stream beyond what was allowed."""

    SHAPE = Shape(
        Struct("<I"),
        ("bytes",),
        (),
        (),
    )

    def __init__(
        self,
        bytes: int = 0,
    ) -> None:
        self.bytes = bytes


class Exec(Message):
    """Starts a command. Descriptors: input if STDIN, output, error; or input; or none. Streams carry the others."""

    SHAPE = Shape(
        Struct("<IIIiHHIQ"),
        ("flags", "uid", "gid", "oom_score", "rows", "columns", "umask", "timeout"),
        (),
        (
            Field(1, "id", "text", 64),
            Field(2, "argv", "strings", 2097152),
            Field(3, "env", "strings", 2097152),
            Field(4, "cwd", "text", 4095),
            Field(5, "groups", "u32s", 256),
            Field(6, "rlimits", "u64s", 384),
        ),
    )

    def __init__(
        self,
        flags: int = 0,
        uid: int = 0,
        gid: int = 0,
        oom_score: int = 0,
        rows: int = 0,
        columns: int = 0,
        umask: int = 0,
        timeout: int = 0,
        id: bytes = b"",
        argv: tuple[bytes, ...] = (),
        env: tuple[bytes, ...] = (),
        cwd: bytes = b"",
        groups: tuple[int, ...] = (),
        rlimits: tuple[int, ...] = (),
    ) -> None:
        self.flags = flags
        self.uid = uid
        self.gid = gid
        self.oom_score = oom_score
        self.rows = rows
        self.columns = columns
        self.umask = umask
        self.timeout = timeout
        self.id = id
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.groups = groups
        self.rlimits = rlimits


class ExecReply(Message):
    """It runs."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("pid",),
        ((4, 8),),
        (),
    )

    def __init__(
        self,
        pid: int = 0,
    ) -> None:
        self.pid = pid


class Exit(Message):
    """Its main process has ended."""

    SHAPE = Shape(
        Struct("<iIIxxxxQ"),
        ("code", "signal", "ended", "duration"),
        ((12, 16),),
        (),
    )

    def __init__(
        self,
        code: int = 0,
        signal: int = 0,
        ended: int = 0,
        duration: int = 0,
    ) -> None:
        self.code = code
        self.signal = signal
        self.ended = ended
        self.duration = duration


class Attach(Message):
    """Follows a background command to its end, or goes on with one that is kept."""

    SHAPE = Shape(
        Struct("<IxxxxQQ"),
        ("flags", "out", "err"),
        ((4, 8),),
        (Field(1, "id", "text", 64),),
    )

    def __init__(
        self,
        flags: int = 0,
        out: int = 0,
        err: int = 0,
        id: bytes = b"",
    ) -> None:
        self.flags = flags
        self.out = out
        self.err = err
        self.id = id


class AttachReply(Message):
    """The offset of the first byte on each stream. If it is above the requested one, the guest has dropped bytes."""

    SHAPE = Shape(
        Struct("<IIQQQ"),
        ("pid", "flags", "out", "err", "input"),
        (),
        (),
    )

    def __init__(
        self,
        pid: int = 0,
        flags: int = 0,
        out: int = 0,
        err: int = 0,
        input: int = 0,
    ) -> None:
        self.pid = pid
        self.flags = flags
        self.out = out
        self.err = err
        self.input = input


class Execs(Message):
    """Lists running commands, and background commands that have ended, the newest first."""

    SHAPE = Shape(
        Struct("<Q"),
        ("before",),
        (),
        (),
    )

    def __init__(
        self,
        before: int = 0,
    ) -> None:
        self.before = before


class Listed(Message):
    """A row of `execs_reply`."""

    SHAPE = Shape(
        Struct("<QQIIiIIxxxxQ"),
        ("number", "started", "pid", "flags", "code", "signal", "ended", "duration"),
        ((36, 40),),
        (
            Field(1, "id", "text", 64),
            Field(2, "argv", "strings", 1024),
        ),
    )

    def __init__(
        self,
        number: int = 0,
        started: int = 0,
        pid: int = 0,
        flags: int = 0,
        code: int = 0,
        signal: int = 0,
        ended: int = 0,
        duration: int = 0,
        id: bytes = b"",
        argv: tuple[bytes, ...] = (),
    ) -> None:
        self.number = number
        self.started = started
        self.pid = pid
        self.flags = flags
        self.code = code
        self.signal = signal
        self.ended = ended
        self.duration = duration
        self.id = id
        self.argv = argv


class Signal(Message):
    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("number",),
        ((4, 8),),
        (Field(1, "id", "text", 64),),
    )

    def __init__(
        self,
        number: int = 0,
        id: bytes = b"",
    ) -> None:
        self.number = number
        self.id = id


class Resize(Message):
    SHAPE = Shape(
        Struct("<HHxxxx"),
        ("rows", "columns"),
        ((4, 8),),
        (Field(1, "id", "text", 64),),
    )

    def __init__(
        self,
        rows: int = 0,
        columns: int = 0,
        id: bytes = b"",
    ) -> None:
        self.rows = rows
        self.columns = columns
        self.id = id


class Keep(Message):
    """A command of the foreground lives on when its connection ends. Its channel is the host's to close."""

    SHAPE = Shape(
        Struct("<Q"),
        ("timeout",),
        (),
        (Field(1, "id", "text", 64),),
    )

    def __init__(
        self,
        timeout: int = 0,
        id: bytes = b"",
    ) -> None:
        self.timeout = timeout
        self.id = id


class Kill(Message):
    """Ends a command and all that it has started."""

    SHAPE = Shape(
        Struct("<"),
        (),
        (),
        (Field(1, "id", "text", 64),),
    )

    def __init__(
        self,
        id: bytes = b"",
    ) -> None:
        self.id = id


class KillReply(Message):
    """When all are gone."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("survivors",),
        ((4, 8),),
        (),
    )

    def __init__(
        self,
        survivors: int = 0,
    ) -> None:
        self.survivors = survivors


class File(Message):
    """The object behind a name: of STAT, MKDIR, SET; a row of LIST and FIND; the EXIT of MOVE, COPY, WRITE, UPLOAD."""

    SHAPE = Shape(
        Struct("<IIIIQq"),
        ("kind", "mode", "uid", "gid", "size", "modified"),
        (),
        (
            Field(1, "path", "text", 4095),
            Field(2, "target", "text", 4095),
        ),
    )

    def __init__(
        self,
        kind: int = 0,
        mode: int = 0,
        uid: int = 0,
        gid: int = 0,
        size: int = 0,
        modified: int = 0,
        path: bytes = b"",
        target: bytes = b"",
    ) -> None:
        self.kind = kind
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.size = size
        self.modified = modified
        self.path = path
        self.target = target


class Stat(Message):
    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("flags",),
        ((4, 8),),
        (Field(1, "path", "text", 4095),),
    )

    def __init__(
        self,
        flags: int = 0,
        path: bytes = b"",
    ) -> None:
        self.flags = flags
        self.path = path


class Mkdir(Message):
    SHAPE = Shape(
        Struct("<II"),
        ("flags", "mode"),
        (),
        (Field(1, "path", "text", 4095),),
    )

    def __init__(
        self,
        flags: int = 0,
        mode: int = 0,
        path: bytes = b"",
    ) -> None:
        self.flags = flags
        self.mode = mode
        self.path = path


class Set(Message):
    """Attributes. Of a symbolic link the owner is its own; mode and time are of what it leads to."""

    SHAPE = Shape(
        Struct("<IIIIq"),
        ("flags", "mode", "uid", "gid", "modified"),
        (),
        (Field(1, "path", "text", 4095),),
    )

    def __init__(
        self,
        flags: int = 0,
        mode: int = 0,
        uid: int = 0,
        gid: int = 0,
        modified: int = 0,
        path: bytes = b"",
    ) -> None:
        self.flags = flags
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.modified = modified
        self.path = path


class Remove(Message):
    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("flags",),
        ((4, 8),),
        (Field(1, "path", "text", 4095),),
    )

    def __init__(
        self,
        flags: int = 0,
        path: bytes = b"",
    ) -> None:
        self.flags = flags
        self.path = path


class Move(Message):
    """Renames; between file systems, copies and removes."""

    SHAPE = Shape(
        Struct("<"),
        (),
        (),
        (
            Field(1, "source", "text", 4095),
            Field(2, "destination", "text", 4095),
        ),
    )

    def __init__(
        self,
        source: bytes = b"",
        destination: bytes = b"",
    ) -> None:
        self.source = source
        self.destination = destination


class Copy(Message):
    """With all that is in it, links as links."""

    SHAPE = Shape(
        Struct("<"),
        (),
        (),
        (
            Field(1, "source", "text", 4095),
            Field(2, "destination", "text", 4095),
        ),
    )

    def __init__(
        self,
        source: bytes = b"",
        destination: bytes = b"",
    ) -> None:
        self.source = source
        self.destination = destination


class List(Message):
    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("depth",),
        ((4, 8),),
        (Field(1, "path", "text", 4095),),
    )

    def __init__(
        self,
        depth: int = 0,
        path: bytes = b"",
    ) -> None:
        self.depth = depth
        self.path = path


class Find(Message):
    """Rows of those below `path` whose name matches."""

    SHAPE = Shape(
        Struct("<Q"),
        ("limit",),
        (),
        (
            Field(1, "path", "text", 4095),
            Field(2, "name", "text", 4095),
        ),
    )

    def __init__(
        self,
        limit: int = 0,
        path: bytes = b"",
        name: bytes = b"",
    ) -> None:
        self.limit = limit
        self.path = path
        self.name = name


class Grep(Message):
    """Rows of the lines that hold a match, in files whose name matches. Binary files are passed over."""

    SHAPE = Shape(
        Struct("<Q"),
        ("limit",),
        (),
        (
            Field(1, "path", "text", 4095),
            Field(2, "name", "text", 4095),
            Field(3, "steps", "u32s", 49152),
            Field(4, "ranges", "u32s", 32768),
            Field(5, "literal", "bytes", 64),
            Field(6, "begins", "u32s", 32),
        ),
    )

    def __init__(
        self,
        limit: int = 0,
        path: bytes = b"",
        name: bytes = b"",
        steps: tuple[int, ...] = (),
        ranges: tuple[int, ...] = (),
        literal: bytes = b"",
        begins: tuple[int, ...] = (),
    ) -> None:
        self.limit = limit
        self.path = path
        self.name = name
        self.steps = steps
        self.ranges = ranges
        self.literal = literal
        self.begins = begins


class Match(Message):
    """A row of `grep`."""

    SHAPE = Shape(
        Struct("<Q"),
        ("line_number",),
        (),
        (
            Field(1, "path", "text", 4095),
            Field(2, "line", "bytes", 8192),
        ),
    )

    def __init__(
        self,
        line_number: int = 0,
        path: bytes = b"",
        line: bytes = b"",
    ) -> None:
        self.line_number = line_number
        self.path = path
        self.line = line


class Walked(Message):
    """Of LIST, FIND, GREP, DOWNLOAD."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("flags",),
        ((4, 8),),
        (),
    )

    def __init__(
        self,
        flags: int = 0,
    ) -> None:
        self.flags = flags


class Read(Message):
    """A file's bytes, on stream 1."""

    SHAPE = Shape(
        Struct("<QQ"),
        ("offset", "length"),
        (),
        (Field(1, "path", "text", 4095),),
    )

    def __init__(
        self,
        offset: int = 0,
        length: int = 0,
        path: bytes = b"",
    ) -> None:
        self.offset = offset
        self.length = length
        self.path = path


class ReadReply(Message):
    SHAPE = Shape(
        Struct("<Q"),
        ("size",),
        (),
        (),
    )

    def __init__(
        self,
        size: int = 0,
    ) -> None:
        self.size = size


class Write(Message):
    """A file's new bytes, on stream 0: they replace the old ones at once, when EOF has come. Makes missing parents."""

    SHAPE = Shape(
        Struct("<II"),
        ("flags", "mode"),
        (),
        (Field(1, "path", "text", 4095),),
    )

    def __init__(
        self,
        flags: int = 0,
        mode: int = 0,
        path: bytes = b"",
    ) -> None:
        self.flags = flags
        self.mode = mode
        self.path = path


class Upload(Message):
    """A tar archive, on stream 0, to be unpacked below `path`."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("flags",),
        ((4, 8),),
        (
            Field(1, "path", "text", 4095),
            Field(2, "left_out", "strings", 65536),
            Field(3, "owner", "u32s", 8),
        ),
    )

    def __init__(
        self,
        flags: int = 0,
        path: bytes = b"",
        left_out: tuple[bytes, ...] = (),
        owner: tuple[int, ...] = (),
    ) -> None:
        self.flags = flags
        self.path = path
        self.left_out = left_out
        self.owner = owner


class Download(Message):
    """What is below `path`, as a tar archive on stream 1."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("flags",),
        ((4, 8),),
        (
            Field(1, "path", "text", 4095),
            Field(2, "left_out", "strings", 65536),
        ),
    )

    def __init__(
        self,
        flags: int = 0,
        path: bytes = b"",
        left_out: tuple[bytes, ...] = (),
    ) -> None:
        self.flags = flags
        self.path = path
        self.left_out = left_out


class Watch(Message):
    """Rows of changes. Nothing that happens after the REPLY is missed."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("flags",),
        ((4, 8),),
        (Field(1, "path", "text", 4095),),
    )

    def __init__(
        self,
        flags: int = 0,
        path: bytes = b"",
    ) -> None:
        self.flags = flags
        self.path = path


class Change(Message):
    """A row of `watch`."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("kind",),
        ((4, 8),),
        (Field(1, "path", "text", 4095),),
    )

    def __init__(
        self,
        kind: int = 0,
        path: bytes = b"",
    ) -> None:
        self.kind = kind
        self.path = path


class Connect(Message):
    """A TCP connection to a port of the own loopback: stream 0 to it, stream 1 from it. REPLY: it is made."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("port",),
        ((4, 8),),
        (),
    )

    def __init__(
        self,
        port: int = 0,
    ) -> None:
        self.port = port


class Accept(Message):
    """The next connection to the unix socket at `path`, which is there meanwhile. REPLY: it is made."""

    SHAPE = Shape(
        Struct("<"),
        (),
        (),
        (Field(1, "path", "text", 100),),
    )

    def __init__(
        self,
        path: bytes = b"",
    ) -> None:
        self.path = path


class Hand(Message):
    """Passes the descriptors on, with a text, to the abstract datagram socket of that name."""

    SHAPE = Shape(
        Struct("<"),
        (),
        (),
        (
            Field(1, "name", "text", 64),
            Field(2, "text", "text", 64),
        ),
    )

    def __init__(
        self,
        name: bytes = b"",
        text: bytes = b"",
    ) -> None:
        self.name = name
        self.text = text


class Identity(Message):
    """To pid 1 before BEGIN: an agent that it is to start, and (a descriptor) the socket on which that serves."""

    SHAPE = Shape(
        Struct("<IIIxxxx"),
        ("flags", "uid", "gid"),
        ((12, 16),),
        (
            Field(1, "name", "text", 32),
            Field(2, "groups", "u32s", 256),
            Field(3, "filter", "bytes", 32768),
        ),
    )

    def __init__(
        self,
        flags: int = 0,
        uid: int = 0,
        gid: int = 0,
        name: bytes = b"",
        groups: tuple[int, ...] = (),
        filter: bytes = b"",
    ) -> None:
        self.flags = flags
        self.uid = uid
        self.gid = gid
        self.name = name
        self.groups = groups
        self.filter = filter


class Begin(Message):
    """The last of the first orders. The descriptor is the socket for further ones."""

    SHAPE = Shape(
        Struct("<QQQ"),
        ("deadline", "idle", "retention"),
        (),
        (Field(1, "rlimits", "u64s", 256),),
    )

    def __init__(
        self,
        deadline: int = 0,
        idle: int = 0,
        retention: int = 0,
        rlimits: tuple[int, ...] = (),
    ) -> None:
        self.deadline = deadline
        self.idle = idle
        self.retention = retention
        self.rlimits = rlimits


class Deadline(Message):
    """Moves it."""

    SHAPE = Shape(
        Struct("<Q"),
        ("deadline",),
        (),
        (),
    )

    def __init__(
        self,
        deadline: int = 0,
    ) -> None:
        self.deadline = deadline


class Agent(Message):
    """Asks after the agent of an identity."""

    SHAPE = Shape(
        Struct("<"),
        (),
        (),
        (Field(1, "name", "text", 32),),
    )

    def __init__(
        self,
        name: bytes = b"",
    ) -> None:
        self.name = name


class AgentReply(Message):
    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("pid",),
        ((4, 8),),
        (),
    )

    def __init__(
        self,
        pid: int = 0,
    ) -> None:
        self.pid = pid


class Lost(Message):
    """Asks for the end of an agent whose connection ended. The answer comes when none of its processes is left."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("pid",),
        ((4, 8),),
        (Field(1, "name", "text", 32),),
    )

    def __init__(
        self,
        pid: int = 0,
        name: bytes = b"",
    ) -> None:
        self.pid = pid
        self.name = name


class LostReply(Message):
    SHAPE = Shape(
        Struct("<II"),
        ("alive", "signal"),
        (),
        (),
    )

    def __init__(
        self,
        alive: int = 0,
        signal: int = 0,
    ) -> None:
        self.alive = alive
        self.signal = signal


class Renew(Message):
    """The new identity of a machine that was copied or slept. The guest sets parts in the order of their flags."""

    SHAPE = Shape(
        Struct("<IIQQQQ"),
        ("parts", "online", "open_files", "processes", "tmp_bytes", "clock"),
        (),
        (
            Field(1, "absent", "strings", 65536),
            Field(2, "entropy", "bytes", 512),
            Field(3, "hostname", "text", 64),
            Field(4, "hosts", "text", 64),
            Field(5, "mac_address", "bytes", 6),
            Field(6, "machine_id", "text", 32),
        ),
    )

    def __init__(
        self,
        parts: int = 0,
        online: int = 0,
        open_files: int = 0,
        processes: int = 0,
        tmp_bytes: int = 0,
        clock: int = 0,
        absent: tuple[bytes, ...] = (),
        entropy: bytes = b"",
        hostname: bytes = b"",
        hosts: bytes = b"",
        mac_address: bytes = b"",
        machine_id: bytes = b"",
    ) -> None:
        self.parts = parts
        self.online = online
        self.open_files = open_files
        self.processes = processes
        self.tmp_bytes = tmp_bytes
        self.clock = clock
        self.absent = absent
        self.entropy = entropy
        self.hostname = hostname
        self.hosts = hosts
        self.mac_address = mac_address
        self.machine_id = machine_id


class Share(Message):
    """A directory of the host's appears at `target`, unless it is there from before."""

    SHAPE = Shape(
        Struct("<II"),
        ("flags", "number"),
        (),
        (Field(1, "target", "text", 4095),),
    )

    def __init__(
        self,
        flags: int = 0,
        number: int = 0,
        target: bytes = b"",
    ) -> None:
        self.flags = flags
        self.number = number
        self.target = target


class RenewReply(Message):
    SHAPE = Shape(
        Struct("<II"),
        ("done", "failed"),
        (),
        (),
    )

    def __init__(
        self,
        done: int = 0,
        failed: int = 0,
    ) -> None:
        self.done = done
        self.failed = failed


class Trust(Message):
    """Certificates that programs trust in the gateway: a file at `place`, and at each of `systems` that exists."""

    SHAPE = Shape(
        Struct("<"),
        (),
        (),
        (
            Field(1, "place", "text", 4095),
            Field(2, "systems", "strings", 4096),
            Field(3, "data", "bytes", 2097152),
        ),
    )

    def __init__(
        self,
        place: bytes = b"",
        systems: tuple[bytes, ...] = (),
        data: bytes = b"",
    ) -> None:
        self.place = place
        self.systems = systems
        self.data = data


class TimesReply(Message):
    """Of PAUSE, RESUME, TIMES and AWAKE."""

    SHAPE = Shape(
        Struct("<QQ"),
        ("left", "deadline"),
        (),
        (),
    )

    def __init__(
        self,
        left: int = 0,
        deadline: int = 0,
    ) -> None:
        self.left = left
        self.deadline = deadline


class Hold(Message):
    """All but pid 1 stand still until the channel ends."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("seconds",),
        ((4, 8),),
        (),
    )

    def __init__(
        self,
        seconds: int = 0,
    ) -> None:
        self.seconds = seconds


class PauseClock(Message):
    """Answered when it is otherwise than the host knows."""

    SHAPE = Shape(
        Struct("<Ixxxx"),
        ("paused",),
        ((4, 8),),
        (),
    )

    def __init__(
        self,
        paused: int = 0,
    ) -> None:
        self.paused = paused


class Setup(Message):
    """To the spawner, first: what all jails have in common. Descriptors: namespaces to enter."""

    SHAPE = Shape(
        Struct("<IxxxxQ"),
        ("flags", "below_root"),
        ((4, 8),),
        (
            Field(1, "ids", "text", 256),
            Field(2, "filter", "bytes", 32768),
            Field(3, "uncounted", "bytes", 32768),
            Field(4, "uncounted_ipc", "bytes", 32768),
            Field(5, "landlock", "bytes", 64),
            Field(6, "rlimits", "u64s", 256),
            Field(7, "counts", "strings", 1024),
            Field(8, "ipc", "strings", 1024),
            Field(9, "stage", "text", 4095),
            Field(10, "dev", "text", 4095),
            Field(11, "masks", "strings", 2048),
        ),
    )

    def __init__(
        self,
        flags: int = 0,
        below_root: int = 0,
        ids: bytes = b"",
        filter: bytes = b"",
        uncounted: bytes = b"",
        uncounted_ipc: bytes = b"",
        landlock: bytes = b"",
        rlimits: tuple[int, ...] = (),
        counts: tuple[bytes, ...] = (),
        ipc: tuple[bytes, ...] = (),
        stage: bytes = b"",
        dev: bytes = b"",
        masks: tuple[bytes, ...] = (),
    ) -> None:
        self.flags = flags
        self.below_root = below_root
        self.ids = ids
        self.filter = filter
        self.uncounted = uncounted
        self.uncounted_ipc = uncounted_ipc
        self.landlock = landlock
        self.rlimits = rlimits
        self.counts = counts
        self.ipc = ipc
        self.stage = stage
        self.dev = dev
        self.masks = masks


class Spawn(Message):
    """To the spawner: a new spare. Descriptors: its stream, its sockets, files to join control groups by."""

    SHAPE = Shape(
        Struct("<II"),
        ("flags", "owner"),
        (),
        (Field(1, "fault", "text", 32),),
    )

    def __init__(
        self,
        flags: int = 0,
        owner: int = 0,
        fault: bytes = b"",
    ) -> None:
        self.flags = flags
        self.owner = owner
        self.fault = fault


class Spawned(Message):
    SHAPE = Shape(
        Struct("<II"),
        ("pid", "errno"),
        (),
        (),
    )

    def __init__(
        self,
        pid: int = 0,
        errno: int = 0,
    ) -> None:
        self.pid = pid
        self.errno = errno


class Plan(Message):
    """To pid 1 of a jail: the sandbox that it becomes, with its mounts. Its deadline follows when it is written."""

    SHAPE = Shape(
        Struct("<IIIIIxxxxQQQ"),
        ("flags", "uid", "gid", "root_uid", "root_gid", "grace", "tmp_bytes", "inodes"),
        ((20, 24),),
        (
            Field(1, "rlimits", "u64s", 256),
            Field(2, "hostname", "text", 64),
            Field(3, "proc", "strings", 512),
            Field(4, "groups", "strings", 512),
        ),
    )

    def __init__(
        self,
        flags: int = 0,
        uid: int = 0,
        gid: int = 0,
        root_uid: int = 0,
        root_gid: int = 0,
        grace: int = 0,
        tmp_bytes: int = 0,
        inodes: int = 0,
        rlimits: tuple[int, ...] = (),
        hostname: bytes = b"",
        proc: tuple[bytes, ...] = (),
        groups: tuple[bytes, ...] = (),
    ) -> None:
        self.flags = flags
        self.uid = uid
        self.gid = gid
        self.root_uid = root_uid
        self.root_gid = root_gid
        self.grace = grace
        self.tmp_bytes = tmp_bytes
        self.inodes = inodes
        self.rlimits = rlimits
        self.hostname = hostname
        self.proc = proc
        self.groups = groups


class Report(Message):
    """From pid 1 of a jail and then from its first agent: it is ready, or it has failed and ends."""

    SHAPE = Shape(
        Struct("<II"),
        ("failed", "errno"),
        (),
        (
            Field(1, "step", "text", 32),
            Field(2, "steps", "strings", 512),
            Field(3, "took", "u64s", 128),
        ),
    )

    def __init__(
        self,
        failed: int = 0,
        errno: int = 0,
        step: bytes = b"",
        steps: tuple[bytes, ...] = (),
        took: tuple[int, ...] = (),
    ) -> None:
        self.failed = failed
        self.errno = errno
        self.step = step
        self.steps = steps
        self.took = took


class PauseClockReply(Message):
    SHAPE = Shape(
        Struct("<IxxxxQQ"),
        ("paused", "left", "deadline"),
        ((4, 8),),
        (),
    )

    def __init__(
        self,
        paused: int = 0,
        left: int = 0,
        deadline: int = 0,
    ) -> None:
        self.paused = paused
        self.left = left
        self.deadline = deadline


class ExecsReply(Message):
    SHAPE = Shape(
        Struct("<Q"),
        ("before",),
        (),
        (Field(1, "execs", "rows", 65536, Listed),),
    )

    def __init__(
        self,
        before: int = 0,
        execs: tuple[Listed, ...] = (),
    ) -> None:
        self.before = before
        self.execs = execs
