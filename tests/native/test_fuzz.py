"""libFuzzer on whatever reads bytes of a peer."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest

from paddock.backends.guest._regex import compile_pattern
from paddock.wire import guest as messages
from paddock.wire.guest import ExecFlags, Kind, Op
from tests.native.driver import ROOT, build_module, frame
from tests.native.test_archives import END, FILE, HOSTILE, hard, header, link, member, octal, pax, record, tar
from tests.native.test_protocol import CONVERSATION

RUNS = 10_000


def sample(format: int) -> bytes:
    parts = (member("d" * 150, b"2"), link("l", "a" * 120), hard("h", "d" * 150), member("\u00fc", mtime=-5))
    return tar(*parts, format=format)


def pattern(pattern: str, text: str) -> bytes:
    """What fuzz/regex.c reads."""
    program = compile_pattern(pattern)
    fields = (
        program_bytes(program.steps),
        program_bytes(program.ranges),
        program.literal,
        program_bytes(program.begins),
    )
    return struct.pack("<4H", *map(len, fields)) + b"".join(fields) + text.encode("utf-8", "surrogateescape")


def program_bytes(numbers: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def broken_program(*sizes: int, words: tuple[int, ...] = ()) -> bytes:
    """The same, and wrong."""
    return struct.pack("<4H", *sizes) + program_bytes(words) + bytes(max(0, sum(sizes) - 4 * len(words)))


def operation(op: Op, request: messages.Message | None, stream: bytes = b"") -> bytes:
    """What fuzz/operations.c reads: the operation, whether EOF is said, its request, what comes on stream 0."""
    body = request.pack() if request else b""
    return bytes((op, 1)) + len(body).to_bytes(2, "little") + body + stream


def steps(*requests: tuple[Op, messages.Message | None], then: bytes = b"") -> bytes:
    """What fuzz/requests.c reads: a host opens a channel for each request, and goes on."""
    return b"".join(step(Kind.OPEN, op, 0, request.pack() if request else b"") for op, request in requests) + then


def step(kind: Kind, code: int = 0, channel: int = 0, body: bytes = b"", given: int = 0) -> bytes:
    assert len(body) % 2 == 0
    return bytes((kind, code, channel, given, len(body) // 2)) + body


def command(**more: Any) -> tuple[Op, messages.Message]:
    return Op.EXEC, messages.Exec(**{"id": b"a", "argv": (b"guest", b"-x"), "env": (b"PATH=/",), "cwd": b"/", **more})


def given(request: tuple[Op, messages.Message]) -> bytes:
    """An order of fuzz/orders.c with a listening socket."""
    return step(Kind.OPEN, request[0], 0, request[1].pack(), 1)


IDENTITY = Op.IDENTITY, messages.Identity(name=b"user", uid=1000, gid=1000, flags=messages.IdentityFlags.EAGER)
CALLED = Op.IDENTITY, messages.Identity(name=b"root")
BEGIN = Op.BEGIN, messages.Begin(deadline=1 << 62, retention=1 << 62)
CALL = bytes(5)
"""Where fuzz/orders.c calls that socket."""
EXACT = tar(member("top/", type=tarfile.DIRTYPE), member("top/e", b"in place of a directory"), link("top/l", "f"))
SIGNED = bytearray(header(b"f", at200=b"\xff" * 50))
SIGNED[148:156] = b"%06o\0 " % (sum(SIGNED[:148]) + sum(SIGNED[156:]) + 8 * 32 - 256 * 50)
TARS: list[bytes] = [
    header(b"f", at100=b" " * 8) + END,
    header(b"f", at100=b"00006444") + END,
    SIGNED + END,
    pax(record(b"mtime", b"1.55")) + FILE + END,
    pax(b"6 abc\n") + FILE + END,
    header(b"x", size=octal(5), kind=b"x"),
    *(header(kind, size=octal(2), kind=kind, data=b"y\0") + END for kind in (b"L", b"K")),
    tar(member("q" * 120, type=tarfile.DIRTYPE)),
    *(
        pax(record(key, value), kind) + FILE + END
        for kind in (b"x", b"g")
        for key, value in (
            (b"path", b"p"),
            (b"linkpath", b"l"),
            (b"size", b"1"),
            (b"mtime", b"-1.5"),
            (b"mtime", b"-0.0"),
            (b"mtime", b"1.5"),
            (b"mtime", b"-"),
            (b"mtime", b"9223372036854775807"),
            (b"mtime", b"1.x"),
            (b"mtime", b""),
            (b"mtime", b"1./"),
            (b"uid", b"9999999"),
            (b"gid", b"9999999"),
            (b"uid", b"x"),
            (b"gid", b"4294967295"),
            (b"hdrcharset", b"BINARY"),
            (b"hdrcharset", b"ISO-IR 10646 2000 UTF-8"),
            (b"hdrcharset", b"x"),
            (b"SCHILY.realsize", b"1"),
            (b"comment", b"c"),
            (b"linkpath", b""),
            (b"size", b"x"),
        )
    ),
    *(
        header(kind, size=octal(2), kind=kind, data=b"y\0") + pax(record(b"path", b"x"), next_) + FILE + END
        for kind in (b"L", b"K")
        for next_ in (b"x", b"g")
    ),
    *(header(kind, size=octal(2), kind=kind, data=b"y\0") + FILE + END for kind in (b"L", b"K")),
    *(header(kind, size=octal(2), kind=kind, data=b"y\0") * 2 + FILE + END for kind in (b"L", b"K")),
    header(b"K", size=octal(2), kind=b"K", data=b"y\0")
    + header(b"L", size=octal(2), kind=b"L", data=b"y\0")
    + FILE
    + END,
    header(b"L", size=octal(0), kind=b"L") + FILE + END,
    header(b"L", size=octal(3), kind=b"L", data=b"y\0z") + FILE + END,
    header(b"d/", kind=b"\0") + header(b"f", kind=b"7") + header(b"f", kind=b"\0") + header(b"", kind=b"\0") + END,
    header(b"", kind=b"0") + END,
    header(b"l", kind=b"2") + END,
    header(b"l", kind=b"1") + END,
    header(b"f", at100=b"0000645", size=octal(1000), data=bytes(1000))
    + header(b"f", at100=b"0000645", size=octal(9))[:512],
    header(b"f", at100=b"0000645", size=octal(1), data=b"x")[:513],
    header(b"f", at100=b"  0644 \0", at136=b"\xff" * 12) + END,
    *(header(b"f", **{f"at{place}": b"x"}) + END for place in (100, 108, 116, 136, 329, 337, 100, 345)),
    header(b"f", at257=b"ustar  \0", at345=b"p") + END,
    header(b"f", at257=b"ustar  \0") + END,
    header(b"n" * 100, kind=b"2", at157=b"t" * 100, at345=b"p" * 155) + END,
    tar(
        member("p" * 60 + "/" + "q" * 90),
        member("p/" + "q" * 101),
        member("/" * 3 + "q" * 99 + "/" + "r" * 99, type=tarfile.DIRTYPE),
    ),
    tar(
        link("l", "t" * 101),
        link("l", "\u00fc"),
        hard("h", "t"),
        member("f", mtime=-5.5),
        member("f", mtime=1 << 40),
        member("d", type=tarfile.DIRTYPE),
    ),
    tar(member("f", uid=1 << 22, gid=1 << 22, mode=0o4755), link("l", "\udcff"), member("\udcff")),
    header(b"f", size=b"\x80" + bytes(7) + b"\1\0\0\0") + END,
    header(b"f", size=b"\x80" + b"\0" * 2 + b"\1" + bytes(8)) + END,
    header(b"f", size=b"\xff" + b"\xff" * 2 + b"\1" + bytes(8)) + END,
    header(b"f", size=b"\x80" + bytes(3) + b"\xff" * 8) + END,
    header(b"f")[:148] + b"\x80" * 8 + header(b"f")[156:] + END,
    header(b"f", at200=b"\xff" * 50) + END,
]
MESSAGES = [
    messages.Listed(id=b"a", argv=(b"a", b"b")).pack(),
    messages.Exec(id=b"x", groups=(1, 2), rlimits=(1, 2, 3), argv=(b"a",)).pack(),
    messages.Exec(id=b"x", groups=(1,)).pack()[:-4] + b"\1" * 4,
    struct.pack("<IIIiHHIQ", *[0] * 8) + struct.pack("<HHI", 5, 0, 3) + b"abc" + bytes(5),
    struct.pack("<IIIiHHIQ", *[0] * 8) + struct.pack("<HHI", 6, 0, 3) + b"abc" + bytes(5),
    struct.pack("<IIIiHHIQ", *[0] * 8) + struct.pack("<HHI", 2, 0, 3) + b"abc" + bytes(5),
    struct.pack("<IIIiHHIQ", *[0] * 8) + struct.pack("<HHI", 1, 0, 3) + b"a\0c" + bytes(5),
    struct.pack("<IIIiHHIQ", *[0] * 8) + struct.pack("<HHI", 1, 0, 0),
    struct.pack("<IIIiHHIQ", *[0] * 8) + struct.pack("<HHI", 1, 1, 8) + bytes(8),
    struct.pack("<IIIiHHIQ", *[0] * 8) + struct.pack("<HHI", 1, 0, 65) + b"x" * 65 + bytes(7),
    struct.pack("<IIIiHHIQ", *[0] * 8) + struct.pack("<HHI", 1, 0, 3) + b"abc" + b"x" * 5,
    messages.Stat(flags=2, path=b"/").pack(),
    messages.Execs().pack() + struct.pack("<HHI", 1, 0, 8) + bytes(8),
    messages.Match(path=b"/", line=b"x" * 3000).pack(),
    *(messages.Stat(path=b"/").pack()[:size] for size in range(24)),
]
FRAME = frame(Kind.OPEN, Op.PING, 1)


def bytes_of(data: bytes, descriptors: int = 0) -> bytes:
    """Steps of fuzz/wire.c: the peer says this."""
    return b"".join(
        bytes((9 * descriptors, len(data[at : at + 200]))) + data[at : at + 200] for at in range(0, len(data), 200)
    )


RECEIVE, NEXT, SEND, DATA, FLUSH, READ = b"\1\0", b"\2\0", b"\3\1", b"\4\xff", b"\5\0", b"\6\xff"
HANG_UP, UNUSABLE = b"\7\7", b"\x08\0"
TAKES = (RECEIVE, NEXT)
LONG = frame(Kind.OPEN, Op.EXEC, 1, length=1 << 17)
WIRE = [
    *((side, bytes_of(FRAME), *TAKES, SEND, FLUSH, READ) for side in (b"\0", b"\1")),
    *((side, bytes_of(FRAME[:7]), *TAKES, bytes_of(FRAME[7:] + FRAME[:20]), *TAKES) for side in (b"\0", b"\1")),
    *(
        (side, *([DATA] * 40), SEND, FLUSH, *([READ] * 9), FLUSH, DATA, FLUSH, bytes_of(FRAME), *TAKES)
        for side in (b"\0", b"\1")
    ),
    *((side, SEND, *([b"\3\xff"] * 20000), bytes_of(FRAME), *TAKES, FLUSH) for side in (b"\1",)),
    *((side, DATA, HANG_UP, FLUSH, RECEIVE, NEXT, SEND, FLUSH, RECEIVE) for side in (b"\0", b"\1")),
    *((side, RECEIVE, NEXT, HANG_UP, RECEIVE, NEXT, DATA) for side in (b"\0", b"\1")),
    *(
        (b"\1", bytes_of(frame(Kind.OPEN, Op.EXEC, 1, descriptors=said), sent), *TAKES)
        for said in range(6)
        for sent in range(7)
    ),
    (b"\1", bytes_of(frame(Kind.OPEN, Op.EXEC, 1, descriptors=1) * 3, 2), *TAKES),
    (b"\3", FLUSH),
    (b"\0", *([DATA] * 10), FLUSH, UNUSABLE, FLUSH),
    (b"\1", *([SEND] * 26000), FLUSH),
    *((side, *([DATA] * 10, FLUSH, READ)[0], *([*([DATA] * 3), FLUSH, READ] * 20)) for side in (b"\0", b"\1")),
    (b"\1", *([b"\3\xff"] * 27000), FLUSH),
    *((side, SEND, UNUSABLE, FLUSH, NEXT) for side in (b"\0", b"\1")),
    (b"\1", UNUSABLE, READ, FLUSH),
    (b"\1", bytes_of(FRAME, 4), RECEIVE, bytes_of(FRAME, 4), RECEIVE, bytes_of(FRAME, 4), *TAKES),
    *((b"\1", bytes_of(LONG), *TAKES, *([b"\7\x10", *TAKES] * 4), FLUSH) for _ in range(1)),
    *(
        (b"\1", bytes_of(bad), *TAKES)
        for bad in (
            frame(0),
            frame(11),
            frame(Kind.DATA, descriptors=1),
            frame(Kind.DATA, length=1 << 17),
            frame(Kind.OPEN, length=1 << 24),
            b"x" * 16,
            FRAME[:13] + b"\1\0\0",
            FRAME[:14] + b"\1\0",
        )
    ),
    (b"\1", *([DATA] * 40), b"\4\0", FLUSH, READ, FLUSH, *([b"\4\xf0"] * 20), FLUSH, HANG_UP, FLUSH),
]
SEEDS = {
    "messages": [part for data in CONVERSATION for part in (data, data[16:])] + MESSAGES,
    "glob": [
        bytes((len(one.encode()),)) + one.encode() + name.encode("latin-1")
        for one, name in (
            ("a*[!b", "xyz"),
            ("[]a-c-]?", "name"),
            ("[", "x"),
            ("[!", "x"),
            ("[]", "x"),
            ("[!a]", "b"),
            ("[ab]", "a"),
            ("[ab]", "c"),
            ("?", "x"),
            ("?", ""),
            ("*a?", "bab"),
            ("a", "b"),
            ("a", ""),
            ("", "a"),
            ("[a-c]x", "bx"),
            ("[b-c]", "a"),
            ("ab*", "abz"),
            ("[[]", "["),
            ("a*b*c", "aXbYc"),
            ("[!]a]", "b"),
            ("[a", "["),
            ("ab", "a"),
            ("??????????", "\xc0\xf5\xe2\x82\xe2(\xe0\x80\x80\xf4\x90\x80\x80"),
            ("?????", "\xed\xa0\x80\xee\x80\x80\xf0\x9f\x98\x80\xc3\xa9\xe2\x82"),
            ("\U0001f600", "\xf0\x9f\x98\x80"),
            ("*", "\xf0\x80\x80\x80"),
        )
    ],
    "regex": [
        *(
            pattern(one, text)
            for one, text in (
                ("a(?:ca)+x", "acaca"),
                ("[a-\u0100]", "\u0080"),
                ("[\u0100\u0102\u0200]", "\u0150"),
                ("a$", "a\nb"),
                ("a$", "a\n"),
                ("(?m)^b", "abb"),
                ("(?m)^b$", "a\nb\nc"),
                ("(?m)a$", "ba"),
                ("(?m)^", "\na"),
                (r"\B.", "-"),
                (r"\Ba\B", "aaa"),
                (r"\B", ""),
                (r"\bx", "x"),
                (r"\b_", "-_"),
                ("(?m)a$", "ab"),
                (r"\b_|\b[0-9]|\bZ", "0-Z_"),
                (r"(?P<n>a??)\Z", "aa"),
                (r"\A", ""),
                ("(a|a)b", "ab"),
                ("", ""),
                ("b", "a"),
                ("(a|b|[ab])*c", "abc"),
                ("[a-z]x", "\u00e9bx"),
                ("[a-z]x", ""),
                ("\u20ac?x", "x"),
                (".x", "\nx"),
                ("[\u00e0-\U0001f600]+$", "\udcff\u00e9\u20ac\U0001f600"),
                (
                    "." * 14,
                    "\udcc0\udcf5\udce2\u0082\udce2(\udce0\udc80\udc80\udced\udca0\udc80\udcf4\udc90\udc80\udc80",
                ),
            )
        ),
        *(
            broken_program(*sizes, words=words)
            for sizes, words in (
                ((0, 0, 0, 0), ()),
                ((4, 0, 0, 0), ()),
                ((12 * 4097, 0, 0, 0), ()),
                ((12, 8 * 4097, 0, 0), ()),
                ((16, 0, 0, 0), ()),
                ((12, 4, 0, 0), ()),
                ((12, 0, 0, 4), ()),
                ((12, 0, 0, 0), (4, 0, 0)),
                ((12, 0, 0, 0), (1, 0, 0)),
                ((24, 8, 0, 0), (1, 1, 0)),
                ((24, 8, 0, 0), (1, 0, 2)),
                ((12, 0, 0, 0), (2, 1, 0)),
                ((12, 0, 0, 0), (2, 0, 1)),
                ((12, 0, 0, 0), (3, 0, 0)),
                ((24, 0, 0, 0), (3, 7, 0)),
                ((12, 0, 0, 0), (2, 0, 0)),
            )
        ),
    ],
    "trunk": [
        b"\x02\x01\x01a\x02\x02\x04init\x03\x02\x03abc\x0d\x00\x05hello\x06\x00\x00\x07\x00\x00\x05\x02\x00\x01\x00\x00"
    ],
    "operations": [
        operation(Op.STAT, messages.Stat(path=b"/f")),
        operation(Op.MKDIR, messages.Mkdir(path=b"/d/x/y", flags=3, mode=0o700)),
        operation(Op.SET, messages.Set(path=b"/f", flags=15, mode=0o600, modified=-1)),
        operation(Op.REMOVE, messages.Remove(path=b"/d", flags=1)),
        operation(Op.MOVE, messages.Move(source=b"/d", destination=b"/x")),
        operation(Op.COPY, messages.Copy(source=b"/d", destination=b"/x")),
        operation(Op.LIST, messages.List(path=b"/", depth=9)),
        operation(Op.FIND, messages.Find(path=b"/", limit=5, name=b"[d-g]")),
        operation(Op.GREP, messages.Grep(path=b"/", limit=5, name=b"*", **compile_pattern("t.o|e$")._asdict())),
        operation(Op.READ, messages.Read(path=b"/f", offset=2, length=9)),
        operation(Op.WRITE, messages.Write(path=b"/d/l", flags=1, mode=0o600), b"new"),
        operation(Op.WRITE, messages.Write(path=b"/new/file", flags=2), b"new"),
        operation(Op.UPLOAD, messages.Upload(path=b"/d"), sample(tarfile.PAX_FORMAT)),
        operation(Op.UPLOAD, messages.Upload(path=b"/d", flags=1, left_out=(b"g",)), EXACT),
        operation(Op.DOWNLOAD, messages.Download(path=b"/")),
        operation(Op.DOWNLOAD, messages.Download(path=b"/d", flags=1, left_out=(b"g",))),
        operation(Op.WATCH, messages.Watch(path=b"/", flags=1)),
        operation(Op.ECHO, None, b"echo"),
    ],
    "requests": [
        steps(command(flags=flags), then=step(Kind.DATA, 0, 1, b"in") + step(Kind.EOF, 0, 1) + step(Kind.CLOSE, 0, 1))
        for flags in (0, ExecFlags.STDIN, ExecFlags.TERMINAL, ExecFlags.BACKGROUND, ExecFlags.OOM)
    ]
    + [
        steps(command(flags=ExecFlags.BACKGROUND), (op, request), (Op.EXECS, messages.Execs()), (Op.PING, None))
        for op, request in (
            (Op.ATTACH, messages.Attach(id=b"a", flags=3)),
            (Op.SIGNAL, messages.Signal(id=b"a", number=15)),
            (Op.RESIZE, messages.Resize(id=b"a", rows=3, columns=4)),
            (Op.KILL, messages.Kill(id=b"a")),
            (Op.KEEP, messages.Keep(id=b"a", timeout=1)),
        )
    ]
    + [
        steps(command(uid=1, gid=1, groups=(1, 2), rlimits=(7, 9, 9), flags=ExecFlags.IDENTITY, timeout=1000)),
        step(Kind.OPEN, Op.EXEC, 0, command(id=b"b")[1].pack(), 2) + steps(command(argv=(b"/none",))),
        step(Kind.OPEN, Op.HAND, 0, messages.Hand(name=b"h", text=b"t").pack(), 1),
        steps((Op.CONNECT, messages.Connect(port=80)), then=step(Kind.DATA, 0, 1, b"in")),
        steps(
            (Op.ACCEPT, messages.Accept(path=b"/s")),
            (Op.ACCEPT, messages.Accept(path=b"/s")),
            then=step(Kind.CLOSE, 0, 1) + step(Kind.CREDIT, 1, 2, messages.Credit(bytes=9).pack()),
        ),
        steps((Op.ECHO, None), then=step(Kind.DATA, 0, 1, b"echo") + step(Kind.EOF, 0, 1) + step(Kind.EOF, 1, 1)),
        steps((Op.GREP, messages.Grep(path=b"/", limit=5, name=b"*", **compile_pattern("t.o")._asdict()))),
        steps((Op.WATCH, messages.Watch(path=b"/", flags=1)), (Op.MKDIR, messages.Mkdir(path=b"/n", mode=0o700))),
    ],
    "orders": [
        given(IDENTITY) + given(BEGIN) + then
        for then in (
            b"",
            steps((Op.PAUSE, None), (Op.TIMES, None), (Op.RESUME, None)),
            steps((Op.HOLD, messages.Hold(seconds=9)), then=step(Kind.CLOSE, 0, 3) + CALL * 2),
            steps((Op.AWAKE, None), (Op.PAUSE_CLOCK, messages.PauseClock(paused=0)), (Op.PAUSE, None)),
            steps((Op.AGENT, messages.Agent(name=b"user")), (Op.LOST, messages.Lost(name=b"user", pid=0))) + CALL * 2,
            steps((Op.DEADLINE, messages.Deadline(deadline=0))),
            steps((Op.RENEW, messages.Renew())),
        )
    ]
    + [given(IDENTITY) * 2, given(BEGIN), given(CALLED) + given(BEGIN) + CALL * 3 + steps((Op.PING, None))],
    "wire": [b"".join(parts) for parts in WIRE],
    "tar": TARS + list(HOSTILE.values()) + [sample(format) for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)],
}
LONGEST = {"orders": 1024, "requests": 1024, "tar": 8192, "operations": 8192, "regex": 4096}
BUSY = {"operations": 2_000, "requests": 350, "orders": 300}
"""Runs of a target that makes system calls."""
HOUR_SECONDS = 3600


@pytest.mark.parametrize("target", SEEDS)
def test_no_bytes_break_a_reader(target: str, tmp_path: Path) -> None:
    fuzz(target, tmp_path, f"-runs={BUSY.get(target, RUNS)}", "-seed=1")


@pytest.mark.slow
@pytest.mark.timeout(HOUR_SECONDS + 600)
@pytest.mark.parametrize("target", SEEDS)
def test_no_bytes_break_a_reader_in_an_hour(target: str, tmp_path: Path) -> None:
    """`PADDOCK_FUZZ_SECONDS` makes it shorter."""
    fuzz(target, tmp_path, f"-max_total_time={os.environ.get('PADDOCK_FUZZ_SECONDS', HOUR_SECONDS)}")


def test_every_target_has_seeds() -> None:
    assert set(SEEDS) == {path.stem for path in (ROOT / "native" / "fuzz").glob("*.c")}


def fuzz(target: str, tmp_path: Path, *limits: str) -> None:
    if shutil.which("clang") is None:
        pytest.skip("libFuzzer needs clang: make check installs it")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for index, data in enumerate(SEEDS[target]):
        (corpus / str(index)).write_bytes(data)
    program = build_module().fuzzer(target)
    shutil.copy(build_module().build(), tmp_path / "guest")
    quiet = "-verbosity=0", "-print_funcs=0"  # the name of each new function costs a second of a symbolizer's time
    try:
        order = [program, *limits, f"-max_len={LONGEST.get(target, 512)}", *quiet, corpus]
        env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(order, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    finally:
        program.unlink()
