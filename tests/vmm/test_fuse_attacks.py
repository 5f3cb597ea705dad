"""A kernel that was taken over asks for what it must not have: each way out of an export is closed."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import struct
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paddock.vmm import _fuse_nodes, _fuse_wire
from paddock.vmm import _fuse_wire as wire
from tests.vmm.fuse_client import FLAGS, Client, Refused, export, message

SECRET = b"what is outside"


class Yard:
    """An export, a read-only one, and what is beside them and must stay as it is."""

    def __init__(self, directory: Path) -> None:
        self.work, self.kept, self.outside = directory / "work", directory / "kept", directory / "outside"
        for one in (self.work, self.kept, self.outside):
            one.mkdir()
        (self.outside / "secret").write_bytes(SECRET)
        (self.kept / "file").write_bytes(b"kept")
        self.client = Client(export(self.work), export(self.kept, b"kept", writable=False))
        self.root, self.kept_root = self.client.root(), self.client.root(b"kept")
        self._before = self._look()

    def _look(self) -> object:
        secret = (self.outside / "secret").stat()
        return (
            (self.outside / "secret").read_bytes(),
            (secret.st_mode, secret.st_uid, secret.st_nlink, secret.st_mtime_ns, secret.st_ctime_ns),
            sorted(os.listdir(self.outside)),
            (sorted(os.listdir(self.kept)), (self.kept / "file").read_bytes(), (self.kept / "file").stat().st_ctime_ns),
        )

    def check(self) -> None:
        assert self._look() == self._before


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    made = Yard(tmp_path)
    yield made
    made.check()
    made.client.close()


@contextlib.contextmanager
def refused(*numbers: int) -> Generator[None]:
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.errno in numbers, caught.value


HOSTILE_NAMES = [b"..", b".", b"", b"../outside", b"a/b", b"/etc/passwd", b"/"]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_is_one_component(yard: Yard, name: bytes) -> None:
    client, root = yard.client, yard.root
    file = client.make(root, b"file")
    asked: list[Callable[[], object]] = [
        lambda: client.find(root, name),
        lambda: client.make(root, name),
        lambda: client.mkdir(root, name),
        lambda: client.symlink(root, name, b"x"),
        lambda: client.link(root, name, file),
        lambda: client.unlink(root, name),
        lambda: client.ask(wire.RMDIR, root, name + b"\0"),
        lambda: client.rename(root, name, root, b"new"),
        lambda: client.rename(root, b"file", root, name),
    ]
    for ask in asked:
        with refused(errno.EINVAL):
            ask()


def test_a_name_ends_where_it_ends(yard: Yard) -> None:
    with refused(errno.ENAMETOOLONG):
        yard.client.make(yard.root, b"n" * 256)
    with refused(errno.EINVAL):
        yard.client.ask(wire.LOOKUP, yard.root, b"without an end")


def test_a_link_is_never_followed(yard: Yard) -> None:
    client = yard.client
    for name, target in ((b"up", b"../outside"), (b"away", os.fsencode(yard.outside)), (b"magic", b"/proc/self/root")):
        link = client.symlink(yard.root, name, target)
        assert client.ask(wire.READLINK, link) == target
        with refused(errno.ENOTDIR):
            client.find(link, b"secret")
        with refused(errno.EISDIR, errno.EINVAL):
            client.read(link)
        with refused(errno.EINVAL):
            client.write(link, b"x")
        with refused(errno.EINVAL):
            client.truncate(link, 0)
        with refused(errno.ENOTDIR):
            client.make(link, b"new")


def test_a_directory_that_became_a_link_leads_nowhere(tmp_path: Path) -> None:
    """While its descriptor is closed, so that it has to be found again."""
    yard = Yard(tmp_path)
    client = Client(export(yard.work), descriptors=64)
    root = client.root()
    directory = client.mkdir(root, b"directory")
    file = client.make(directory, b"secret")
    for number in range(200):
        client.make(root, b"%d" % number)
    shutil.rmtree(yard.work / "directory")
    (yard.work / "directory").symlink_to(yard.outside)
    with refused(errno.ESTALE, errno.ELOOP, errno.ENOTDIR):
        client.find(directory, b"secret")
    with refused(errno.ESTALE, errno.ELOOP, errno.ENOTDIR):
        client.setattr(file, 1, mode=0o777)
    with refused(errno.ESTALE, errno.ELOOP, errno.ENOTDIR):
        client.make(directory, b"new")
    yard.check()
    client.close()
    yard.client.close()


def test_a_file_that_became_another_is_stale(tmp_path: Path) -> None:
    """Found again by its place, it must be the file that it was: here one that was put there by somebody else."""
    yard = Yard(tmp_path)
    client = Client(export(yard.work), descriptors=64)
    root = client.root()
    file = client.make(root, b"file")
    client.write(file, b"one")
    for number in range(200):
        client.make(root, b"%d" % number)
    (yard.work / "other").write_bytes(b"two")
    (yard.work / "file").rename(yard.work / "moved")
    (yard.work / "other").rename(yard.work / "file")
    with refused(errno.ESTALE):
        client.read(file)
    assert client.read(client.find(root, b"file")) == b"two"
    client.close()
    yard.client.close()


def test_no_other_file_system_is_entered() -> None:
    client = Client(export(Path("/")))
    with refused(errno.EXDEV):
        client.find(client.root(), b"proc")
    client.close()


def test_no_device_is_made_and_nothing_special_opened(yard: Yard) -> None:
    client, root = yard.client, yard.root
    for kind in (stat.S_IFCHR, stat.S_IFBLK, stat.S_IFDIR, stat.S_IFLNK, 0):
        with refused(errno.EPERM):
            client.make(root, b"device", kind | 0o666)
    with refused(errno.EINVAL):
        client.rename(root, b"device", root, b"other", flags=1 << 2)  # RENAME_WHITEOUT leaves a device
    for kind in (stat.S_IFIFO, stat.S_IFSOCK):
        name = b"special%d" % kind
        special = client.make(root, name, kind | 0o666)
        with refused(errno.EISDIR, errno.EINVAL):
            client.read(special)  # it would wait for a writer
        with refused(errno.EINVAL):
            client.write(special, b"x")
    assert sorted(client.names(root)) == sorted(
        [b".", b"..", b"special%d" % stat.S_IFIFO, b"special%d" % stat.S_IFSOCK]
    )


def test_nothing_goes_from_one_export_into_another(yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    client = Client(export(yard.work), export(tmp_path / "second", b"second"))
    root, second = client.root(), client.root(b"second")
    file, other = client.make(root, b"file"), client.make(second, b"file")
    with refused(errno.EXDEV):
        client.link(second, b"linked", file)
    with refused(errno.EXDEV):
        client.rename(root, b"file", second, b"moved")
    with refused(errno.EXDEV):
        client.rename(second, b"file", root, b"file", flags=1 << 1)
    assert file != other
    with refused(errno.EPERM):  # the list of exports is nobody's
        client.mkdir(wire.ROOT, b"new")
    with refused(errno.ENOENT):
        client.find(wire.ROOT, b"..")
    client.close()


def test_of_a_read_only_export_nothing_changes(yard: Yard) -> None:
    client, root, kept = yard.client, yard.root, yard.kept_root
    file, mine = client.find(kept, b"file"), client.make(root, b"mine")
    copy = struct.pack("=7Q", 0, 0, file, 0, 0, 4, 0)
    asked: list[Callable[[], object]] = [
        lambda: client.write(file, b"x"),
        lambda: client.truncate(file, 0),
        lambda: client.setattr(file, 1, mode=0o600),
        lambda: client.setattr(file, 1 << 8),
        lambda: client.setxattr(file, b"user.a"),
        lambda: client.ask(wire.REMOVEXATTR, file, b"user.a\0"),
        lambda: client.make(kept, b"new"),
        lambda: client.mkdir(kept, b"new"),
        lambda: client.symlink(kept, b"new", b"x"),
        lambda: client.link(kept, b"new", file),
        lambda: client.unlink(kept, b"file"),
        lambda: client.rename(kept, b"file", kept, b"new"),
        lambda: client.rename(root, b"mine", kept, b"new"),
        lambda: client.ask(wire.FALLOCATE, file, struct.pack("=QQQII", 0, 0, 100, 0, 0)),
        lambda: client.ask(wire.COPY_FILE_RANGE, mine, copy),
    ]
    for ask in asked:
        with refused(errno.EROFS):
            ask()
    assert client.read(file) == b"kept"


@pytest.mark.parametrize(
    "name", [b"security.capability", b"trusted.overlay.opaque", b"user.overlay.opaque", b"system.x", b""]
)
def test_only_users_attributes_are_reached(yard: Yard, name: bytes) -> None:
    file = yard.client.make(yard.root, b"file")
    with refused(errno.EOPNOTSUPP):
        yard.client.setxattr(file, name)
    with refused(errno.EOPNOTSUPP):
        yard.client.ask(wire.REMOVEXATTR, file, name + b"\0")
    with refused(errno.ENODATA):
        yard.client.ask(wire.GETXATTR, file, struct.pack("=II", 100, 0) + name + b"\0")


def test_what_it_asks_for_is_bounded(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    client, root = yard.client, yard.root
    file = client.make(root, b"large")
    client.truncate(file, 8 << 20)
    assert len(client.read(file, size=0xFFFF_FFFF)) == wire.MAX_DATA
    for offset in (1 << 63, (1 << 64) - 1):
        with refused(errno.EINVAL):
            client.read(file, offset=offset)
    with refused(errno.EFBIG):
        client.truncate(file, (1 << 64) - 1)
    monkeypatch.setattr(_fuse_nodes, "MAX_NODES", len(client.nodes.by_number) + 2)
    known = [client.make(root, b"%d" % number) for number in range(2)]
    (yard.work / "more").touch()
    with refused(errno.ENFILE):
        client.find(root, b"more")
    client.forget(known[0])
    assert client.find(root, b"more")


def test_files_without_names_do_not_use_up_the_descriptors(tmp_path: Path) -> None:
    yard = Yard(tmp_path)
    client = Client(export(yard.work), descriptors=64)
    before = len(os.listdir("/proc/self/fd"))
    gone: list[int] = []
    for _ in range(300):
        gone.append(client.make(client.root(), b"file"))
        client.unlink(client.root(), b"file")
    assert len(os.listdir("/proc/self/fd")) - before < 150
    with refused(errno.ESTALE):
        client.setattr(gone[0], 1, mode=0o600)
    client.setattr(gone[-1], 1, mode=0o600)
    client.close()
    yard.client.close()


def test_a_node_that_it_was_not_given_is_stale(yard: Yard) -> None:
    for node in (0, 99, 1 << 63, (1 << 64) - 1):
        with refused(errno.ESTALE):
            yard.client.find(node, b"x")
        with refused(errno.ESTALE):
            yard.client.read(node)
    yard.client.forget(yard.root, (1 << 64) - 1)
    assert yard.client.make(yard.root, b"still")


ops = st.sampled_from(
    sorted({getattr(_fuse_wire, name) for name in dir(_fuse_wire) if name.isupper()} & set(range(60)))
)
names = st.sampled_from([b"a", b"b", b"file", b"secret", b"work", b"kept", *HOSTILE_NAMES, b"n" * 300])
numbers = st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 1 << 31, FLAGS, 1 << 63, (1 << 64) - 1, stat.S_IFREG, stat.S_IFIFO])
parts = st.one_of(
    names.map(lambda name: name + b"\0"),
    numbers.map(lambda number: struct.pack("=Q", number)),
    numbers.map(lambda number: struct.pack("=I", number & 0xFFFF_FFFF)),
    st.binary(max_size=8),
)
requests = st.tuples(ops, st.integers(0, 9), st.lists(parts, max_size=6).map(b"".join))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(asked=st.lists(requests, max_size=40))
def test_whatever_it_says_nothing_outside_changes_and_the_session_goes_on(
    tmp_path: Path, asked: list[tuple[int, int, bytes]]
) -> None:
    yard = Yard(Path(tempfile.mkdtemp(dir=tmp_path)))
    yard.client.symlink(yard.root, b"a", b"../outside")
    yard.client.mkdir(yard.root, b"b")
    for opcode, node, body in asked:
        answer = yard.client.session.handle(memoryview(message(opcode, node, body)))
        assert len(answer) <= wire.MAX_MESSAGE
        assert SECRET not in answer
    yard.check()
    assert yard.client.find(wire.ROOT, b"work")
    yard.client.close()
