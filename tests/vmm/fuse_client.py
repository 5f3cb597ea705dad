"""A kernel's side of a session by hand, so that it can ask what no kernel would."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from paddock.vmm import _fuse_wire as wire
from paddock.vmm._fuse_nodes import Export, Nodes
from paddock.vmm._fuse_session import Session

HEADER = struct.Struct("=IIQQIIIHH")
OUT = struct.Struct("=IiQ")
FLAGS = 0xFFFF_FFFF & ~(1 << 31)


def export(directory: Path, name: bytes = b"work", *, writable: bool = True, shared: bool = False) -> Export:
    held = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    return Export(name, held, writable, shared)


def message(opcode: int, node: int, body: bytes = b"", *, unique: int = 7, uid: int = -1, gid: int = -1) -> bytes:
    owner = (os.geteuid() if uid < 0 else uid, os.getegid() if gid < 0 else gid)
    return HEADER.pack(HEADER.size + len(body), opcode, unique, node, *owner, 1, 0, 0) + body


class Refused(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(errno.errorcode.get(number, number))
        self.errno = number


class Client:
    def __init__(self, *exports: Export, descriptors: int = 4096) -> None:
        self.nodes = Nodes(exports, descriptors=descriptors)
        self.session = Session(self.nodes)

    def close(self) -> None:
        self.nodes.forget_all()
        for one in self.nodes.exports:
            os.close(one.directory)

    def ask(self, opcode: int, node: int, body: bytes = b"") -> bytes:
        """What is answered. Raises Refused."""
        answer = self.session.handle(memoryview(message(opcode, node, body)))
        length, error, unique = OUT.unpack_from(answer)
        assert length == len(answer)
        assert unique == 7
        if error:
            raise Refused(-error)
        return answer[OUT.size :]

    def find(self, node: int, *names: bytes) -> int:
        for name in names:
            node = self._entered(self.ask(wire.LOOKUP, node, name + b"\0"))
            if node == 0:
                raise Refused(errno.ENOENT)
        return node

    def root(self, name: bytes = b"work") -> int:
        return self.find(wire.ROOT, name)

    def make(self, node: int, name: bytes, mode: int = stat.S_IFREG | 0o644) -> int:
        return self._entered(self.ask(wire.MKNOD, node, struct.pack("=4I", mode, 0, 0, 0) + name + b"\0"))

    def mkdir(self, node: int, name: bytes) -> int:
        return self._entered(self.ask(wire.MKDIR, node, struct.pack("=II", 0o755, 0) + name + b"\0"))

    def symlink(self, node: int, name: bytes, target: bytes) -> int:
        return self._entered(self.ask(wire.SYMLINK, node, name + b"\0" + target + b"\0"))

    def link(self, node: int, name: bytes, old: int) -> int:
        return self._entered(self.ask(wire.LINK, node, struct.pack("=Q", old) + name + b"\0"))

    def unlink(self, node: int, name: bytes) -> None:
        self.ask(wire.UNLINK, node, name + b"\0")

    def unlink_directory(self, node: int, name: bytes) -> None:
        self.ask(wire.RMDIR, node, name + b"\0")

    def rename(self, node: int, name: bytes, target: int, new: bytes, flags: int = 0) -> None:
        self.ask(wire.RENAME2, node, struct.pack("=QII", target, flags, 0) + name + b"\0" + new + b"\0")

    def read(self, node: int, size: int = 4096, offset: int = 0) -> bytes:
        return self.ask(wire.READ, node, struct.pack("=QQIIQII", 0, offset, size, 0, 0, 0, 0))

    def write(self, node: int, data: bytes, offset: int = 0) -> int:
        body = struct.pack("=QQIIQII", 0, offset, len(data), 0, 0, 0, 0) + data
        return struct.unpack_from("=I", self.ask(wire.WRITE, node, body))[0]

    def truncate(self, node: int, size: int) -> None:
        self.setattr(node, 1 << 3, size=size)

    def setattr(self, node: int, valid: int, *, size: int = 0, mode: int = 0, uid: int = 0, gid: int = 0) -> None:
        self.ask(
            wire.SETATTR, node, struct.pack("=II6Q7I4x", valid, 0, 0, size, 0, 0, 0, 0, 0, 0, 0, mode, 0, uid, gid)
        )

    def setxattr(self, node: int, name: bytes, value: bytes = b"1") -> None:
        self.ask(wire.SETXATTR, node, struct.pack("=II", len(value), 0) + name + b"\0" + value)

    def names(self, node: int, size: int = 4096, *, between: Iterable[None] = ()) -> list[bytes]:
        """All of a directory, in pieces of `size`; `between` is stepped once after each piece."""
        found: list[bytes] = []
        offset, steps = 0, iter(between)
        while piece := self.ask(wire.READDIR, node, struct.pack("=QQIIQII", 0, offset, size, 0, 0, 0, 0)):
            at = 0
            while at < len(piece):
                _, offset, length, _ = struct.unpack_from("=QQII", piece, at)
                found.append(piece[at + 24 : at + 24 + length])
                at += -(-(24 + length) // 8) * 8
            next(steps, None)
        return found

    def forget(self, node: int, lookups: int = 1) -> None:
        assert self.session.handle(memoryview(message(wire.FORGET, node, struct.pack("=Q", lookups)))) == b""

    def _entered(self, answer: bytes) -> int:
        return struct.unpack_from("=Q", answer)[0]
