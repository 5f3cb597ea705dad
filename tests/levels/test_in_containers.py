"""A jail in a container of runc's or Podman's, as Docker and Podman start it but for the flags that the page names.

`docs/howto/containers.md` has the line for each case.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.driver import build_module

ROOT = Path(__file__).parents[2]
RUNC = shutil.which("runc")
CAPABILITIES = (  # Docker's default (moby/oci/caps/defaults.go): no CAP_SYS_ADMIN
    "CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW SYS_CHROOT MKNOD AUDIT_WRITE"
    " SETFCAP"
)
PODMAN = shutil.which("podman")
FILTER = Path("/usr/share/containers/seccomp.json")
"""Podman's own filter. It has Docker's format."""
# Docker's filter allows these with CAP_SYS_ADMIN only (moby/profiles/seccomp/default.json), Podman's always.
NOT_DOCKERS = (
    *("clone3", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree"),
    *("setns", "umount", "umount2", "unshare"),
)
SYSTEM = sys.base_prefix == "/usr"
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(RUNC is None, reason="no runc: apt-get install runc"),
    pytest.mark.skipif(not SYSTEM, reason="the Python that runs this isn't below /usr, which the container sees"),
]


@pytest.fixture
def bundle(tmp_path: Path) -> Iterator[Path]:
    """A container's file system, an overlay as engines make it, with this machine's /usr and /etc to read."""
    parts = {name: tmp_path / name for name in ("lower", "upper", "work", "rootfs")}
    for part in parts.values():
        part.mkdir()
    for name in ("usr", "etc", "proc", "sys", "dev", "tmp", "root", "home/u", "w", "site-packages", "run", "var/tmp"):
        (parts["lower"] / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (parts["lower"] / name).symlink_to(f"usr/{name}")
    (parts["lower"] / "tmp").chmod(0o1777)
    os.chown(parts["lower"] / "home/u", 1234, 1234)
    options = "lowerdir={lower},upperdir={upper},workdir={work}".format_map(parts)
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, parts["rootfs"]], check=True)
    yield tmp_path
    subprocess.run(["umount", parts["rootfs"]], check=True)


def in_container(bundle: Path, script: str, *, uid: int, covered: bool) -> str:
    subprocess.run([str(RUNC), "spec"], cwd=bundle, check=True)
    config = json.loads((bundle / "config.json").read_text())
    held = [f"CAP_{name}" for name in CAPABILITIES.split()]
    config["process"] |= {
        "terminal": False,
        "user": {"uid": uid, "gid": uid},
        "args": ["sh", "-c", script],
        "env": [
            *("PATH=/usr/bin:/bin", "XDG_CACHE_HOME=/cache", "PYTHONPATH=/w/src:/site-packages"),
            f"HOME={'/home/u' if uid else '/root'}",
        ],
        "rlimits": [],
        "noNewPrivileges": False,
        "capabilities": {
            kind: [] if uid and kind != "bounding" else held for kind in ("bounding", "effective", "permitted")
        },
    }
    config["root"]["readonly"] = False
    if not covered:
        config["linux"] |= {"maskedPaths": [], "readonlyPaths": []}
    guests = str(build_module().build().parent.parent)
    seen = {"/usr": "/usr", "/etc": "/etc", "/w": str(ROOT), "/cache/paddock/guest": guests}
    seen["/site-packages"] = next(path for path in sys.path if path.endswith("site-packages"))
    config["mounts"] += [
        {"destination": place, "type": "bind", "source": source, "options": ["rbind", "ro"]}
        for place, source in seen.items()
    ]
    (bundle / "config.json").write_text(json.dumps(config))
    name = f"paddock-{os.urandom(6).hex()}"
    done = subprocess.run(
        [str(RUNC), "run", name], cwd=bundle, capture_output=True, text=True, timeout=120, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("uid", [0, 1234], ids=["root", "user"])
def test_a_jail_runs_in_a_container_that_covers_nothing_of_proc(bundle: Path, uid: int) -> None:
    script = "python3 -m paddock run -- sh -c 'id -un; echo it holds'; python3 -m paddock daemon stop"
    assert in_container(bundle, script, uid=uid, covered=False) == "user\nit holds\nstopped\n"


def test_in_one_that_covers_parts_of_it_the_flag_is_named(bundle: Path) -> None:
    said = in_container(bundle, "python3 -m paddock run -- true; echo $?", uid=1234, covered=True)
    assert "systempaths=unconfined (Docker)" in said
    assert said.startswith("125\n") or said.endswith("125\n")


def in_podman(bundle: Path, script: str, uid: int, *options: str) -> str:
    (bundle / "conf").write_text('[engine]\nruntime = "runc"\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\n')
    etc = bundle / "lower/etc"
    for name in ("passwd", "group", "nsswitch.conf"):
        shutil.copy(f"/etc/{name}", etc)
    guests = str(build_module().build().parent.parent)
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    seen = {"/usr": "/usr", str(ROOT): "/w", guests: "/cache/paddock/guest", packages: "/site-packages"}
    home = "/home/u" if uid else "/root"
    environment = f"PATH=/usr/bin:/bin HOME={home} XDG_CACHE_HOME=/cache PYTHONPATH=/w/src:/site-packages".split()
    words = [
        *("run", "--rm", "--network=none", f"--user={uid}", "--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096"),
        *options,
        *(f"--volume={source}:{target}:ro" for source, target in seen.items()),
        *(f"--env={variable}" for variable in environment),
        *("--rootfs", f"{bundle}/lower:O", "sh", "-c", script),
    ]
    with tempfile.TemporaryDirectory(prefix="pc-") as place:  # its name is short: Podman insists
        done = subprocess.run(
            [str(PODMAN), f"--root={place}/store", f"--runroot={place}/run", f"--tmpdir={place}/t", *words],
            env={**os.environ, "CONTAINERS_CONF": str(bundle / "conf")},
            cwd=bundle,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        subprocess.run(["umount", f"{place}/store/overlay"], capture_output=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.skipif(PODMAN is None or not FILTER.exists(), reason="no podman: apt-get install podman runc")
@pytest.mark.parametrize("uid", [0, 1234], ids=["root", "user"])
def test_podman_needs_one_flag(bundle: Path, uid: int) -> None:
    script = "python3 -m paddock run -- sh -c 'id -un; echo it holds'; python3 -m paddock daemon stop"
    assert "unmask=ALL (Podman)" in in_podman(bundle, script, uid)
    assert in_podman(bundle, script, uid, "--security-opt=unmask=ALL") == "user\nit holds\nstopped\n"


@pytest.mark.skipif(PODMAN is None or not FILTER.exists(), reason="no podman: apt-get install podman runc")
def test_under_dockers_filter_both_flags_are_named_at_once(bundle: Path) -> None:
    profile = json.loads(FILTER.read_text())
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in NOT_DOCKERS]
    docker = bundle / "docker.json"
    docker.write_text(json.dumps(profile))
    said = in_podman(bundle, "python3 -m paddock run -- true", 1234, f"--security-opt=seccomp={docker}")
    assert "seccomp=unconfined (Docker)" in said
    assert "systempaths=unconfined (Docker)" in said
