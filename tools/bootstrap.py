"""Sets up a checkout from nothing: system packages by name, then `.venv` with exactly what `uv.lock` says.

Run by `tools/bootstrap`. Standard library only; quick when nothing has to be done.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11) or sys.prefix != sys.base_prefix:  # a virtual environment is not to be built upon
    sys.exit(1)

import fcntl
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sysconfig
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
TOOLS = ROOT / ".tools"  # a separate venv for uv, if the machine has none
STAMP = VENV / "paddock-setup"


@dataclass(frozen=True)
class SystemPackage:
    """`program` is how its presence is known; `purposes` are the commands that want it."""

    name: str
    program: str
    why: str
    purposes: frozenset[str]
    root_only: bool = False
    beforehand: str = ""
    """A file that has to be there first."""


EVERY = frozenset({"setup", "check", "bench"})
PURPOSES = EVERY | {"levels", "site", "wheels"}
SYSTEM_PACKAGES = (
    SystemPackage("git", "git", "agents in a sandbox use the machine's", EVERY),
    SystemPackage(
        "btrfs-progs", "mkfs.btrfs", "the pool: disk limits that hold, instant snapshots", EVERY, root_only=True
    ),
    SystemPackage("uidmap", "newuidmap", "root and a range of ids in an ordinary user's sandboxes", EVERY),
    SystemPackage(
        "openssh-server",
        "sshd",
        "tests fetch and push over ssh; no server of the machine's own is started",
        frozenset({"setup"}),
        root_only=True,
        beforehand="/etc/ssh/sshd_not_to_be_run",
    ),
    SystemPackage(
        "chromium",
        "chromium",
        "a browser in a sandbox has to trust the gateway",
        frozenset({"setup"}),
        root_only=True,
    ),
    SystemPackage("gcc", "gcc", "compiles the guest", EVERY),
    SystemPackage("libc6-dev", "gencat", "the sanitizers, which the guest is tested with, link it", EVERY),
    SystemPackage("clang", "clang", "the guest has no warnings from it either; its fuzzer", frozenset({"check"})),
    SystemPackage("libclang-rt-dev", "clang", "the runtime of that fuzzer", frozenset({"check"})),
    SystemPackage("nodejs", "node", "pyright, the type checker, runs on it", frozenset({"check"})),
    SystemPackage("npm", "npm", "brings textlint, which reads the prose", frozenset({"check"})),
    SystemPackage("bubblewrap", "bwrap", "the reference that sandboxes are measured against", frozenset({"bench"})),
    SystemPackage("runsc", "runsc", "level gvisor", frozenset({"levels"})),
    SystemPackage("qemu-system-x86", "qemu-system-x86_64", "level microvm", frozenset({"levels"})),
    SystemPackage(
        "qemu-system-arm",
        "qemu-system-aarch64",
        "boots the guest as pid 1 on aarch64, in a test",
        frozenset({"levels"}),
    ),
    SystemPackage("e2fsprogs", "mke2fs", "level microvm makes its disks with it", frozenset({"levels"})),
    SystemPackage("podman", "podman", "level container", frozenset({"levels"})),
    SystemPackage(
        "runc", "runc", "starts Podman's containers where both versions of cgroups are", frozenset({"levels"})
    ),
    SystemPackage("skopeo", "skopeo", "tests push images to a registry with it", frozenset({"levels"})),
    SystemPackage("docker-registry", "docker-registry", "the registry that they push to", frozenset({"levels"})),
    SystemPackage(
        "qemu-user-static", "qemu-aarch64-static", "runs the guest's tests for aarch64", frozenset({"levels"})
    ),
    SystemPackage(
        "gcc-aarch64-linux-gnu",
        "aarch64-linux-gnu-gcc",
        "compiles the guest for aarch64",
        frozenset({"levels"}),
    ),
    SystemPackage("busybox-static", "busybox", "tests make images without a libc of it", frozenset({"levels"})),
)
KERNEL = "linux-image-cloud-amd64"  # depends on the newest one of the release
KERNEL_PLACE = Path("/usr/local/lib/paddock/kernel")
"""`boot/` and `lib/modules/`, as in the package. It is unpacked, never installed: this machine does not boot it."""
RUNSC_PLACE = Path("/usr/local/lib/paddock/runsc")
"""A later runsc than the release's, unpacked: in that of Debian 12, of 2022, Debian 12's own `ls` and `stat` fail."""
RUNSC_SINCE = 2023
OTHER_PLACE = Path("/usr/local/lib/paddock/aarch64")
"""A kernel and programs, unpacked, which a machine of the other architecture boots in tests."""
OTHER_KERNEL = "linux-image-cloud-arm64"
OTHER_PROGRAMS = ("busybox-static", "git", "python3")
RUNSC_SUITE = "trixie"


def main(arguments: list[str]) -> int:
    if arguments == ["--probe"]:
        print("good" if readable_by_others(Path(sys.executable)) else "private")
        return 0
    purpose = arguments[0] if arguments else "setup"
    if purpose not in PURPOSES or len(arguments) > 1:
        return fail("usage: tools/bootstrap [setup|check|bench|levels|site|wheels]")
    os.chdir(ROOT)
    lock = os.open(ROOT, os.O_RDONLY)  # two commands at once: the second waits and finds all done
    fcntl.flock(lock, fcntl.LOCK_EX)
    fresh = not up_to_date()
    provide_system_packages(purpose, announce=fresh or purpose != "setup")
    if purpose == "levels":
        provide_kernel()
        provide_runsc()
        provide_other_architecture()
    if fresh:
        make_environment()
    if purpose == "check":
        provide_textlint()
    if purpose == "site":
        provide_site()
    if purpose == "wheels":
        provide_ziglang()
    return 0


def fail(message: str) -> NoReturn:
    raise SystemExit(f"paddock setup: {message}")


def say(message: str) -> None:
    print(f"paddock setup: {message}", file=sys.stderr, flush=True)


def readable_by_others(executable: Path) -> bool:
    """Whether an ordinary user can run this interpreter: root's own, such as one below /root, can't be."""
    library = Path(sysconfig.get_path("stdlib"))
    return all(
        os.stat(directory).st_mode & stat.S_IXOTH
        for path in (executable.resolve(), library.resolve())
        for directory in (path, *path.parents)
    )


# --- system packages ---------------------------------------------------------------------------------------------


def provide_system_packages(purpose: str, *, announce: bool) -> None:
    """Installs what is missing where this process may, else says the line that would."""
    root = os.geteuid() == 0
    search = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    missing = [
        package
        for package in SYSTEM_PACKAGES
        if purpose in package.purposes
        and (root or not package.root_only)
        and not shutil.which(package.program, path=search)
    ]
    if missing and root and shutil.which("apt-get"):
        install_system_packages(missing)
    elif missing and announce:
        for package in missing:
            say(f"{package.name} is missing: {package.why}")
        say(f"as root: apt-get install {' '.join(package.name for package in missing)}")


def install_system_packages(packages: list[SystemPackage]) -> None:
    names = [package.name for package in packages]
    for package in packages:
        say(f"installing {package.name}: {package.why}")
        if package.beforehand:
            Path(package.beforehand).parent.mkdir(parents=True, exist_ok=True)
            Path(package.beforehand).touch()
    apt = ["apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120"]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = [*apt, "install", "-y", "--no-install-recommends", *names]
    if succeeds(install, environment):
        return
    if succeeds([*apt, "update"], environment) and succeeds(install, environment):
        return
    say(f"could not install {' '.join(names)}; going on without")


def provide_kernel(place: Path = KERNEL_PLACE) -> None:
    """Provide the kernel that virtual machines boot, whole or not at all."""
    if any(place.glob("boot/vmlinuz-*")) or os.uname().machine != "x86_64":
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return say(f"no kernel for virtual machines in {place}: as root, on Debian: tools/bootstrap levels")
    say(f"fetching a kernel for virtual machines into {place}")
    unpack_whole(
        place,
        lambda scratch: fetch_kernel(scratch) or (succeeds(["apt-get", "-qq", "update"]) and fetch_kernel(scratch)),
    )


def provide_runsc(place: Path = RUNSC_PLACE) -> None:
    """Provide a runsc that does for the machine's own programs, if the release's does not."""
    own = runsc_year()
    if (place / "usr/bin/runsc").exists() or own is None or own >= RUNSC_SINCE:
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return say(f"runsc is of {own}, and `ls` and `stat` fail in it: as root, on Debian: tools/bootstrap levels")
    say(f"fetching a later runsc into {place}: that of this release is of {own}")
    unpack_whole(place, fetch_runsc)


def provide_other_architecture(place: Path = OTHER_PLACE) -> None:
    """Provide what `tests/vmm/test_aarch64.py` and `tests/tools/aarch64.py` boot, whole or not at all."""
    if (place / "usr/bin/python3").is_symlink() or os.uname().machine != "x86_64":
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return say(f"no kernel for aarch64 in {place}: as root, on Debian: tools/bootstrap levels")
    say(f"fetching a kernel, Busybox, git and Python for aarch64 into {place}")
    unpack_whole(place, fetch_other_architecture)


def provide_textlint(place: Path = ROOT / "tools" / "prose") -> None:
    """Install what package-lock.json names, unless it is there."""
    lock, installed = place / "package-lock.json", place / "node_modules" / ".package-lock.json"
    if installed.exists() and installed.stat().st_mtime >= lock.stat().st_mtime:
        return
    say("installing textlint into tools/prose/node_modules")
    if not succeeds(["npm", "ci", "--prefix", str(place), "--no-audit", "--no-fund", "--silent"]):
        fail("npm could not install textlint, which `make check` reads the prose with")


def provide_ziglang() -> None:
    """Install the pinned compiler of releases into `.venv`, unless it is there."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('ziglang') is None)"
    if succeeds([str(VENV / "bin" / "python"), "-c", look]):
        return
    say("installing ziglang, some 100 MB, which compiles the guest of a release")
    uv = machine_uv(dict(os.environ)) or own_uv(dict(os.environ))
    if uv is None or not succeeds([uv, "sync", "--quiet", "--frozen", "--group", "zig", "--python", sys.executable]):
        fail("uv could not install ziglang, which compiles the guest of a release")


