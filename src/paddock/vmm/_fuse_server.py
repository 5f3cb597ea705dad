"""The process that serves files to a virtual machine: one FUSE stream to it, and one socket to the controller.

It is a separate process, so that a slow disk delays nothing else. Orders come over the socket, one datagram of JSON
each: `pause` (answered when the guest has paused and the state is saved) and `resume`.

A saved state has the session's nodes: numbers and places, without descriptors. It lies beside the machine's memory, and
a fork restores it. The fork's files are a copy of the same instant, so each place still leads to the same file. A file
without a name isn't in the copy. Up to a limit, the state therefore contains its content. Beyond it, the file is lost,
and counts as lost.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import resource
import select
import signal
import socket
import stat
from typing import Any, NamedTuple

from paddock.linux import children
from paddock.linux.descriptors import closing

from . import _fuse_wire as wire
from ._fuse_nodes import Export, Node, Nodes, reopen
from ._fuse_session import Session
from ._loop import report

_PIECE = 1 << 20
_MAX_DESCRIPTORS = 32768
_STATE = "files.json"
_MOST_STATE = 256 << 20
_MOST_ORPHANS = 1 << 30
_MOST_NAMES = 100_000
_VERSION = 1


class FileServer(NamedTuple):
    """A handle of the running process. `control` is a SOCK_SEQPACKET."""

    pid: int
    control: socket.socket


def start_file_server(stream: int, exports: tuple[Export, ...], *, saved: int | None = None) -> FileServer:
    """Fork the server.

    It ends with us, and with the stream. `saved` is a directory that an earlier `save` has filled.

    The caller keeps (and should close) `stream` and the exports' descriptors.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = (stream, theirs.fileno(), saved or 0, *(export.directory for export in exports))
    with theirs:
        pid = children.fork(lambda: _run(stream, theirs, exports, saved), *kept)
    return FileServer(pid=pid, control=ours)


def _run(stream: int, control: socket.socket, exports: tuple[Export, ...], saved: int | None) -> None:
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        os.umask(0)
        nodes = Nodes(exports, descriptors=_descriptors())
        server = Server(stream, control, nodes)
        if saved is not None:
            load_state(nodes, saved)
            server.send_control(wire.RESUME)
            os.close(saved)
        server.run()
    except BaseException as error:
        report(error)
        raise


def _descriptors() -> int:
    """Return the number of files that nodes may keep open, after raising the limit as far as possible."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    most = _MAX_DESCRIPTORS * 3 if hard == resource.RLIM_INFINITY else hard
    return max(min(most // 3, _MAX_DESCRIPTORS), 64)


class Server:
    def __init__(self, stream: int, control: socket.socket, nodes: Nodes) -> None:
        os.set_blocking(stream, False)
        self._stream, self._control = stream, control
        self._nodes = nodes
        self._session = Session(nodes)
        self._splitter = wire.Splitter()
        self._unsent = bytearray()
        self._save_to: str | None = None  # the directory for the state, once the guest has paused
        self._saved_in: str | None = None  # the directory of a saved state
        self._running = True

    def run(self) -> None:
        """Serve until the stream ends, or isn't FUSE."""
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        buffer = bytearray(_PIECE)
        while self._running:
            # This reads no more until the other side takes its answers, so it buffers one piece and its answers.
            poll.register(self._stream, select.POLLOUT if self._unsent else select.POLLIN)
            for fd, _ in poll.poll():
                if fd == self._stream:
                    self._send() if self._unsent else self._receive(buffer)
                else:
                    self._handle_order()

    def _receive(self, buffer: bytearray) -> None:
        try:
            got = os.readv(self._stream, [buffer])
        except BlockingIOError:
            return
        except ConnectionError:
            got = 0
        if got == 0:
            self._running = False
            return
        for message in self._splitter.feed(memoryview(buffer)[:got]):
            control = wire.control_value(message)
            if control is None:
                self._unsent += self._session.handle(message)
            elif control == wire.PAUSED and self._save_to is not None:
                self._save(self._save_to)
                self._save_to = None
        self._send()

    def _send(self) -> None:
        while self._unsent:
            try:
                sent = os.write(self._stream, self._unsent)
            except BlockingIOError:
                return
            except ConnectionError:
                self._running = False
                return
            del self._unsent[:sent]

    # orders

    def _handle_order(self) -> None:
        message = self._control.recv(65536)
        if not message:
            self._running = False
            return
        order: Any = json.loads(message)
        if order["op"] == "pause":
            self._save_to = order["directory"]
            self.send_control(wire.PAUSE)
        else:
            self._save_to = None
            self._discard()
            self.send_control(wire.RESUME)
            self._reply({})

    def send_control(self, value: int) -> None:
        self._unsent += wire.control_message(value)
        self._send()

    def _save(self, where: str) -> None:
        self._saved_in = where
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            with closing(os.open(where, flags)) as directory:
                self._reply({"lost": save_state(self._nodes, directory)})
        except OSError as error:
            self._reply({"error": f"the state of the files could not be kept: {error.strerror}"})

    def _discard(self) -> None:
        """Delete the saved state, because the files change from here on."""
        if self._saved_in is not None:
            for name in state_names(os.listdir(self._saved_in)):
                os.unlink(os.path.join(self._saved_in, name))
            self._saved_in = None

    def _reply(self, body: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._control.send(json.dumps(body).encode())


# the state


def save_state(nodes: Nodes, directory: int) -> int:
    """Save the state, and return the number of lost files. There must be no requests meanwhile."""
    _find_other_names(nodes)
    alive = _with_parents(nodes)
    lost, left = 0, _MOST_ORPHANS
    for node in [node for node in alive if node.name is None]:
        size = _keep_orphan(node, directory, left)
        if size is None:
            lost += 1
        else:
            left -= size
    rows = [
        (
            *(node.number, node.parent.number if node.parent is not None else 0),
            *(None if node.name is None else node.name.decode("utf-8", "surrogateescape"), node.kind, node.lookups),
            *(node.export.index, 0 if node.key is None or node.key[3] else node.key[2]),
        )
        for node in alive
    ]
    state = {"version": _VERSION, "exports": [os.fsdecode(export.name) for export in nodes.exports], "nodes": rows}
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(_STATE, flags, 0o600, dir_fd=directory), "w") as file:
        json.dump(state, file, separators=(",", ":"))
    return lost


