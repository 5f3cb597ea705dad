"""Processes, their streams, and files, over the in-process transport."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from paddock.client import AsyncSandbox, Sandbox
from paddock.errors import FileError, GuestProtocolError, InvalidStateError
from paddock.model import State
from tests.client.door import Rig
from tests.orphans import wait_until


@pytest.fixture
def sandbox(rig: Rig) -> Sandbox:
    return Sandbox.create(transport=rig.transport)


def test_a_process_is_fed_read_and_waited_for(sandbox: Sandbox) -> None:
    with sandbox.start("cat; exit 5", stdin=True) as process:
        process.stdin.write("hel")
        process.stdin.write(b"lo")
        process.stdin.close()
        assert b"".join(process.stdout) == b"hello"
        assert process.wait().code == 5
        assert process.status is not None


def test_read_without_a_size_waits_for_the_end(sandbox: Sandbox) -> None:
    with sandbox.start("echo one; sleep 0.01; echo two") as process:
        assert process.stdout.read() == b"one\ntwo\n"
        assert process.stdout.read() == b""


def test_waiting_ends_when_its_time_is_over_and_the_command_goes_on(sandbox: Sandbox) -> None:
    with sandbox.start("cat", stdin=True) as process:
        with pytest.raises(TimeoutError, match=r"the command still runs after 0\.01 s"):
            process.wait(timeout=0.01)
        assert process.exit_code is None
        process.stdin.close()
        assert process.wait(timeout="1m").exit_code == 0


def test_async_with_takes_what_can_be_awaited(rig: Rig) -> None:
    async def scenario() -> None:
        async with AsyncSandbox.create(transport=rig.async_transport) as sandbox:
            async with sandbox.start("cat", stdin=True) as process:
                with pytest.raises(TimeoutError):
                    await process.wait(timeout=0.01)
            async with asyncio.TaskGroup() as group:  # takes coroutines only
                created = group.create_task(AsyncSandbox.create(transport=rig.async_transport))
            async with created.result() as other:
                assert other.id != sandbox.id
        assert sandbox.state is State.KILLED
        with pytest.raises(ValueError, match="from inside"):
            async with AsyncSandbox.create(transport=rig.async_transport) as sandbox:
                raise ValueError("from inside")
        assert sandbox.state is State.KILLED

    asyncio.run(scenario())


def test_lines_come_whole_however_the_bytes_come(sandbox: Sandbox) -> None:
    with sandbox.start("printf 'a\\nb'; sleep 0.01; printf 'c\\n\\nlast'") as process:
        assert list(process.stdout.lines()) == ["a", "bc", "", "last"]


def test_a_line_without_end_comes_in_pieces(sandbox: Sandbox) -> None:
    with sandbox.start("head -c 5000 /dev/zero") as process:
        lengths = [len(line) for line in process.stdout.lines(max_line_bytes=1000)]
    assert sum(lengths) == 5000
    assert max(lengths) <= 1000


def test_what_is_not_read_blocks_the_writer(sandbox: Sandbox) -> None:
    with sandbox.start("dd if=/dev/zero bs=1M count=64; echo done >&2") as process:
        total = sum(len(chunk) for chunk in process.stdout)
        assert total == 64 << 20


def test_leaving_the_block_kills_what_runs(sandbox: Sandbox, rig: Rig) -> None:
    with sandbox.start("sleep 60") as process:
        pass
    assert not rig.door.open
    with pytest.raises(InvalidStateError, match="wait first"):
        process.wait()


def test_a_dropped_handle_lets_go_of_its_command_and_says_so(sandbox: Sandbox, rig: Rig) -> None:
    with pytest.warns(ResourceWarning, match="never closed"):
        sandbox.start("sleep 60")
    assert wait_until(lambda: not rig.door.open), "it still holds the command"


def test_a_dropped_handle_of_a_command_that_was_waited_for_says_nothing(sandbox: Sandbox, rig: Rig) -> None:
    sandbox.start("true").wait()
    assert wait_until(lambda: not rig.door.open), "it still holds the pipes"


def test_who_keeps_a_stream_keeps_the_command(sandbox: Sandbox, rig: Rig) -> None:
    stream = sandbox.start("sleep 0.05; echo late").stdout
    assert list(stream.lines()) == ["late"]
    with pytest.warns(ResourceWarning, match="never closed"):
        del stream
    assert wait_until(lambda: not rig.door.open)


def test_a_missing_stream_is_explained(sandbox: Sandbox) -> None:
    with sandbox.start("true") as process, pytest.raises(InvalidStateError, match="stdin=True"):
        _ = process.stdin


def test_files_go_in_and_come_out(sandbox: Sandbox, rig: Rig, tmp_path: Path) -> None:
    files = sandbox.filesystem
    big = bytes(range(256)) * 20_000
    files.write("text", "grüße")
    files.write("bytes", big)
    files.write("view", memoryview(big))
    files.write("iterable", (big[i : i + 1000] for i in range(0, len(big), 1000)))
    files.write("file", io.BytesIO(big))
    assert files.write("empty", b"").size_bytes == 0
    assert files.read_text("text") == "grüße"
    assert {files.read(name) for name in ("bytes", "view", "iterable", "file")} == {big}
    target = tmp_path / "copy"
    assert files.read_to("bytes", target) == len(big)
    assert files.write_from("again", target).size_bytes == len(big)
    assert files.exists("again")
    assert not files.exists("nothing")


def test_a_file_larger_than_wanted_is_refused_without_reading_it_all(sandbox: Sandbox) -> None:
    sandbox.files.write("a", b"x" * 1000)
    assert len(sandbox.files.read("a", max_bytes=1000)) == 1000
    with pytest.raises(FileError) as caught:
        sandbox.files.read("a", max_bytes=999)
    assert caught.value.details["errno"] == "EFBIG"


def test_a_write_that_fails_halfway_leaves_nothing(sandbox: Sandbox) -> None:
    def source() -> Iterator[bytes]:
        yield b"half"
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sandbox.files.write("a", source())

    def fail(name: str) -> None:
        with sandbox.files.open(name, "wb") as writer:
            writer.write("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail("b")
    with sandbox.files.open("c", "wb") as writer:
        writer.write("whole")
    assert [sandbox.files.exists(name) for name in "abc"] == [False, False, True]


def test_a_tree_goes_up_and_comes_down(sandbox: Sandbox, rig: Rig, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "b").write_bytes(b"x" * 3_000_000)
    assert sandbox.files.upload(tree, "/x").total_bytes == 3_000_000
    rig.door.archive = rig.door.uploaded
    report = sandbox.files.download("/x", tmp_path / "back")
    assert (report.entries, report.skipped) == (2, ())
    assert (tmp_path / "back/a/b").read_bytes() == b"x" * 3_000_000


def test_a_hostile_tree_leaves_nothing_and_the_stream_is_closed(sandbox: Sandbox, rig: Rig, tmp_path: Path) -> None:
    info = tarfile.TarInfo("../evil")
    rig.door.archive = info.tobuf() + bytes(1024)
    with pytest.raises(GuestProtocolError, match="leads upwards"):
        sandbox.files.download("/x", tmp_path / "out")
    assert sandbox.files.download("/x", tmp_path / "out", skip_unsafe=True).skipped == ("../evil",)
    assert {path.name for path in tmp_path.iterdir()} == {"daemon.sock", "out"}


def test_an_endless_stream_after_the_archive_is_not_read(sandbox: Sandbox, rig: Rig, tmp_path: Path) -> None:
    rig.door.archive = bytes(1024) + b"x" * (100 << 20)
    assert sandbox.files.download("/x", tmp_path / "out").entries == 0


def test_the_asynchronous_side_does_the_same(rig: Rig, tmp_path: Path) -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"one"
        await asyncio.sleep(0)
        yield b"two"

    async def scenario() -> None:
        async with await AsyncSandbox.create(transport=rig.async_transport) as sandbox:
            await sandbox.files.write("a", source())
            await sandbox.files.write("b", io.BytesIO(b"file"))
            assert await sandbox.files.read("a") == b"onetwo"
            assert await sandbox.files.read_to("b", tmp_path / "local") == 4
            async with await sandbox.start("echo one; echo two") as process:
                assert [line async for line in process.stdout.lines()] == ["one", "two"]
            results = await asyncio.gather(*(sandbox.exec(f"sleep 0.1; exit {n}") for n in range(10)))
            assert [result.exit_code for result in results] == list(range(10))
            report = await sandbox.files.upload(tmp_path, "/x", exclude=("local",))
            rig.door.archive = rig.door.uploaded
            assert (await sandbox.files.download("/x", tmp_path / "back")).entries == report.entries == 2

    asyncio.run(scenario())
