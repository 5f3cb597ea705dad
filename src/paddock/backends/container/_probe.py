"""Finds this machine's engine by a request to it, and checks whether paddock can use it."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

from paddock.backends._checks import EGRESS, SLEEP, missing, ok, weak
from paddock.linux import subordinate_ids
from paddock.model import Check

from ._engine import API, Connection

_SECONDS = 10.0
_MOST_BYTES = 4 << 20
_INSTALL = "apt-get install --no-install-recommends podman runc"
_SERVE = "(podman --runtime=runc system service --time=0 &)"  # crun refuses machines with both versions of cgroups


class Info(msgspec.Struct, frozen=True):
    """The used fields of `GET /info`."""

    ServerVersion: str = "?"
    KernelVersion: str = ""
    MemoryLimit: bool = False
    PidsLimit: bool = False
    CpuCfsQuota: bool = False
    SecurityOptions: tuple[str, ...] = ()
    BuildahVersion: str = ""
    Rootless: bool = False
    CgroupVersion: str = ""

    @property
    def name(self) -> str:
        return f"{'Podman' if self.BuildahVersion else 'Docker'} {self.ServerVersion}"

    @property
    def limits(self) -> frozenset[str]:
        """Return the limits that control groups enforce. Version 1 can't delegate any, even if the engine claims it."""
        if self.CgroupVersion == "1" and (self.Rootless or self.has("name=rootless")):
            return frozenset()
        held = {"memory": self.MemoryLimit, "processes": self.PidsLimit, "processor time": self.CpuCfsQuota}
        return frozenset(name for name, holds in held.items() if holds)

    def has(self, option: str) -> bool:
        return any(option in entry.split(",") for entry in self.SecurityOptions)


class FoundEngine(msgspec.Struct, frozen=True):
    """An engine. `refusal` is the reason why paddock can't use it, or None."""

    socket: Path
    info: Info
    refusal: str | None = None


def places() -> Iterator[Path]:
    """Yield the sockets of engines. The first existing one counts."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if os.getuid():
        for directory in filter(None, (runtime, f"/run/user/{os.getuid()}")):
            yield from (Path(directory, "podman/podman.sock"), Path(directory, "docker.sock"))
        yield from _without_login(Path(os.environ.get("TMPDIR") or "/tmp", f"podman-run-{os.getuid()}"))  # noqa: S108 - looks whose
    yield from (Path("/run/podman/podman.sock"), Path("/var/run/docker.sock"))


def _without_login(directory: Path) -> Iterator[Path]:
    """Yield Podman's socket of a user without a runtime directory.

    Other users could create a directory of that name.
    """
    try:
        found = directory.lstat()
    except OSError:
        return
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022:
        yield directory / "podman/podman.sock"


def find() -> FoundEngine | str:
    """Return the engine, or why there is none."""
    named = os.environ.get("DOCKER_HOST")
    if named and not named.startswith("unix://"):
        return (
            f"DOCKER_HOST is {named}: an engine that cannot be reached by a unix socket may be another machine's, "
            "which sees no directory of this one"
        )
    candidates = [Path(named.removeprefix("unix://"))] if named else list(places())
    refusals: list[str] = []
    for place in candidates:
        try:
            info = _ask(place)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            refusals.append(_forbidden(place))
        except (OSError, http.client.HTTPException, msgspec.DecodeError, ValueError) as error:
            refusals.append(f"nothing that could be used answers at {place}: {error}")
        else:
            return FoundEngine(place, info, _refusal(place, info))
    if refusals:
        return "; ".join(refusals)
    return "no container engine listens at " + ", ".join(map(str, candidates))


def _forbidden(place: Path) -> str:
    """Say which part of the path this user may not use."""
    closed = next((parent for parent in reversed(place.parents) if not os.access(parent, os.X_OK)), place)
    return f"{place} may not be used by this user: {closed} is closed to it"


def is_ours(found: FoundEngine) -> bool:
    """Tell whether this user may enter its containers' namespaces: root, or the owner of the engine."""
    return os.getuid() == 0 or found.info.Rootless or found.info.has("name=rootless")


def _refusal(place: Path, info: Info) -> str | None:
    if info.KernelVersion and info.KernelVersion != os.uname().release:
        return f"the engine at {place} runs on another kernel ({info.KernelVersion}), in a virtual machine, perhaps"
    if not info.has("name=seccomp"):
        return f"{info.name} at {place} filters no system calls"
    if info.has("name=selinux"):
        return f"{info.name} at {place} uses SELinux, under which a container cannot be called by its host this way"
    if info.Rootless and place.stat().st_uid == os.getuid() and isinstance(why := subordinate_ids.granted(), str):
        return f"{info.name} at {place} has no ids for the owners of an image's files: {why}"
    return None


def _ask(place: Path) -> Info:
    with contextlib.closing(Connection(place, _SECONDS)) as connection:
        connection.request("GET", f"{API}/info")
        answer = connection.getresponse()
        body = answer.read(_MOST_BYTES)
        if answer.status != 200:
            raise ValueError(f"{answer.status} {body[:200].decode('utf-8', 'replace').strip()}")
        return msgspec.json.decode(body, type=Info)


def _remedy() -> str:
    """Return the commands that give this user an engine. All but the last need root."""
    steps = [_SERVE]
    if os.getuid() and isinstance(subordinate_ids.granted(), str):
        steps.insert(0, subordinate_ids.remedy())
    if shutil.which("podman") is None:
        steps.insert(0, f"{_INSTALL}{' uidmap' if os.getuid() else ''}")
    return " && ".join(steps)


def checks(found: FoundEngine | str) -> tuple[Check, ...]:
    """Lines for `doctor`."""
    others = "use level jail, gvisor or microvm"
    if isinstance(found, str):
        return (missing("level", "container", found, _remedy()),)
    if found.refusal is not None:
        return (missing("level", "container", found.refusal, f"{others}; or {_remedy()}"),)
    info = found.info
    lacks = [name for name in ("memory", "processes", "processor time") if name not in info.limits]
    limits = f"; it does not limit {', '.join(lacks)} here" if lacks else ""
    detail = f"{info.name} at {found.socket}{', without root' if info.Rootless else ''}{limits}"
    closed = "no container with a policy can be made: the networks of another user's engine cannot be entered"
    disk = "not enforced, nor the number of files: the engine keeps them; one file is as large as the limit at most"
    return (
        weak("level", "container", detail) if lacks else ok("level", "container", detail),
        ok("container", "egress", EGRESS)
        if is_ours(found)
        else missing("container", "egress", closed, f"an engine of your own: {_remedy()}"),
        ok("container", "sleep", SLEEP),
        weak("container", "disk", disk, others),
    )
