"""Attacks on the limit of the disk: bytes that are taken without being counted, and trees made to be a burden."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from attacking import Attacker, allocated, needs

from paddock import Sandbox, Workspace
from paddock.errors import PaddockError, SandboxDiedError

MIB = 1 << 20
DISK_MIB = 32
Limited = Callable[..., Attacker]

# Each tries to hold more than the limit. `total` counts what was given; EDQUOT and ENOSPC end it.
HOARDS = {
    "allocated ahead": """
n = 0
while total < 400 << 20:
    f = os.open(f'/workspace/{n}', os.O_CREAT | os.O_RDWR); n += 1
    os.posix_fallocate(f, 0, 8 << 20); total += 8 << 20
""",
    "beyond the end of the file": """
f = os.open('/workspace/f', os.O_CREAT | os.O_RDWR)
while total < 400 << 20:
    if libc.fallocate(f, 1, ctypes.c_long(total), ctypes.c_long(8 << 20)): raise OSError(ctypes.get_errno() or 28, '')
    total += 8 << 20
""",
    "holes, one after the other": """
f = os.open('/workspace/f', os.O_CREAT | os.O_RDWR)
while total < 400 << 20:
    os.pwrite(f, os.urandom(1 << 20), total); os.fsync(f); total += 1 << 20
    libc.fallocate(f, 3, ctypes.c_long(total - (1 << 20) + 4096), ctypes.c_long((1 << 20) - 8192))
os.sync()
total = os.stat(f).st_blocks * 512
""",
    "overwritten in the middle": """
f = os.open('/workspace/f', os.O_CREAT | os.O_RDWR)
while total < 400 << 20:
    os.pwrite(f, os.urandom(4 << 20), total); os.fsync(f); total += 4 << 20
    for at in range(total - (4 << 20), total, 65536): os.pwrite(f, b'x' * 4096, at)
    os.fsync(f)
""",
    "attributes": """
n = 0
while total < 400 << 20:
    file = f'/workspace/{n}'; n += 1; os.close(os.open(file, os.O_CREAT))
    for k in range(4): os.setxattr(file, f'user.{k}', os.urandom(3000)); total += 3000
    if n % 200 == 0: os.fsync(os.open('/workspace', os.O_RDONLY))
""",
    "small files, kept in the tree itself": """
n = 0
while total < 400 << 20:
    f = os.open(f'/workspace/{n}', os.O_CREAT | os.O_WRONLY); n += 1; total += os.write(f, os.urandom(2000))
    if n % 500 == 0: os.fsync(f)
    os.close(f)
""",
    "names": """
n = 0
os.close(os.open('/workspace/f', os.O_CREAT))
while total < 400 << 20:
    if n % 1000 == 0: os.mkdir(f'/workspace/d{n}'); d = f'/workspace/d{n}'; os.fsync(os.open(d, os.O_RDONLY))
    os.symlink('t' * 2000, f'{d}/{n:0200}'); n += 1; total += 2200
""",
    "copies without a copy": """
import fcntl
f = os.open('/workspace/f', os.O_CREAT | os.O_RDWR); os.write(f, os.urandom(16 << 20)); os.fsync(f); total = 16 << 20
n = 0
while total < 400 << 20:
    g = os.open(f'/workspace/g{n}', os.O_CREAT | os.O_RDWR); n += 1
    fcntl.ioctl(g, 0x40049409, f)
    for at in range(0, 16 << 20, 4096): os.pwrite(g, b'y', at)
    os.fsync(g); total += 16 << 20
""",
    "files without a name": """
held = []
while total < 400 << 20:
    f = os.open('/workspace', os.O_TMPFILE | os.O_RDWR); held.append(f)
    total += os.write(f, os.urandom(8 << 20)); os.fsync(f)