def provide_site(place: Path = TOOLS / "site", wanted: Path = ROOT / "tools" / "site.txt") -> None:
    """Install MkDocs as site.txt has it into a separate environment, unless it is there."""
    stamp = place / "site.txt"
    if stamp.exists() and stamp.read_text() == wanted.read_text():
        return
    say("installing MkDocs into .tools/site")
    environment = dict(os.environ)
    try:
        python = make_venv(place, environment)
    except RuntimeError as error:
        fail(str(error))
    if not pip(python, ["--no-deps", "-r", str(wanted)], environment):
        fail("pip could not install MkDocs, which builds the site")
    stamp.write_text(wanted.read_text())


def runsc_year() -> int | None:
    """When the machine's own was made, if there is one."""
    program = shutil.which("runsc")
    if program is None:
        return None
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"runsc version \S*?(\d{4})\d{4}", said)
    return int(found[1]) if found else None


def fetch_runsc(scratch: Path) -> bool:
    """From a later suite."""
    options = options_for(scratch, RUNSC_SUITE)
    return options is not None and unpack(scratch, "runsc", options)


def fetch_other_architecture(scratch: Path) -> bool:
    """Those of this machine's own suite."""
    suite = re.search(r"^VERSION_CODENAME=(\w+)$", Path("/etc/os-release").read_text(), re.MULTILINE)
    options = None if suite is None else options_for(scratch, suite[1], "arm64")
    if options is None:
        return False
    newest = newest_kernel(OTHER_KERNEL, options)
    return newest is not None and unpack(scratch, newest, options) and unpack_programs(scratch, OTHER_PROGRAMS, options)


