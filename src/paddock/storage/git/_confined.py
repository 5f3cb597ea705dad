"""Runs one program of the host with minimal rights, as `python -I -S <this file> FD PARENT`.

Standard library only.

Descriptor FD has the order as JSON (`Order`). If the process PARENT ends, the kernel kills the program.

The program sees a root directory in memory, the machine's /usr read-only, and the paths of the order. It has no /proc,
no other process and no capability. If paddock is root, the program runs under an unused id, else as paddock's own user.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn, TypedDict

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))

from paddock.linux import caps, children, confine, mounts, namespaces, prctl
from paddock.linux.descriptors import closing


class BindMount(NamedTuple):
    """A directory or file of the host at `target`. `owned`: the files of its owner appear as the program's own."""

    source: str
    target: str
    writable: bool = False
    owned: bool = False


class Order(TypedDict):
    """A program to run.

    `uid` is its user, None for our own. It can read `secret` once, from descriptor 9.

    `agent` is the socket of an ssh agent, which the program finds at AGENT.
    """

    argv: list[str]
    env: dict[str, str]
    uid: int | None
    mounts: list[BindMount]
    files: dict[str, str]
    secret: str
    agent: str | None
    file_bytes: int
    memory_bytes: int


SECRET_FD = 9
AGENT = "/run/ssh/agent"
FAILED = 125
_ROOT_BYTES = 512 << 20
_PROCESSES = 256
_FILES = 1024
_DEVICES = ("/dev/null", "/dev/urandom")
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Files for names, addresses and certificates, if all users may read them.
_ETC = ("hosts", "resolv.conf", "nsswitch.conf", "services", "ssl", "pki", "ca-certificates")

# draft-ietf-sshm-ssh-agent, 4: a length of four bytes, then a type.
_MOST = 256 << 10
_FAILURE = b"\0\0\0\1\5"
_IDENTITIES, _SIGN, _EXTENSION = 11, 13, 27
_BINDING = b"\0\0\0\x18session-bind@openssh.com"


def main(descriptor: int, parent: int) -> None:
    with open(descriptor) as file:
        order: Order = json.load(file)
    try:
        agent = socket.socket(socket.AF_UNIX)
        if order["agent"]:
            agent.connect(order["agent"])  # before the host's file system is out of sight
        _enter_namespaces(order)
        if order["agent"]:
            serve_agent(agent, AGENT)
        agent.close()
        prctl.end_with(parent)
        namespaces.unshare(namespaces.NEWPID)  # last: the first process from now on is the first one in there
        pid = os.fork()
        if pid == 0:
            _be_first(order)
    except Exception as error:
        _fail(f"cannot start {order['argv'][0]}: {type(error).__name__}: {error}")
    _exit_as(pid)


def _exit_as(pid: int) -> NoReturn:
    """Wait for a child and end as it did. Reap the orphans that come before it."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _enter_namespaces(order: Order) -> None:
    own = namespaces.NEWNS | namespaces.NEWIPC | namespaces.NEWUTS
    if order["uid"] is None:
        uid, gid = os.getuid(), os.getgid()
        namespaces.unshare(own | namespaces.NEWUSER)
        namespaces.write_id_maps(
            os.getpid(), [namespaces.IdMap(uid, uid, 1)], [namespaces.IdMap(gid, gid, 1)], deny_setgroups=True
        )
    else:
        namespaces.unshare(own)
    mounts.make_all_private()
    root = mounts.fs_mount("tmpfs", (("size", str(_ROOT_BYTES)), ("mode", "755")), mounts.NOSUID | mounts.NODEV)
    mounts.move_mount(root, mounts.AT_FDCWD, b"/sys")  # where it lies until it is the root, and hides no source
    os.fchdir(root)
    _build_root(order)
    mounts.pivot()
    mounts.detach_old_root()


def _build_root(order: Order) -> None:
    """Fill the new root, which is the working directory."""
    readable = mounts.RDONLY | mounts.NOSUID | mounts.NODEV
    _show("/usr", "usr", readable)
    for name in _LINKS:
        if os.path.islink(f"/{name}"):
            os.symlink(f"usr/{name}", name)
        elif os.path.isdir(f"/{name}"):
            _show(f"/{name}", name, readable)
    for name in _ETC:
        if os.path.exists(f"/etc/{name}") and f"/etc/{name}" not in order["files"]:
            _show(os.path.realpath(f"/etc/{name}"), f"etc/{name}", readable | mounts.NOEXEC)
    for device in _DEVICES:
        _show(device, device[1:], mounts.NOSUID | mounts.NOEXEC)
    for bind in map(BindMount._make, order["mounts"]):
        attributes = mounts.NOSUID | mounts.NODEV | mounts.NOEXEC | (0 if bind.writable else mounts.RDONLY)
        _show(bind.source, bind.target.lstrip("/"), attributes, order["uid"] if bind.owned else None)
    for path, text in order["files"].items():
        os.makedirs(os.path.dirname(path).lstrip("/"), exist_ok=True)
        with open(path.lstrip("/"), "x") as file:
            file.write(text)
            # If the program owns it, it may be a key that others must not read. No other process sees it.
            os.fchmod(file.fileno(), 0o600 if order["uid"] is None else 0o644)
    for name in ("tmp", "home"):
        os.mkdir(name)
        if order["uid"] is not None:
            os.chown(name, order["uid"], order["uid"])


def _show(source: str, target: str, attributes: int, owner: int | None = None) -> None:
    # An ordinary user can't mount a directory without the mounts below it.
    with closing(mounts.open_tree(os.fsencode(source), recursive=os.geteuid() != 0 or owner is None)) as fd:
        if owner is not None:
            _map_owner(fd, owner)
        mounts.set_attributes(fd, set=attributes, recursive=True)
        is_directory = os.path.isdir(source)
        os.makedirs(target if is_directory else os.path.dirname(target), exist_ok=True)
        if not is_directory:
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
        mounts.move_mount(fd, mounts.AT_FDCWD, os.fsencode(target))


def _map_owner(fd: int, owner: int) -> None:
    """Map the owner if the file system can. If it can't, the program can only read files that are readable to all."""
    info = os.fstat(fd)
    maps = [namespaces.IdMap(info.st_uid, owner, 1)], [namespaces.IdMap(info.st_gid, owner, 1)]
    with closing(namespaces.id_mapping_namespace(*maps)) as userns, contextlib.suppress(OSError):
        mounts.set_attributes(fd, userns_fd=userns)