""",
}


@pytest.mark.parametrize("kind", HOARDS)
def test_no_way_of_writing_takes_more_than_the_limit(kind: str, strongest: Limited, shared_state: Path) -> None:
    needs("disk")
    attacker = strongest(disk_mib=DISK_MIB, inodes=400_000)
    before = allocated(shared_state)
    code = f"total = 0\nanswers = []\ntry:\n{_indented(HOARDS[kind])}\n"
    code += "except OSError as error: answers.append(name(error.errno))\nanswer([total, answers])"
    total, answers = attacker.probe(code)
    used = attacker.sandbox.usage().disk_bytes or 0
    assert used <= (DISK_MIB + 16) * MIB
    assert answers in (["EDQUOT"], ["ENOSPC"], ["EOPNOTSUPP"], ["EXDEV"], ["EINVAL"], ["ENOTTY"]) or total <= 80 * MIB
    assert allocated(shared_state) - before < 400 * MIB
    with contextlib.suppress(PaddockError):
        attacker.sh("rm -rf /workspace/*")
    assert attacker.sh("echo alive").stdout == "alive\n"


# include/uapi/linux/btrfs.h
IOCTLS_OF_BTRFS = {
    "SUBVOL_CREATE": 0x5000940E, "SUBVOL_CREATE_V2": 0x50009418, "SNAP_CREATE": 0x50009401, "SNAP_DESTROY": 0x5000940F,
    "SUBVOL_SETFLAGS": 0x4008941A, "INO_LOOKUP": 0xD0009412, "SYNC": 0x9408, "FS_INFO": 0x8400941F,
    "SUBVOL_CREATE, high bits": 0x1_5000940E,
}  # fmt: skip


@pytest.mark.parametrize("user", [None, "root"])
def test_a_durable_workspace_has_no_subvolumes_but_copies_by_reference(
    user: str | None, create: Callable[..., Sandbox], shared_state: Path
) -> None:
    """A workspace is mounted as it is: a subvolume made in there would be in no quota, and in no copy."""
    if user is not None and os.getuid() != 0:
        pytest.skip("there is no root inside for an ordinary user")
    workspace = Workspace.open(f"ioctl-{user}")
    attacker = Attacker(create(workspace=workspace.name), user)
    try:
        answers, copy = attacker.probe(
            "fd = os.open('/workspace', os.O_RDONLY)\n"
            "with open('/workspace/one', 'wb') as file: file.write(b'x' * 65536)\n"
            "def ask(request):\n"
            "    space = ctypes.create_string_buffer(4096)\n"
            "    if request & 0xffff in (0x940e, 0x9401): struct.pack_into('=q8s', space, 0, fd, b'nested')\n"
            "    if request & 0xffff == 0x9418: struct.pack_into('=qQQ32x8s', space, 0, 0, 0, 0, b'nested')\n"
            "    return call(16, fd, request, space)\n"
            "one, two = os.open('/workspace/one', os.O_RDONLY), os.open('/workspace/two', os.O_CREAT | os.O_WRONLY)\n"
            "copied = call(16, two, 0x40049409, one), os.stat(two).st_size\n"
            "answer([{n: ask(r) for n, r in json.loads(sys.argv[1]).items()}, copied])",
            json.dumps(IOCTLS_OF_BTRFS),
        )
        assert answers == dict.fromkeys(IOCTLS_OF_BTRFS, "ENOTTY")
        assert not attacker.sandbox.filesystem.exists("/workspace/nested")
        assert copy in (["allowed", 65536], ["ENOTSUP", 0])  # the latter is what Python calls EOPNOTSUPP
        if copy[0] == "allowed":
            assert attacker.sh("cp --reflink=always /workspace/one /workspace/three").ok
    finally:
        attacker.sandbox.kill()
        workspace.delete(discard=True)


def test_a_tree_of_endless_depth_is_killed_and_deleted_like_any_other(create: Callable[..., Sandbox]) -> None:
    for user in [None, *(["root"] if os.getuid() == 0 else [])]:
        sandbox = create()
        try:
            made = Attacker(sandbox, user).probe(
                "n = 0\nos.chdir('/workspace')\n"
                "try:\n"
                "    while n < 5000: os.mkdir('d' * 200); os.chdir('d' * 200); n += 1\n"
                "except OSError: pass\n"
                "answer(n)"
            )
            assert made > 100
            assert len(sandbox.filesystem.list("/workspace")) == 1
        except SandboxDiedError as died:  # a look that measures it came in between, where no quota does
            if died.details["limit"] != "inodes":
                raise
        sandbox.kill()


def test_a_tree_that_nobody_may_enter_is_deleted_like_any_other(create: Callable[..., Sandbox]) -> None:
    for user in [None, *(["root"] if os.getuid() == 0 else [])]:
        sandbox = create()
        Attacker(sandbox, user).run(
            "os.makedirs('/workspace/a/b/c'); open('/workspace/a/b/c/f', 'w').close()\n"
            "for n in range(200): os.makedirs(f'/workspace/x{n}/y'); os.chmod(f'/workspace/x{n}/y', 0); "
            "os.chmod(f'/workspace/x{n}', 0)\n"
            "for p in ('/workspace/a/b/c', '/workspace/a/b', '/workspace/a'): os.chmod(p, 0)\n"
            "import fcntl\n"
            "for flag in (0x10, 0x20):\n"
            "    fd = os.open('/workspace', os.O_RDONLY)\n"
            "    try: fcntl.ioctl(fd, 0x40086602, struct.pack('i', flag))\n"
            "    except OSError: pass\n"
            "attempt(os.chmod, '/workspace', 0)\n"
        )
        sandbox.kill()
        assert sandbox.state == "killed"


def test_names_of_every_byte_come_out_as_they_are(attacker: Attacker) -> None:
    attacker.run(
        "os.chdir('/tmp'); os.mkdir('d')\n"
        "for n in range(1, 256):\n"
        "    if n != 47: os.close(os.open(b'd/' + bytes([n]) * 255, os.O_CREAT))\n"
    )
    found = attacker.sandbox.filesystem.list("/tmp/d")
    assert {os.fsencode(info.path)[len("/tmp/d/") :] for info in found} == {
        bytes([n]) * 255 for n in range(1, 256) if n != 47
    }


def test_a_full_disk_is_no_reason_not_to_die(limited: Limited) -> None:
    needs("disk")
    attacker = limited(disk_mib=16)
    with contextlib.suppress(SandboxDiedError):
        attacker.sh("head -c 100M /dev/urandom >/workspace/full; touch /workspace/after; mkdir -p ~/.paddock/exec")
    attacker.sandbox.kill()
    assert attacker.sandbox.state == "killed"


def _indented(code: str) -> str:
    return "\n".join(f"    {line}" for line in code.strip("\n").splitlines())
