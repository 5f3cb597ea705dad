"""A repository and a remote that attack the host: each test leaves a canary that only code of theirs could touch."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import struct
import zlib
from collections.abc import Generator
from hashlib import sha1
from pathlib import Path
from typing import Any

import pytest

from paddock.errors import InvalidArgumentError, NotFoundError, PaddockError, PlatformError, ResourceExhaustedError
from paddock.storage.git import Bounds, pins
from paddock.storage.git._process import run
from tests.repositories.git_servers import Origin, address, files_below
from tests.repositories.shelf import STRANGER, Shelf


@pytest.fixture
def canary(tmp_path: Path) -> Generator[Path]:
    """A place that anybody may write. Nothing of a repository may ever have done so."""
    place = tmp_path / "canary"
    place.mkdir()
    place.chmod(0o777)
    yield place
    assert list(place.iterdir()) == []


@pytest.fixture
def spiteful(origin: Origin, canary: Path) -> Origin:
    """All that a repository can say about programs, in its configuration, its attributes and its hooks."""
    touch = canary / "program"
    touch_script = origin.path / "touch.sh"
    touch_script.write_text(f"#!/bin/sh\ntouch {touch}\ncat\n")
    touch_script.chmod(0o755)
    hooks = origin.path / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in (
        "post-checkout",
        "pre-receive",
        "post-update",
        "reference-transaction",
        "pre-push",
        "post-index-change",
    ):
        (hooks / name).write_text(touch_script.read_text())
        (hooks / name).chmod(0o755)
    for key in (
        "core.fsmonitor",
        "core.sshCommand",
        "core.pager",
        "core.alternateRefsCommand",
        "core.gitProxy",
        "core.askPass",
        "credential.helper",
        "filter.evil.smudge",
        "filter.evil.clean",
        "filter.evil.process",
        "diff.evil.textconv",
        "merge.evil.driver",
        "uploadpack.packObjectsHook",
        "gpg.program",
        "remote.origin.uploadpack",
        "trace2.eventTarget",
    ):
        origin.git("config", key, str(touch_script))
    origin.git("config", "core.hooksPath", str(hooks))
    origin.git("config", "core.fsmonitor", "false")
    origin.commit({".gitattributes": "* filter=evil diff=evil merge=evil\n", "README": "x\n"})
    origin.git("config", "core.fsmonitor", str(touch_script))
    for leftover in (touch,):
        leftover.unlink(missing_ok=True)  # what its own git has run for it, here
    return origin


@pytest.mark.both
@pytest.mark.parametrize("way", ["file", "daemon"])
async def test_nothing_that_a_repository_names_runs(
    shelf: Shelf, spiteful: Origin, daemon: Any, canary: Path, way: str
) -> None:
    head = (spiteful.path / ".git/refs/heads/main").read_text().strip()
    url = address(daemon, "app") if way == "daemon" else spiteful.url
    got = await shelf.acquire(url)
    assert got.commit == head
    pins.pin(shelf.path(got), "ws_1", head)
    assert await shelf.git.commit(got.repository, "refs/pins/ws_1") == head
    (shelf.directory / f"{got.repository}.busy").touch()
    (spiteful.path / ".git/refs/heads/other").write_text(head + "\n")
    assert (await shelf.acquire(url, "other")).commit == head
    if way == "daemon":
        (canary / "program").unlink(missing_ok=True)  # the server's own git runs what its repository says


async def test_a_git_file_that_points_elsewhere_leads_nowhere(shelf: Shelf, origin: Origin, tmp_path: Path) -> None:
    """A directory whose `.git` names another repository of the host, and one that borrows its objects."""
    decoy = tmp_path / "decoy"
    decoy.mkdir()
    (decoy / ".git").write_text(f"gitdir: {origin.path}/.git\n")
    with pytest.raises(PaddockError):
        await shelf.acquire(f"file://{decoy}")
    thief = Origin(tmp_path / "thief")
    (thief.path / ".git/objects/info").mkdir(exist_ok=True)
    (thief.path / ".git/objects/info/alternates").write_text(f"{origin.path}/.git/objects\n")
    thief.git("update-ref", "refs/heads/main", origin.head())
    with pytest.raises(PaddockError):
        await shelf.acquire(thief.url)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / ".git").symlink_to(origin.path / ".git")
    with pytest.raises(PaddockError):
        await shelf.acquire(f"file://{linked}")


@pytest.mark.parametrize("ref", ["--upload-pack=touch", "-u", "--exec=sh", "main;touch x", "$(touch x)"])
async def test_names_that_are_options_never_reach_git(
    shelf: Shelf, origin: Origin, daemon: Any, canary: Path, ref: str
) -> None:
    with pytest.raises((InvalidArgumentError, NotFoundError)):
        await shelf.acquire(address(daemon, "app"), ref)


async def test_branches_with_such_names_are_fetched_as_names(
    shelf: Shelf, origin: Origin, daemon: Any, canary: Path
) -> None:
    for name in ("-option", "--upload-pack=touch", "a$(touch)", "a;b", "a`b`", "'a'"):
        (origin.path / ".git/refs/heads" / name).write_text(origin.head() + "\n")
    assert (await shelf.acquire(address(daemon, "app"), "main")).commit == origin.head()


@pytest.mark.parametrize(
    "entries",
    [
        [".git"],
        [".GIT"],
        [".g\u200cit"],
        ["git~1"],
        [".."],
        ["."],
        ["a/b"],
        ["same", "same"],
    ],
    ids=repr,
)
async def test_trees_that_would_deceive_a_checkout_are_not_taken(
    shelf: Shelf, origin: Origin, daemon: Any, entries: list[str]
) -> None:
    blob = origin.blob(b"[core]\n\tfsmonitor = touch canary\n")
    made = origin.tree_of(*(("100644", blob, name) for name in entries))
    with pytest.raises(InvalidArgumentError, match="git's checks refuse"):
        await shelf.acquire(address(daemon, "app"))
    assert [one.observed_at for one in shelf.store.list("local:1")] == [None]
    assert made not in {path.name for path in shelf.directory.rglob("*")}


@pytest.mark.parametrize("key", ["url = -u./payload", "url = ext::sh", "path = -x", 'url = "--upload-pack=touch"'])
async def test_submodules_that_name_options_are_not_taken(shelf: Shelf, origin: Origin, daemon: Any, key: str) -> None:
    lines = f'[submodule "m"]\n\tpath = m\n\turl = https://h/m\n\t{key}\n'
    origin.tree_of(("100644", origin.blob(lines.encode()), ".gitmodules"), ("160000", origin.head(), "m"))
    if key == "url = ext::sh":  # git's checks let it through: it is refused when it is looked for
        assert (await shelf.acquire(address(daemon, "app"))).commit == origin.head("main")
        return
    with pytest.raises(InvalidArgumentError, match="git's checks refuse"):
        await shelf.acquire(address(daemon, "app"))


async def test_names_that_differ_in_case_or_form_only_are_names(shelf: Shelf, origin: Origin, daemon: Any) -> None:
    origin.commit({"A": "1", "a": "2", "\u00e9": "3", "e\u0301": "4"})
    assert (await shelf.acquire(address(daemon, "app"))).commit == origin.head()


async def test_a_pack_that_is_too_large_ends_at_the_bound(tmp_path: Path, origin: Origin, daemon: Any) -> None:
    origin.commit({"noise": os.urandom(4 << 20)})
    shelf = Shelf(tmp_path / "state", bounds=Bounds(file_bytes=1 << 20))
    try:
        with pytest.raises(ResourceExhaustedError, match="more than 1048576 bytes"):
            await shelf.acquire(address(daemon, "app"))
        assert max(path.stat().st_size for path in shelf.directory.rglob("*") if path.is_file()) <= 1 << 20
    finally:
        shelf.close()


async def test_more_refs_than_fit_end_at_the_bound(tmp_path: Path, origin: Origin, daemon: Any) -> None:
    packed = "".join(f"{origin.head()} refs/heads/{'x' * 200}{number}\n" for number in range(600))
    (origin.path / ".git/packed-refs").write_text(packed)
    shelf = Shelf(tmp_path / "state", bounds=Bounds(output_bytes=100_000))
    try:
        with pytest.raises(ResourceExhaustedError, match="more refs than fit"):
            await shelf.acquire(address(daemon, "app"))
    finally:
        shelf.close()


class Liar:
    """A server of git's protocol (gitprotocol-pack(5), version 0) that sends whatever it was given as a pack."""

    def __init__(self, pack: bytes, oid: str) -> None:
        self._pack, self._oid = pack, oid

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def line(text: bytes) -> bytes:
            return b"%04x" % (len(text) + 4) + text

        try:
            await reader.readexactly(int(await reader.readexactly(4), 16) - 4)
            oid = self._oid.encode()
            writer.write(line(oid + b" HEAD\0ofs-delta symref=HEAD:refs/heads/main\n"))
            writer.write(line(oid + b" refs/heads/main\n") + b"0000")
            await writer.drain()
            asked = b""
            while b"done" not in asked:
                data = await reader.read(4096)
                if not data:
                    return
                asked += data
            writer.write(line(b"NAK\n") + self._pack)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            await _closed(writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    """What was written has gone, or nobody reads it any more, or the test is over: nothing is left of it."""
    try:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    finally:
        writer.transport.abort()


def packed(*objects: tuple[int, int, bytes]) -> bytes:
    """A pack of (type, size that is claimed, content)."""
    body = b"PACK" + struct.pack(">II", 2, len(objects))
    for kind, size, content in objects:
        head = [kind << 4 | size & 15]
        size >>= 4
        while size:
            head[-1] |= 128
            head.append(size & 127)
            size >>= 7
        body += bytes(head) + content
    return body + sha1(body).digest()


@pytest.mark.parametrize("kind", ["claims too much", "inflates", "truncated", "nonsense", "another object"])
async def test_packs_that_lie_are_bounded_and_refused(tmp_path: Path, kind: str) -> None:
    nothing = zlib.compress(b"")
    pack = {
        "claims too much": packed((1, 1 << 42, nothing)),
        "inflates": packed((3, 1 << 30, zlib.compress(bytes(1 << 28), 9))),
        "truncated": packed((3, 5, zlib.compress(b"hello")))[:-10],
        "nonsense": b"PACK" + os.urandom(2000),
        "another object": packed((3, 5, zlib.compress(b"hello"))),
    }[kind]
    shelf = Shelf(tmp_path / "state", bounds=Bounds(memory_bytes=1 << 30))
    server = await asyncio.start_server(Liar(pack, "1" * 40), "127.0.0.1", 0)
    try:
        with pytest.raises((InvalidArgumentError, ResourceExhaustedError, PlatformError)):
            await shelf.acquire(f"git://127.0.0.1:{server.sockets[0].getsockname()[1]}/app")
        assert [one.observed_at for one in shelf.store.list("local:1")] == [None]
    finally:
        server.close()
        shelf.close()


async def test_what_a_remote_says_cannot_steer_a_terminal(shelf: Shelf, caplog: pytest.LogCaptureFixture) -> None:
    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4096)  # who hears before he has asked may die of it
        text = b"ERR \x1b]0;title\x07\x1b[2Jgone"
        writer.write(b"%04x" % (len(text) + 4) + text)
        await _closed(writer)

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    try:
        with pytest.raises(PaddockError) as caught:
            await shelf.acquire(f"git://127.0.0.1:{server.sockets[0].getsockname()[1]}/app")
    finally:
        server.close()
    assert "gone" in caught.value.message
    assert caught.value.message.isprintable()


