"""The host's git as a process: confined, with a separate environment, and with limits of time and output.

Its messages become errors of paddock.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO

import msgspec

from paddock.errors import (
    InvalidArgumentError,
    InvalidStateError,
    NotConfiguredError,
    NotFoundError,
    PaddockError,
    PlatformError,
    PolicyDeniedError,
    ResourceExhaustedError,
)
from paddock.linux import processes
from paddock.model.caller import environment
from paddock.storage.certificates import ADVICE, authorities
from paddock.supervisor.layout import ID_COUNT, TREE_ID_BASE

from . import _confined
from ._confined import BindMount
from ._remote import OFFLINE, Remote

GIT_ID = TREE_ID_BASE + ID_COUNT
"""The user id of the host's git if paddock is root. It owns no tree and exists in no sandbox."""

Progress = Callable[[str], None]

CONFIG = "/etc/paddock.gitconfig"
TEMPLATE = "/etc/paddock.template"
"""The template directory of a new repository."""

# Pins are files, one for each object with a need. git must not pack them.
_REPOSITORY_CONFIG = "[gc]\n\tpackRefs = false\n\tauto = 0\n"
_STDERR_BYTES = 16_384
_LINE_BYTES = 512
_LOOK_SECONDS = 3.0
_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "all_proxy")


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one run of the host's git."""

    seconds: float = 3600.0
    silence_seconds: float = 45.0
    """paddock ends a git that waits for a remote, without output or computation, for longer than this."""
    output_bytes: int = 64 << 20
    file_bytes: int = 32 << 30
    memory_bytes: int = 4 << 30


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a run. `over` names the limit that ended it: seconds, silence or output."""

    code: int
    out: bytes
    err: str
    over: str | None = None


async def run(
    arguments: Sequence[str],
    *,
    program: str | None = None,
    mounts: Sequence[BindMount],
    config: str,
    bounds: Bounds,
    protocols: str = "",
    direct: bool = False,
    silence: float | None = None,
    secret: str = "",
    files: Mapping[str, str] = {},
    agent: str | None = None,
    progress: Progress | None = None,
    stdin: IO[bytes] | None = None,
) -> Ended:
    """Run git, or another `program`, with `arguments`.

    Cancelling kills it with all that it started, as does the end of this program. `direct` keeps the proxies of the
    caller's environment from it. `silence`: the seconds for which it may say nothing and compute nothing. `config` is
    the only configuration that it and its helpers read besides the repository's own. `agent` is the socket of an ssh
    agent.
    """
    certificates = _certificates()
    order: _confined.Order = {
        "argv": [program or _git(), *arguments],
        "env": _environment(protocols, certificates, direct=direct),
        "uid": GIT_ID if os.geteuid() == 0 else None,
        "mounts": [*mounts, *certificates],
        "files": {CONFIG: config, f"{TEMPLATE}/config": _REPOSITORY_CONFIG, **files},
        "agent": agent,
        "secret": secret,
        "file_bytes": bounds.file_bytes,
        "memory_bytes": bounds.memory_bytes,
    }
    with os.fdopen(os.memfd_create("order"), "w+") as file:
        json.dump(order, file)
        file.seek(0)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", _confined.__file__, str(file.fileno()), str(os.getpid())),
            stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={},
            cwd="/",
            pass_fds=(file.fileno(),),
            start_new_session=True,
        )
    reading = _Reading(bounds.output_bytes, progress)
    ended = asyncio.ensure_future(reading.all_of(process))
    try:
        over = await _over(process.pid, reading, ended, bounds.seconds, silence)
    finally:
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await asyncio.wait((ended,))
    code = await ended
    if code == _confined.FAILED:
        message = f"git cannot be confined on this machine: {reading.errors()}"
        raise NotConfiguredError(message, hint="paddock doctor")
    return Ended(code=code if code >= 0 else 128 - code, out=bytes(reading.out), err=reading.errors(), over=over)


async def _over(
    pid: int, reading: _Reading, ended: asyncio.Future[int], seconds: float, silence: float | None
) -> str | None:
    """Wait until it has ended, or has reached a bound, and return which: seconds, output or silence.

    In silence neither output nor processor time comes. A remote that sends anything to speak of costs git some.
    """
    until = time.monotonic() + seconds
    pause = _LOOK_SECONDS if silence is None else min(_LOOK_SECONDS, silence / 4)
    before, since = None, 0.0
    while not ended.done() and not reading.is_full:
        if time.monotonic() >= until:
            return "seconds"
        if silence is not None:
            spent = await asyncio.to_thread(lambda: sum(one.cpu_seconds for one in processes.below(pid)))
            since = since + pause if before == (reading.taken, spent) else 0.0
            before = reading.taken, spent
            if since >= silence:
                return "silence"
        await asyncio.wait((ended,), timeout=max(0.0, min(pause, until - time.monotonic())))
    return "output" if reading.is_full else None


class _Reading:
    def __init__(self, most: int, progress: Progress | None) -> None:
        self.out = bytearray()
        self.taken = 0
        """Bytes, of both streams."""
        self._err = bytearray()
        self._most = most
        self._progress: Progress = progress or (lambda _: None)

    @property
    def is_full(self) -> bool:
        return len(self.out) > self._most

    async def all_of(self, process: asyncio.subprocess.Process) -> int:
        """Read to the end of both streams, for asyncio does not say before that the process has ended."""
        assert process.stdout is not None
        assert process.stderr is not None
        await asyncio.gather(self._output(process.stdout), self._errors(process.stderr))
        return await process.wait()

    async def _output(self, stream: asyncio.StreamReader) -> None:
        """Read the output, and discard the part beyond the limit."""
        while data := await stream.read(1 << 16):
            self.out += data[: self._most + 1 - len(self.out)]
            self.taken += len(data)

    async def _errors(self, stream: asyncio.StreamReader) -> None:
        """Keep the end of the errors. Report each line, and each state of a line that is rewritten."""
        line = b""
        while data := await stream.read(1 << 12):
            self._err += data
            self.taken += len(data)
            del self._err[:-_STDERR_BYTES]
            *lines, line = re.split(rb"[\r\n]", line[:_LINE_BYTES] + data)
            for each in filter(None, lines):
                self._progress(plain(each[:_LINE_BYTES].decode(errors="replace")))

    def errors(self) -> str:
        lines = self._err.decode(errors="replace").replace("\r", "\n").split("\n")
        return "\n".join(plain(line) for line in lines if line)


def plain(line: str) -> str:
    """Replace characters that control a terminal. Remotes send text too, and terminals show it."""
    return "".join(c if c.isprintable() else "?" for c in line)


def _git() -> str:
    for directory in ("/usr/bin", "/usr/local/bin"):
        if found := shutil.which("git", path=directory):
            return os.path.realpath(found)
    raise NotConfiguredError("repositories need git on this machine, in /usr", hint="apt install git")


def _environment(protocols: str, certificates: Sequence[BindMount], *, direct: bool) -> dict[str, str]:
    """Return an environment with the caller's proxies and nothing else of the caller's or ours."""
    variables = environment()
    proxies = {} if direct else {name: variables[name] for name in _PROXIES if name in variables}
    if certificates:
        proxies["GIT_SSL_CAINFO"] = certificates[0].target
    return {
        **proxies,
        "PATH": "/usr/bin:/bin",
        "HOME": "/home",
        "LANG": "C.UTF-8",
        "LANGUAGE": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": CONFIG,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": protocols or "none",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
    }


def _certificates() -> tuple[BindMount, ...]:
    """Return the certificates that this program's environment names."""
    path = authorities()
    if path is None:
        return ()
    is_readable_to_all = path.stat().st_mode & 0o004
    return (BindMount(str(path), "/run/certificates.pem", owned=not is_readable_to_all),)


