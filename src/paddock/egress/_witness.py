"""The witness: says which process of a sandbox made a connection. A process beside the gateway, made before that one
gives up its powers, which has no secret and no network. See docs/design/commands-and-files.md."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import select
import socket
import sys
from typing import Any, NoReturn

from paddock.linux import caps, descriptors, prctl, proc, seccomp, seccomp_profile
from paddock.linux.proc_events import News
from paddock.linux.socket_holders import Search, TooMany

from ._starts import Starts

MOST_BYTES = 64 << 10
_ANCESTORS = 16
_TEXT_BYTES = 1024
_ARGUMENT_BYTES = 256 << 10
_TICKS = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError)
First = tuple[int, int]
"""Pid 1 of a sandbox: its pid, and its start time in ticks since boot."""
HIDDEN = "processes of the sandbox do not let this user look at them"
NOBODY = "nobody in the sandbox holds the connection any more"


def start() -> socket.socket:
    """The gateway's end. The process ends when that is closed, or the gateway dies. OSError."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gateway = os.getpid()
    if os.fork() == 0:
        _be(theirs.detach(), gateway)
    theirs.close()
    return ours


def _be(fd: int, gateway: int) -> NoReturn:
    code = 1
    try:
        if os.getppid() == gateway:
            descriptors.close_all_but(0, 1, 2, fd)
            events = _events()
            for number in (0, 1):
                os.dup2(os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC), number)
            _confine()
            _serve(socket.socket(fileno=fd), Witness(), events)
        code = 0
    except BaseException as error:
        print(f"the witness: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def _events() -> News | None:
    try:
        return News()
    except OSError:
        return None


def _confine() -> None:
    """Under Landlock it could look at no other process."""
    prctl.set_name(b"paddock-witness")
    prctl.set_dumpable(False)
    prctl.set_no_new_privileges()
    if os.geteuid() == 0:
        kept = (caps.SYS_PTRACE, caps.DAC_READ_SEARCH)
        caps.drop_bounding()
        caps.keep_only(*(one for one in kept if caps.get().permitted & caps.mask_of(one)))
    else:
        caps.drop_all()
    seccomp.Filter(seccomp_profile.build(os.uname().machine, foreign_targets=False)).install()


def _serve(peer: socket.socket, witness: Witness, events: News | None) -> None:
    def say(message: dict[str, Any]) -> None:
        peer.send(json.dumps(message).encode(), socket.MSG_DONTWAIT)

    starts = Starts(events, say, describe)
    gc.collect()
    gc.freeze()
    poll = select.poll()
    poll.register(peer, select.POLLIN)
    if events is not None:
        poll.register(events, select.POLLIN)
    while True:
        ready = {fd for fd, _ in poll.poll()}
        if peer.fileno() in ready and not _answer(peer, witness, starts):
            break
        starts.hear()
    starts.close()


def _answer(peer: socket.socket, witness: Witness, starts: Starts) -> bool:
    """False: the gateway has gone."""
    question = peer.recv(MOST_BYTES)
    if not question:
        return False
    asked: dict[str, Any] = json.loads(question)
    sandbox = asked["sandbox"]
    if "watch" in asked:
        first, incarnation, why = asked["watch"], asked["incarnation"], None
        if first is not None:
            why = starts.watch(sandbox, incarnation, pid_of(first))
        else:
            starts.leave(sandbox)
        detail: dict[str, Any] = {"watched": first is not None and why is None}
        if why is not None:
            detail["why"] = why
        said = {"what": "process.watch", "sandbox": sandbox, "incarnation": incarnation, "detail": detail}
        peer.send(json.dumps(said).encode())
        return True
    try:
        answer = witness.look(sandbox, asked["first"], asked["inode"])
    except Exception as error:  # one question must not end the answers to all others
        answer = unknown(f"the witness failed: {type(error).__name__}")
    peer.send(json.dumps({"n": asked["n"], "origin": answer}).encode())
    return True


def unknown(why: str) -> dict[str, Any]:
    return {"origin": "unknown", "why": why}


class Witness:
    def __init__(self) -> None:
        self._last: dict[str, int] = {}

    def look(self, sandbox: str, first: First, inode: int) -> dict[str, Any]:
        """What is recorded of the process that holds the socket."""
        pid_1 = pid_of(first)
        if pid_1 is None:
            return unknown("the sandbox has ended")
        search = Search()
        try:
            pid = search.holder(pid_1, inode, likely=self._last.get(sandbox))
            if pid is None:
                return unknown(HIDDEN if search.hidden else NOBODY)
            found = describe(pid, pid_1)
        except TooMany as error:
            return unknown(f"the sandbox has {error}")
        except _GONE:
            return unknown(NOBODY)
        self._last[sandbox] = pid
        if len(self._last) > 1024:
            del self._last[next(iter(self._last))]
        return found


def pid_of(first: First) -> int | None:
    """Its pid, if that is still the same process."""
    pid, start = first
    try:
        return pid if proc.start_time(pid) == start else None
    except (OSError, ValueError):
        return None


def describe(pid: int, first: int) -> dict[str, Any]:
    """FileNotFoundError, ProcessLookupError: it ended meanwhile."""
    started = proc.start_time(pid)
    status = proc.status(pid)
    found = {
        "pid": _inner(status),
        "uid": proc.inner_uid(pid, int(status["Uid"].split()[0])),
        "exe": _link(pid, "exe"),
        "cwd": _link(pid, "cwd"),
        **_arguments(pid),
        "started": started / _TICKS,
        "above": _above(pid, first),
    }
    if proc.start_time(pid) != started:
        raise ProcessLookupError
    return found


def _above(pid: int, first: int) -> list[dict[str, Any]]:
    """Its parent, that one's parent, and so on to pid 1."""
    found: list[dict[str, Any]] = []
    while pid != first and len(found) < _ANCESTORS:
        pid = proc.parent(pid)
        found.append({"pid": _inner(proc.status(pid)), "exe": _link(pid, "exe")})
    return found


def _inner(status: dict[str, str]) -> int:
    return int(status["NSpid"].split()[-1])


def _link(pid: int, name: str) -> str | None:
    """None: the kernel does not show it."""
    try:
        return _words(os.fsencode(os.readlink(f"/proc/{pid}/{name}")))
    except PermissionError:
        return None


def _arguments(pid: int) -> dict[str, Any]:
    """Its own memory, of any length and content: it may have written there what it likes."""
    fd = os.open(f"/proc/{pid}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
    data = bytearray()
    try:
        while len(data) < _ARGUMENT_BYTES and (piece := os.read(fd, _ARGUMENT_BYTES - len(data))):
            data += piece
    finally:
        os.close(fd)
    kept = bytes(data[:_TEXT_BYTES]).removesuffix(b"\0")
    found: dict[str, Any] = {
        "argv": [_words(word) for word in kept.split(b"\0")],
        "argv_sha256": hashlib.sha256(data).hexdigest(),
    }
    if len(data) > _TEXT_BYTES:
        found["argv_bytes"] = len(data)
    return found


def _words(text: bytes) -> str:
    return text[:_TEXT_BYTES].decode(errors="backslashreplace")