async def test_who_is_not_here_names_no_directory(shelf: Shelf, origin: Origin) -> None:
    with pytest.raises(PaddockError, match="for those who are on it"):
        await shelf.acquire(origin.url, by=STRANGER)


_LOOK = (
    "import os,sys;"
    "print(sorted(os.listdir('/')));print(os.getuid(), os.getgroups());"
    "print(open('/etc/shadow').read() if os.access('/etc/shadow', os.R_OK) else 'hidden');"
    "print([n for n in os.listdir('/proc')] if os.path.exists('/proc') else 'no proc');"
    "import ctypes,resource as r;"
    "print('new privileges' if ctypes.CDLL(None).prctl(39, 0, 0, 0, 0) != 1 else 'none', r.getrlimit(r.RLIMIT_AS)[0]);"
    "print('' if os.access('/usr', os.W_OK) else 'nothing may be written', dict(os.environ).keys())"
)


@pytest.mark.both
async def test_the_hosts_git_sees_and_may_do_little(shelf: Shelf, tmp_path: Path) -> None:
    """Should a remote take it over: no file of the machine, no process, no capability, no environment of ours."""
    from paddock.storage.git._process import GIT_ID, BindMount, run

    (shelf.directory / "rp_x").mkdir(parents=True)
    (tmp_path / "secret").write_text("s3cret")
    place = BindMount(str(shelf.directory / "rp_x"), "/repository", writable=True)
    status = "print([l for l in open('/proc/self/status')] if os.path.exists('/proc/self/status') else '');"
    ended = await run(
        ["-I", "-c", status.replace("print", "import os;print") + _LOOK],
        program="/usr/bin/python3",
        mounts=[place],
        config="",
        bounds=Bounds(),
    )
    said = ended.out.decode()
    assert ended.code == 0, ended.err
    assert "hidden" in said
    assert "no proc" in said
    assert "nothing may be written" in said
    assert f"none {Bounds().memory_bytes}" in said
    for name in ("'work'", "'root'", "'var'", "PADDOCK", "PYTEST"):
        assert name not in said
    assert f"{GIT_ID if os.geteuid() == 0 else os.getuid()} []" in said or os.geteuid() != 0