class RemoteRefused(Exception):
    """The remote asks for a credential, or refuses the one that it got."""


_WANTS_CREDENTIAL = re.compile(
    r"could not read (?:Username|Password)|Authentication failed|returned error: 40[13]|terminal prompts disabled|"
    r"Permission denied \((?:publickey|password|keyboard|hostbased|gssapi)|no mutual signature"
)
_NOT_THERE = re.compile(
    r"repository (?:'.*' )?not found|returned error: 404|not exported|does not appear to be a git repository|"
    r"no such repository|couldn't find remote ref|no matching remote|not our ref|"
    r"does not allow request for unadvertised",
    re.IGNORECASE,
)
_UNREACHABLE = re.compile(
    r"Could not resolve|unable to look up|Connection (?:refused|timed out|reset)|Failed to connect|unable to connect|"
    r"SSL|certificate|Operation too slow|early EOF|hung up unexpectedly|Empty reply|"
    r"Connection closed|Network is unreachable|No route to host|kex_exchange_identification",
    re.IGNORECASE,
)
_OTHER_HOST = re.compile(r"HOST IDENTIFICATION HAS CHANGED|REVOKED HOST KEY")
_UNKNOWN_HOST = re.compile(r"Host key verification failed|host key is known for")
_UNTRUSTED = re.compile(
    r"certificate verif|certificate problem|issuer is unknown|Problem with the SSL CA", re.IGNORECASE
)
_MOVED = re.compile(r"returned error: 30[1278]")
_TOO_LARGE = re.compile(r"File too large|maximum allowed size|file write error")
_NO_MEMORY = re.compile(r"out of memory|Cannot allocate memory", re.IGNORECASE)
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_BROKEN = re.compile(
    r"^(?:error: object [0-9a-f]+: |fatal: .*fsck|error: .*fsck)|invalid index-pack output|bad pack|inflate|"
    r"did not send all necessary objects|pack has bad|is corrupt|pack is too large|unresolved delta|protocol error",
    re.MULTILINE,
)
_SENT_SIGNAL = 128