def options_for(scratch: Path, suite: str, architecture: str | None = None) -> list[str] | None:
    """Return apt's options for another suite or architecture of this machine's archive, or None without one.

    They leave the machine's lists alone."""
    origin = ["Created-By: Packages", "Origin: Debian", "Label: Debian", "Component: main"]
    sites = ["apt-get", "indextargets", "--format", "$(REPO_URI)", *origin]
    found = subprocess.run(sites, capture_output=True, text=True, check=False).stdout.split()
    keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
    if not found or not keyring.exists():
        return None
    sources, lists = scratch / "sources.list", scratch / "lists"
    only = "" if architecture is None else f"arch={architecture} "
    sources.write_text(f"deb [{only}signed-by={keyring}] {found[0]} {suite} main\n")
    (lists / "partial").mkdir(parents=True)
    # Neither the machine's lists nor its caches: those belong to other sources.
    names = {"Dir::Etc::SourceList": sources, "Dir::Etc::SourceParts": "-", "Dir::State::lists": lists}
    names |= {"Dir::Cache::pkgcache": "", "Dir::Cache::srcpkgcache": "", "Acquire::Languages": "none"}
    if architecture is not None:
        names |= {"APT::Architecture": architecture, "APT::Architectures::": architecture}
    options = [word for name, value in names.items() for word in ("-o", f"{name}={value}")]
    return options if succeeds(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", *options, "update"]) else None


def unpack_whole(place: Path, fetch: Callable[[Path], bool]) -> None:
    """Unpack what `fetch` leaves in `tree`, whole or not at all."""
    place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        if not fetch(Path(scratch)):
            return say("could not fetch it; going on without")
        shutil.rmtree(place, ignore_errors=True)  # a package without what it was fetched for
        Path(scratch, "tree").rename(place)


def fetch_kernel(scratch: Path) -> bool:
    """Unpacks the newest kernel's package."""
    newest = newest_kernel(KERNEL)
    return newest is not None and unpack(scratch, newest)


def newest_kernel(name: str, options: Sequence[str] = ()) -> str | None:
    """Return the package on which that one depends."""
    depends = ["apt-cache", *options, "depends", name]
    facts = subprocess.run(depends, capture_output=True, text=True, check=False).stdout
    names = [words[1] for line in facts.splitlines() if (words := line.split())[:1] == ["Depends:"]]
    return next((name for name in names if name.startswith("linux-image-")), None)


def unpack(scratch: Path, package: str, options: Sequence[str] = ()) -> bool:
    """Download it and unpack it in `tree`."""
    # Only root may write there, so not apt's user.
    fetch = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", *options, "download", package]
    if subprocess.run(fetch, cwd=scratch, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False).returncode:
        return False
    (file,) = scratch.glob("*.deb")
    done = succeeds(["dpkg-deb", "-x", str(file), str(scratch / "tree")])
    file.unlink()
    return done


def unpack_programs(scratch: Path, packages: Sequence[str], options: Sequence[str]) -> bool:
    """Download packages with all that they depend on, as for a machine that has nothing, and unpack them in `tree`."""
    files = scratch / "files"
    (files / "partial").mkdir(parents=True)
    names = {"Dir::State::status": "/dev/null", "Dir::Cache::archives": files, "APT::Sandbox::User": "root"}
    apt = [
        "apt-get",
        "-qq",
        "-y",
        *options,
        *(word for name, value in names.items() for word in ("-o", f"{name}={value}")),
    ]
    if not succeeds([*apt, "--no-install-recommends", "--download-only", "install", *packages]):
        return False
    return all(succeeds(["dpkg-deb", "-x", str(file), str(scratch / "tree")]) for file in files.glob("*.deb"))


def succeeds(argv: list[str], environment: dict[str, str] | None = None) -> bool:
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=environment, check=False)
    return done.returncode == 0


