"""The template `debian`: a separate Debian, which mmdebstrap installs from the sources of the machine's apt."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import IO

from paddock.errors import NotConfiguredError, PlatformError, UnsupportedError
from paddock.linux import files, subordinate_ids
from paddock.storage.pool.worker import Worker
from paddock.storage.templates.images.layer import LayerWriter
from paddock.storage.templates.images.limits import ImageLimits
from paddock.storage.templates.recipe import SYSTEM_PATH, Progress, Recipe

_VERSION = "1"
_PACKAGES = (
    "bash,ca-certificates,curl,git,less,netbase,openssh-client,patch,procps,python3,python3-pip,python3-pytest,"
    "python3-venv,ripgrep,tzdata,unzip,xz-utils"
)
# Run in the chroot before it becomes a tree. The machine's package sources may contain a password.
_HOOKS = (
    'chroot "$1" useradd --uid 1000 --user-group --create-home --shell /bin/bash user',
    'mkdir "$1/workspace" && chown 1000:1000 "$1/workspace"',
    'rm -rf "$1"/etc/apt/sources.list "$1"/etc/apt/sources.list.d/* "$1"/etc/apt/auth.conf.d/*',
    ': > "$1/etc/resolv.conf"; : > "$1/etc/machine-id"; echo sandbox > "$1/etc/hostname"',
    'printf "[safe]\\n\\tdirectory = *\\n[init]\\n\\tdefaultBranch = main\\n" > "$1/etc/gitconfig"',
)
_SAID = 2000
_SECONDS_TO_CLEAN = 60


def recipe(machine: Path) -> Recipe:
    """Return the recipe. NotConfiguredError: mmdebstrap is missing. UnsupportedError: the machine isn't a Debian, or we
    may not build one."""
    release = _os_release(machine)
    suite = release.get("VERSION_CODENAME", "")
    if release.get("ID") != "debian" or not re.fullmatch(r"[a-z]+", suite, re.ASCII):
        raise UnsupportedError(
            "the template debian is built from a Debian machine's package sources, and this machine is none",
            hint="use the template host",
        )
    if os.geteuid() != 0 and isinstance(why := subordinate_ids.granted(), str):
        raise UnsupportedError(
            f"an ordinary user builds the template debian with subordinate ids: {why}", hint="use the template host"
        )
    sources = [path.read_text() for path in _sources(machine)]
    if not sources:
        raise NotConfiguredError("this machine's apt has no package sources", hint="man sources.list")

    def fill(root: int, worker: Worker, progress: Progress) -> None:
        _build(root, worker, suite, _sources(machine), progress)

    return Recipe(
        name="debian",
        facts=(_VERSION, suite, os.uname().machine, _PACKAGES, *_HOOKS, *sources),
        fill=fill,
        host_usr=False,
    )


def _build(root: int, worker: Worker, suite: str, sources: list[Path], progress: Progress) -> None:
    tool = files.find_program("mmdebstrap")
    if tool is None:
        raise NotConfiguredError("mmdebstrap is not installed", hint="apt-get install mmdebstrap")
    command = [tool, "--variant=minbase", "--format=tar", f"--include={_PACKAGES}"]
    command += ["--mode=root" if os.geteuid() == 0 else "--mode=unshare"]
    command += [f"--customize-hook={hook}" for hook in _HOOKS]
    command += [suite, "-", *map(str, sources)]
    progress("installing Debian: about a minute")
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(),
        )
        assert process.stdout is not None
        try:
            with process.stdout as stream:
                worker.confined(unpack, (stream.fileno(), root), worker.base)
                while stream.read(1 << 16):  # the padding after the archive's end
                    pass
            status = process.wait()
        except BaseException as error:
            _end(process)
            if not isinstance(error, Exception):
                raise
            raise PlatformError(f"mmdebstrap failed: {_end_of(log)}", hint="paddock doctor") from error
        if status != 0:
            raise PlatformError(f"mmdebstrap failed with {status}: {_end_of(log)}", hint="paddock doctor")


def unpack(source: int, root: int, base: int | None) -> None:
    """Extract the archive `source` over the directory `root`, and nothing outside.

    `base` is an offset for its owners.
    """
    with open(source, "rb", closefd=False) as stream:
        LayerWriter(root, base, ImageLimits().budget(ImageLimits().unpacked_bytes)).apply(stream)
    os.fchmod(root, 0o755)
    if base is not None:
        os.fchown(root, base, base)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End mmdebstrap by SIGTERM first, at which it removes its unpacked files."""
    process.terminate()
    try:
        process.wait(_SECONDS_TO_CLEAN)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _environment() -> dict[str, str]:
    """Return an environment with only the variables about proxies from ours."""
    kept = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
    return {**kept, "PATH": SYSTEM_PATH, "LC_ALL": "C.UTF-8", "TMPDIR": tempfile.gettempdir()}


def _end_of(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - _SAID))
    return log.read().decode(errors="replace").strip()


def _sources(machine: Path) -> list[Path]:
    """Return the files that name Debian's own sources. Other sources need keys that a fresh system doesn't have."""
    apt = machine / "etc/apt"
    candidates = [apt / "sources.list", apt / "sources.list.d/debian.sources", apt / "sources.list.d/debian.list"]
    return [path for path in candidates if path.is_file() and path.read_text().strip()]


def _os_release(machine: Path) -> dict[str, str]:
    try:
        text = (machine / "etc/os-release").read_text()
    except OSError:
        return {}
    return {key: value.strip("\"'") for key, _, value in (line.partition("=") for line in text.splitlines())}
