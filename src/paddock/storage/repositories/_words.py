"""What git has said, as an error of ours."""

from __future__ import annotations

import re
import shlex
import signal

from paddock.errors import (
    InvalidArgument,
    InvalidState,
    NotConfigured,
    NotFound,
    PaddockError,
    PlatformError,
    PolicyDenied,
    ResourceExhausted,
)

from ._process import ADVICE, Bounds, Ended
from ._remote import Remote
from ._ssh import target


class Refused(Exception):
    """The remote wants to know who asks, or knows and does not let him."""


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
    """Raises Refused; else returns the error to raise."""
    words, what = ended.err, remote.url
    if ended.over == "seconds":
        return PlatformError(f"{what} took longer than {bounds.seconds:.0f} s and was given up", hint="try again")
    if ended.over == "silence":
        said = f"{what} has said nothing for {bounds.silence_seconds:.0f} s"
        return PlatformError(f"{said}: it cannot be reached, or does not answer", hint="try again")
    if ended.over == "output":
        return ResourceExhausted(f"{what} has more refs than fit into {bounds.output_bytes >> 20} MiB")
    if _WANTS_CREDENTIAL.search(words):
        raise Refused(_last(words))
    if ended.code == _SENT_SIGNAL + signal.SIGXFSZ or _TOO_LARGE.search(words):
        return ResourceExhausted(f"{what} sends a pack of more than {bounds.file_bytes} bytes; nothing of it was taken")
    if _NO_MEMORY.search(words):
        return ResourceExhausted(
            f"{what} sends objects that need more than {bounds.memory_bytes >> 20} MiB of memory; not taken"
        )
    if _NO_SPACE.search(words):
        return ResourceExhausted(f"there is no room for {what}: {_last(words)}", hint="df -h; paddock doctor")
    if _BROKEN.search(words):
        return InvalidArgument(f"{what} sends what git's checks refuse: {_telling(words)}", hint="git fsck says more")
    if _NOT_THERE.search(words):
        return NotFound(f"{what}: {_telling(words)}")
    if _OTHER_HOST.search(words):
        return PolicyDenied(
            f"{what} shows another key than the host that is known: somebody may stand in between",
            hint=f"once you know why it has changed: ssh-keygen -R {shlex.quote(_known_as(remote))}",
            rule="known-hosts",
        )
    if _UNKNOWN_HOST.search(words):
        return NotConfigured(
            f"{what}: the key of its host is not known here, so nobody can tell whether it is that host",
            hint=f"{_scan(remote)} >> ~/.ssh/known_hosts, then compare: ssh-keygen -lf ~/.ssh/known_hosts",
        )
    if _UNTRUSTED.search(words):
        return PlatformError(f"{what} does not prove who it is: {_telling(words)}", hint=ADVICE)
    if _MOVED.search(words):
        return InvalidState(
            f"{what} sends on to another place: {_telling(words)}",
            hint="name that place: no redirect is followed, for it may lead into your network",
            moved=True,
        )
    if _UNREACHABLE.search(words):
        return PlatformError(f"{what} cannot be reached: {_telling(words)}", hint="try again")
    return PlatformError(f"git failed on {what}: {_telling(words)}")


def _known_as(remote: Remote) -> str:
    _, host, port = target(remote)
    return host if port is None else f"[{host}]:{port}"


def _scan(remote: Remote) -> str:
    _, host, port = target(remote)
    return f"ssh-keyscan {host}" if port is None else f"ssh-keyscan -p {port} {host}"


def _last(words: str) -> str:
    lines = [line for line in words.split("\n") if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"


def _telling(words: str) -> str:
    """The first error, which is the cause of the others."""
    for line in words.split("\n"):
        for mark in ("error: ", "fatal: ", "ERR "):
            if line.startswith(mark) and "index-pack" not in line:
                return line.removeprefix(mark)[:300]
    return _last(words)