def test_a_pin_follows_no_link(shelf: Shelf, tmp_path: Path, canary: Path) -> None:
    """A git that was taken over may put links where the service writes."""
    made = tmp_path / "rp_evil"
    (made / "refs").mkdir(parents=True)
    (made / "refs/pins").symlink_to(canary)
    with pytest.raises(PaddockError, match="damaged"):
        pins.pin(made, "ws_1", "0" * 40)
    (made / "refs/pins").unlink()
    (made / "refs/pins").mkdir()
    (made / "refs/pins/ws_1").symlink_to(canary / "file")
    pins.pin(made, "ws_1", "0" * 40)
    assert (made / "refs/pins/ws_1").read_text() == "0" * 40 + "\n"
    assert not (made / "refs/pins/ws_1").is_symlink()


@pytest.mark.both
async def test_nothing_is_written_outside_the_cache(
    shelf: Shelf, spiteful: Origin, tmp_path: Path, canary: Path
) -> None:
    before = files_below(spiteful.path)
    await shelf.acquire(spiteful.url)
    assert files_below(spiteful.path) == before
    outside = {Path(path).relative_to(tmp_path).parts[0] for path in files_below(tmp_path)}
    assert outside <= {"state", "origins"}


async def test_who_prints_without_end_is_ended(tmp_path: Path) -> None:
    ended = await run([], program="/usr/bin/yes", mounts=(), config="", bounds=Bounds(output_bytes=100_000))
    assert ended.over == "output"
    assert ended.code == 128 + signal.SIGKILL