def trouble(ended: Ended, remote: Remote, bounds: Bounds) -> PaddockError:
    """Return the error to raise for a git that failed. Refused: it needs a credential."""
    words, what = ended.err, remote.url
    if ended.over == "seconds":
        return PlatformError(f"{what} took longer than {bounds.seconds:.0f} s and was given up", hint="try again")
    if ended.over == "silence":
        message = f"{what} has said nothing for {bounds.silence_seconds:.0f} s"
        return PlatformError(f"{message}: it cannot be reached, or does not answer", hint=OFFLINE)
    if ended.over == "output":
        return ResourceExhaustedError(f"{what} has more refs than fit into {bounds.output_bytes >> 20} MiB")
    if _WANTS_CREDENTIAL.search(words):
        raise RemoteRefused(_last_line(words))
    if ended.code == _SENT_SIGNAL + signal.SIGXFSZ or _TOO_LARGE.search(words):
        return ResourceExhaustedError(
            f"{what} sends a pack of more than {bounds.file_bytes} bytes; nothing of it was taken"
        )
    if _NO_MEMORY.search(words):
        return ResourceExhaustedError(
            f"{what} sends objects that need more than {bounds.memory_bytes >> 20} MiB of memory; not taken"
        )
    if _NO_SPACE.search(words):
        return ResourceExhaustedError(f"there is no room for {what}: {_last_line(words)}", hint="df -h; paddock doctor")
    if _BROKEN.search(words):
        return InvalidArgumentError(
            f"{what} sends what git's checks refuse: {_first_error(words)}", hint="git fsck says more"
        )
    if _NOT_THERE.search(words):
        return NotFoundError(f"{what}: {_first_error(words)}")
    if _OTHER_HOST.search(words):
        return PolicyDeniedError(
            f"{what} shows another key than the host that is known: an attacker may intercept the connection",
            hint=f"once you know why it has changed: ssh-keygen -R {shlex.quote(_known_as(remote))}",
            rule="known-hosts",
        )
    if _UNKNOWN_HOST.search(words):
        return NotConfiguredError(
            f"{what}: the key of its host is not known here, so ssh can't tell whether it is that host",
            hint=f"{_scan(remote)} >> ~/.ssh/known_hosts, then compare: ssh-keygen -lf ~/.ssh/known_hosts",
        )
    if _UNTRUSTED.search(words):
        return PlatformError(f"{what} does not prove who it is: {_first_error(words)}", hint=ADVICE)
    if _MOVED.search(words):
        return InvalidStateError(
            f"{what} sends on to another place: {_first_error(words)}",
            hint="name that place: no redirect is followed, for it may lead into your network",
            moved=True,
        )
    if _UNREACHABLE.search(words):
        return PlatformError(f"{what} cannot be reached: {_first_error(words)}", hint=OFFLINE)
    return PlatformError(f"git failed on {what}: {_first_error(words)}")


def _known_as(remote: Remote) -> str:
    return remote.host if remote.port is None else f"[{remote.host}]:{remote.port}"


def _scan(remote: Remote) -> str:
    return f"ssh-keyscan {remote.host}" if remote.port is None else f"ssh-keyscan -p {remote.port} {remote.host}"


def _last_line(words: str) -> str:
    lines = [line for line in words.split("\n") if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _first_error(words: str) -> str:
    """Return the first error, which is the cause of the others."""
    for line in words.split("\n"):
        for mark in ("error: ", "fatal: ", "ERR "):
            if line.startswith(mark) and "index-pack" not in line:
                return line.removeprefix(mark)[:300]
    return _last_line(words)