def _find_other_names(nodes: Nodes) -> None:
    """Find another name of each file that lost its known one. A copy finds the file in its tree only by name.

    It looks at `_MOST_NAMES`. A file that it doesn't find goes along as one without a name.
    """
    nameless = (node for node in nodes.nameless.values() if node.key is not None and node.kind != stat.S_IFDIR)
    linked = {node.key: node for node in nameless if os.fstat(node.fd).st_nlink}
    left = _MOST_NAMES if linked else 0
    for parent in [node for node in nodes.by_number.values() if node.kind == stat.S_IFDIR and node.name is not None]:
        if not left:
            return
        with contextlib.suppress(OSError), closing(nodes.open_dir(parent)) as directory, os.scandir(directory) as found:
            for entry in itertools.islice(found, left):
                left -= 1
                status = entry.stat(follow_symlinks=False)
                if node := linked.pop(parent.export.key(directory, status), None):
                    node.parent, node.name = parent, os.fsencode(entry.name)
                    nodes.unmark_nameless(node)


def _with_parents(nodes: Nodes) -> list[Node]:
    """Return all known nodes and their parents, parents first."""
    order: dict[int, Node] = {}
    for node in nodes.by_number.values():
        chain: list[Node] = []
        ancestor: Node | None = node
        while ancestor is not None and ancestor.number not in order and len(chain) <= len(nodes.by_number) + 65536:
            chain.append(ancestor)
            ancestor = ancestor.parent if ancestor.name is not None else None
        for known in reversed(chain):
            order[known.number] = known
    return list(order.values())


def _keep_orphan(node: Node, directory: int, left: int) -> int | None:
    """Save the content of a file without a name, and return its size, or None if that isn't possible."""
    if node.kind != stat.S_IFREG or node.fd < 0:
        return None
    status = os.fstat(node.fd)
    size = status.st_size
    if size > left:
        return None
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with (
        closing(reopen(node.fd, os.O_RDONLY)) as source,
        closing(os.open(_orphan(node.number), flags, 0o600, dir_fd=directory)) as sink,
    ):
        os.ftruncate(sink, size)
        os.fchown(sink, status.st_uid, status.st_gid)
        os.fchmod(sink, stat.S_IMODE(status.st_mode))
        done = 0
        while done < size and (copied := _copy(source, sink, size - done, done)):
            done += copied
    return size


def _copy(source: int, sink: int, count: int, offset: int) -> int:
    """Shared on the disk, where both lie on one file system that can."""
    try:
        return os.copy_file_range(source, sink, count, offset, offset)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    os.lseek(sink, offset, os.SEEK_SET)
    return os.sendfile(sink, source, offset, count)


def state_names(found: list[str]) -> list[str]:
    """Return the names of a saved state's files."""
    return [name for name in found if name.startswith("files.")]


def load_state(nodes: Nodes, directory: int) -> None:
    """Into nodes of the same exports that know nothing yet. OSError EINVAL if it is not for these."""
    with os.fdopen(os.open(_STATE, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory), "rb") as file:
        text = file.read(_MOST_STATE + 1)
    state: Any = json.loads(text) if len(text) <= _MOST_STATE else {}
    names = [os.fsdecode(export.name) for export in nodes.exports]
    if state.get("version") != _VERSION or state.get("exports") != names:
        raise OSError(errno.EINVAL, "the state of another session's files")
    found: dict[int, Node] = {}
    for number, parent, name, kind, lookups, export, ino in state["nodes"]:
        if parent == 0 and name is not None:
            found[number] = nodes.restore_root(export, number, lookups)
        elif parent == 0 or name is None:
            found[number] = _restore_orphan(nodes, directory, number, kind, lookups, export)
        else:
            encoded = name.encode("utf-8", "surrogateescape")
            found[number] = nodes.restore(found[parent], encoded, number, kind, lookups, ino)
    os.unlink(_STATE, dir_fd=directory)


def _restore_orphan(nodes: Nodes, directory: int, number: int, kind: int, lookups: int, export: int) -> Node:
    root = nodes.roots[nodes.exports[export].name]
    node = nodes.restore(root, None, number, kind, lookups, 0)
    try:
        fd = os.open(_orphan(number), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return node  # it was lost, and is stale
    node.fd = fd
    nodes.nameless[number] = node
    os.unlink(_orphan(number), dir_fd=directory)
    return node


def _orphan(number: int) -> str:
    return f"files.{number:d}"