# --- the environment ---------------------------------------------------------------------------------------------


def without_compiler() -> bool:
    """Whether the wheel `ziglang` has to compile the guest."""
    return not any(shutil.which(name) for name in ("gcc", "clang", "cc"))


def fingerprint() -> str:
    """Of all that decides what is in `.venv`; scripts in it hold absolute paths, so the place counts, too."""
    digest = hashlib.sha256(f"{ROOT}\0{sys.executable}\0{sys.version}\0{without_compiler()}\0".encode())
    for name in ("uv.lock", "pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def up_to_date() -> bool:
    try:
        stamped = STAMP.read_text() == fingerprint()
    except OSError:
        return False
    return stamped and os.access(VENV / "bin" / "python", os.X_OK)


def make_environment() -> None:
    if not os.access(ROOT, os.W_OK):
        fail(f"{ROOT} belongs to someone else and is not set up; clone a copy of your own")
    STAMP.unlink(missing_ok=True)
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT")}
    environment["UV_PYTHON_DOWNLOADS"] = "never"
    # The machine's own certificates: behind a company's proxy those that uv brings along are not enough.
    environment["UV_SYSTEM_CERTS"] = environment["UV_NATIVE_TLS"] = "true"
    if not any(sync_with_uv(uv, environment) for uv in (machine_uv, own_uv)):
        say("no uv here: using venv and pip")
        install_with_pip(environment)
    if without_compiler():  # with one, the installation has compiled it
        say("compiling the guest with ziglang")
        subprocess.run([VENV / "bin" / "python", "native/build.py"], stdout=subprocess.DEVNULL, check=False)
    STAMP.write_text(fingerprint())
    say("done")


def sync_with_uv(find: Any, environment: dict[str, str]) -> bool:
    uv = find(environment)
    if uv is None:
        return False
    say(f"making .venv from uv.lock with {uv}")
    if without_compiler():
        say("no compiler here: installing ziglang, some 100 MB, to compile the guest")
    more = ["--group", "zig"] if without_compiler() else []
    return succeeds([uv, "sync", "--quiet", "--frozen", *more, "--python", sys.executable], environment)


def machine_uv(environment: dict[str, str]) -> str | None:
    uv = shutil.which("uv", path=environment.get("PATH"))
    if uv and subprocess.run([uv, "--version"], capture_output=True, env=environment, check=False).returncode == 0:
        return uv
    return None


def own_uv(environment: dict[str, str]) -> str | None:
    """Return uv in a separate virtual environment, so that it doesn't manage itself."""
    uv = TOOLS / "bin" / "uv"
    if uv.exists():
        return str(uv)
    say("installing uv into .tools")
    try:
        python = make_venv(TOOLS, environment)
    except RuntimeError as error:
        say(str(error))
        return None
    return str(uv) if pip(python, ["uv"], environment) and uv.exists() else None


def make_venv(directory: Path, environment: dict[str, str]) -> str:
    """Return a virtual environment with pip. RuntimeError if this Python came without the parts (Debian splits them
    off)."""
    argv = [sys.executable, "-I", "-m", "venv", "--clear", str(directory)]
    if not has_ensurepip():
        line = "apt-get install python3-venv"
        if os.geteuid() != 0 or not shutil.which("apt-get"):
            raise RuntimeError(f"{sys.executable} has no ensurepip; as root: {line}")
        install_system_packages([SystemPackage("python3-venv", "", "virtual environments with pip", EVERY)])
    if not succeeds(argv, environment):
        raise RuntimeError(f"{' '.join(argv)} failed")
    return str(directory / "bin" / "python")


def has_ensurepip() -> bool:
    probe = [sys.executable, "-I", "-c", "import ensurepip, venv"]
    return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0


def pip(python: str, arguments: list[str], environment: dict[str, str]) -> bool:
    return succeeds([python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments], environment)


def install_with_pip(environment: dict[str, str]) -> None:
    try:
        python = make_venv(VENV, environment)
    except RuntimeError as error:
        fail(str(error))
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.write(locked_requirements(tomllib.loads((ROOT / "uv.lock").read_text())))
        requirements.flush()
        locked = pip(python, ["--no-deps", "--require-hashes", "-r", requirements.name], environment)
    if not locked or not pip(python, ["--no-deps", "--editable", str(ROOT)], environment):
        fail("pip could not install what uv.lock names; its message is above")


def locked_requirements(lock: dict[str, Any]) -> str:
    """Return what `uv.lock` pins, as pip reads it: version, marker, hashes."""
    packages = {package["name"]: package for package in lock["package"]}
    markers: dict[str, set[str]] = {}
    pending = [packages["paddock-sandbox"]]
    while pending:
        package = pending.pop()
        groups = [
            edges for name, edges in package.get("dev-dependencies", {}).items() if name != "zig" or without_compiler()
        ]
        for edge in [*package.get("dependencies", []), *(edge for group in groups for edge in group)]:
            if edge["name"] not in markers:
                pending.append(packages[edge["name"]])
            markers.setdefault(edge["name"], set()).add(edge.get("marker", ""))
    lines: list[str] = []
    for name, conditions in sorted(markers.items()):
        files = [*packages[name].get("wheels", ()), *([packages[name]["sdist"]] if "sdist" in packages[name] else ())]
        marker = "" if "" in conditions else " ; " + " or ".join(f"({c})" for c in sorted(conditions))
        hashes = "".join(f" --hash={file['hash']}" for file in files)
        lines.append(f"{name}=={packages[name]['version']}{marker}{hashes}\n")
    return "".join(lines)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
