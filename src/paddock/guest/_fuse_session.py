"""One session of another kernel's with our files: a request in, its answer out. What it says is an attacker's."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from . import _fuse_wire as wire
from ._fuse_data import Data
from ._fuse_files import Files
from ._fuse_listing import Listings
from ._fuse_nodes import Nodes
from ._fuse_wire import Request
from ._loop import report

_FIRST_ERRNO, _LAST_ERRNO = 1, 133


class Session:
    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        files, data = Files(nodes), Data(nodes)
        listings = Listings(nodes, files)
        self._listings = listings
        self._operations: dict[int, Callable[[Request], bytes]] = {
            wire.INIT: self._init,
            wire.LOOKUP: files.lookup,
            wire.GETATTR: files.getattr,
            wire.SETATTR: files.setattr,
            wire.READLINK: files.readlink,
            wire.SYMLINK: files.symlink,
            wire.MKNOD: files.mknod,
            wire.MKDIR: files.mkdir,
            wire.UNLINK: files.unlink,
            wire.RMDIR: files.rmdir,
            wire.RENAME: files.rename,
            wire.RENAME2: files.rename2,
            wire.LINK: files.link,
            wire.READ: data.read,
            wire.WRITE: data.write,
            wire.STATFS: files.statfs,
            wire.FSYNC: data.fsync,
            wire.FSYNCDIR: data.fsync,
            wire.SETXATTR: files.setxattr,
            wire.GETXATTR: files.getxattr,
            wire.LISTXATTR: files.listxattr,
            wire.REMOVEXATTR: files.removexattr,
            wire.FALLOCATE: data.fallocate,
            wire.LSEEK: data.lseek,
            wire.COPY_FILE_RANGE: data.copy_file_range,
            wire.READDIR: lambda request: listings.read(request, plus=False),
            wire.READDIRPLUS: lambda request: listings.read(request, plus=True),
            wire.DESTROY: self._destroy,
        }
        self._top: dict[int, Callable[[Request], bytes]] = {
            wire.LOOKUP: self._find_export,
            wire.GETATTR: lambda _: wire.top_attributes(),
            wire.STATFS: lambda _: wire.statfs_reply(os.statvfs("/")),
        }

    def handle(self, message: memoryview) -> bytes:
        """The answer; nothing to those that have none. Raises BadMessage where no answer could be addressed."""
        request = wire.parse(message)
        if request.opcode in wire.UNANSWERED:
            self._forget(request)
            return b""
        try:
            # What is not in the table, the kernel does by itself or without, once it was told so (ENOSYS): opening
            # and closing above all (`FUSE_NO_OPEN_SUPPORT`), so there are no open files here that a fork could lose.
            operation = self._operation(request)
            return wire.answer(request.unique, operation(request))
        except OSError as error:
            number = error.errno if error.errno is not None else errno.EIO
            return wire.refusal(request.unique, number if _FIRST_ERRNO <= number <= _LAST_ERRNO else errno.EIO)
        except (ValueError, OverflowError, MemoryError) as error:  # a number or a name that no call of the kernel takes
            return wire.refusal(request.unique, errno.ENOMEM if isinstance(error, MemoryError) else errno.EINVAL)
        except Exception as error:
            report(error)
            return wire.refusal(request.unique, errno.EIO)

    def _operation(self, request: Request) -> Callable[[Request], bytes]:
        operation = self._operations.get(request.opcode)
        if operation is None:
            raise OSError(errno.ENOSYS, "not done here")
        if request.node == wire.ROOT and request.opcode not in (wire.INIT, wire.DESTROY):
            operation = self._top.get(request.opcode)
            if operation is None:
                raise PermissionError(errno.EPERM, "nothing can be done to the list of exports")
        return operation

    def _init(self, request: Request) -> bytes:
        answer = wire.greeting(request, shared=any(export.shared for export in self.nodes.exports))
        self._destroy(request)  # whoever greets again knows nothing of before
        return answer

    def _destroy(self, request: Request) -> bytes:
        self._listings.forget()
        self.nodes.forget_all()
        return b""

    def _forget(self, request: Request) -> None:
        if request.opcode == wire.FORGET:
            forgotten = [(request.node, *_numbers(request.body[:8]))] if len(request.body) >= 8 else []
        else:
            numbers = _numbers(request.body[8 : len(request.body) & ~15 | 8])
            forgotten = list(zip(numbers[::2], numbers[1::2], strict=False))
        for number, lookups in forgotten:
            self.nodes.forget(number, lookups)

    def _find_export(self, request: Request) -> bytes:
        node = self.nodes.roots.get(request.names(0, 1)[0])
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such export")
        node.lookups += 1
        status = self.nodes.status(node)
        return wire.entry(node.number, status, wire.number(status.st_ino, node.export.index), node.export.seconds)


def _numbers(data: memoryview) -> tuple[int, ...]:
    return tuple(data[: len(data) & ~7].cast("Q"))