def _be_first(order: Order) -> NoReturn:
    """Be the first process of its namespace, whose end kills all others, and start the program."""
    secret, feed = os.pipe()
    os.write(feed, order["secret"].encode()[:4096])
    os.close(feed)
    os.dup2(secret, SECRET_FD)
    os.close(secret)
    if order["uid"] is not None:
        os.setgroups([])
        os.setresgid(order["uid"], order["uid"], order["uid"])
        os.setresuid(order["uid"], order["uid"], order["uid"])
    else:
        caps.drop_all()
    prctl.set_no_new_privileges()
    prctl.set_parent_death_signal(signal.SIGKILL)
    _limit(order)
    os.chdir("/")
    os.umask(0o022)
    pid = os.fork()
    if pid == 0:
        try:
            os.execve(order["argv"][0], order["argv"], order["env"])  # noqa: S606 (without a shell on purpose)
        except OSError as error:
            _fail(f"cannot execute {order['argv'][0]}: {error}")
    _exit_as(pid)


def _limit(order: Order) -> None:
    for number, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, order["file_bytes"]),
        (resource.RLIMIT_AS, order["memory_bytes"]),
        (resource.RLIMIT_NOFILE, _FILES),
        # For an ordinary user it would count all of that user's processes.
        (resource.RLIMIT_NPROC, _PROCESSES if order["uid"] is not None else resource.RLIM_INFINITY),
    ):
        if most != resource.RLIM_INFINITY:
            confine.limit(number, most)


def serve_agent(agent: socket.socket, path: str) -> int:
    """Start a process that serves an ssh agent of the host at `path`, for identities and signatures only.

    It ends with this one. Return its pid.
    """
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with socket.socket(socket.AF_UNIX) as offered:
        offered.bind(path)
        offered.listen(8)
        os.chmod(path, 0o666)  # noqa: S103 (in a root directory that only the program has)

        def serve() -> NoReturn:
            os.closerange(0, 3)
            while True:
                with contextlib.suppress(OSError, EOFError), offered.accept()[0] as client:
                    _relay(client, agent)

        return children.fork(serve, offered.fileno(), agent.fileno())


def _relay(client: socket.socket, agent: socket.socket) -> NoReturn:
    asked, answers = client.makefile("rb"), agent.makefile("rb")
    while True:
        message = _read(asked)
        kind = message[4]
        if kind in (_IDENTITIES, _SIGN) or (kind == _EXTENSION and message[5:].startswith(_BINDING)):
            agent.sendall(message)
            client.sendall(_read(answers))
        else:
            client.sendall(_FAILURE)


def _read(stream: BinaryIO) -> bytes:
    """Read a message with its length, or raise EOFError."""
    head = stream.read(4)
    length = int.from_bytes(head, "big")
    message = stream.read(min(length, _MOST))
    if not message or len(message) < length:
        raise EOFError
    return head + message


def _fail(words: str) -> NoReturn:
    os.write(2, f"paddock: {words}\n".encode(errors="replace"))
    os._exit(FAILED)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
