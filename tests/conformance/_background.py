"""Background commands: listed, attached to again with all they printed, outliving who started them."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator

import pytest

from paddock.errors import NotFoundError, RequestError
from paddock.model import ByteReader, ExecId, ExecInfo, IdPrefix, Limit, mint

from ._box import Box, drain, finish, read_until
from ._host import processes
from ._lab import Bench, Lab, eventually, guarantee


class BackgroundConformance(Bench):
    """execs, attach, signal_exec, and the life of a background command."""

    @guarantee()
    async def test_a_background_command_is_listed_while_it_runs(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("sleep", "600", background=True)
        info = await _only(box)
        assert (info.id, info.argv, info.pid) == (handle.id, ("sleep", "600"), handle.pid)
        assert (info.background, info.status) == (True, None)
        await handle.aclose()

    @guarantee()
    async def test_a_background_command_is_listed_with_its_status_when_it_has_ended(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("sh", "-c", "exit 6", background=True)
        await handle.wait()
        await handle.aclose()
        info = await _only(box)
        assert info.status is not None
        assert info.status.code == 6

    @guarantee()
    async def test_a_foreground_command_is_listed_only_while_it_runs(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("cat", stdin=True)
        info = await _only(box)
        assert (info.id, info.background) == (handle.id, False)
        await finish(handle, input=b"")

        async def unlisted() -> bool:
            return await box.instance.execs() == ()

        await eventually("the ended foreground command is not listed", unlisted)

    @guarantee()
    async def test_a_background_command_outlives_its_handle(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("sh", "-c", "sleep 0.3; echo done >proof; sleep 600", background=True)
        await handle.aclose()

        async def written() -> bool:
            return "proof" in await box.names()

        await eventually("it went on after its handle was closed", written)
        assert (await _only(box)).status is None

    @guarantee()
    async def test_what_was_printed_until_now_is_read_while_the_command_goes_on(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("sh", "-c", "echo early; echo warn >&2; exec sleep 600", background=True)

        async def there() -> bool:
            return (await _kept(box, handle.id, 1), await _kept(box, handle.id, 2)) == (b"early\n", b"warn\n")

        await eventually("what it printed is there to be read", there)
        assert (await _only(box)).status is None
        with pytest.raises(NotFoundError):
            await box.instance.output(ExecId(mint(IdPrefix.EXEC)), 1)
        await handle.aclose()

    @guarantee()
    async def test_a_large_output_is_read_whole(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("head", "-c", "5000000", "/dev/zero", background=True)
        assert handle.stdout is not None
        assert len(await drain(handle.stdout)) == 5_000_000
        await handle.wait()
        assert len(await _kept(box, handle.id, 1)) == 5_000_000
        await handle.aclose()

    @guarantee()
    async def test_attaching_gives_the_whole_output_from_the_start_and_what_follows(self, lab: Lab) -> None:
        box = await lab.box()
        first = await box.start(
            "sh", "-c", "echo early; echo warn >&2; while ! test -e go; do sleep 0.02; done; echo late", background=True
        )
        await first.aclose()
        handle = await box.instance.attach(first.id)
        assert (handle.id, handle.pid) == (first.id, first.pid)
        assert handle.stdout is not None
        seen = await read_until(handle.stdout, b"early\n")
        await box.write("go", b"")
        finished = await finish(handle)
        assert (seen + finished.out, finished.err) == (b"early\nlate\n", b"warn\n")

    @guarantee()
    async def test_attaching_to_an_ended_command_gives_its_output_and_status(self, lab: Lab) -> None:
        box = await lab.box()
        first = await box.start("sh", "-c", "echo out; echo err >&2; exit 8", background=True)
        await first.wait()
        await first.aclose()
        for _ in range(2):
            finished = await finish(await box.instance.attach(first.id))
            assert (finished.out, finished.err, finished.status.code) == (b"out\n", b"err\n", 8)

    @guarantee()
    async def test_the_first_handle_of_a_background_command_has_its_output(self, lab: Lab) -> None:
        finished = await finish(await (await lab.box()).start("sh", "-c", "echo out; exit 2", background=True))
        assert (finished.out, finished.status.code) == (b"out\n", 2)

    @guarantee()
    async def test_many_can_attach_at_once(self, lab: Lab) -> None:
        box = await lab.box()
        first = await box.start("sh", "-c", "echo a; while ! test -e go; do sleep 0.02; done; echo b", background=True)
        handles = [await box.instance.attach(first.id) for _ in range(5)]
        await box.write("go", b"")
        for finished in await asyncio.gather(*(finish(handle) for handle in handles)):
            assert finished.out == b"a\nb\n"
        await first.aclose()

    @guarantee()
    async def test_a_background_command_is_not_held_back_by_nobody_reading(self, lab: Lab) -> None:
        box = await lab.box()
        first = await box.start_python(
            "import os\nfor n in range(80): os.write(1, b'%02d' % n * 32768)", background=True
        )

        async def ended() -> bool:
            return (await _only(box)).status is not None

        await eventually("it ended although nobody read what it printed", ended)
        await first.aclose()
        out = (await finish(await box.instance.attach(first.id))).out
        assert out == b"".join(b"%02d" % n * 32768 for n in range(80))

    @guarantee()
    async def test_the_end_of_a_background_command_waits_for_no_reader_and_its_output_is_there_after_it(
        self, lab: Lab
    ) -> None:
        box = await lab.box()
        handle = await box.start("sh", "-c", "head -c 8000000 /dev/zero; exit 4", background=True)
        assert (await handle.wait()).code == 4
        assert handle.stdout is not None
        assert len(await drain(handle.stdout)) == 8_000_000
        await handle.aclose()

    @guarantee()
    async def test_detaching_does_not_disturb_the_command(self, lab: Lab) -> None:
        box = await lab.box()
        first = await box.start(
            "sh", "-c", "while ! test -e go; do echo tick; sleep 0.01; done; exit 3", background=True
        )
        for _ in range(5):
            handle = await box.instance.attach(first.id)
            assert handle.stdout is not None
            await read_until(handle.stdout, b"tick")
            await handle.aclose()
        await box.write("go", b"")
        assert (await first.wait()).code == 3
        await first.aclose()

    @guarantee()
    async def test_a_background_command_can_be_signalled_by_its_id(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("sleep", "600", background=True)
        await box.instance.signal_exec(handle.id, signal.SIGTERM)
        assert (await handle.wait()).signal == signal.SIGTERM
        await handle.aclose()

    @guarantee()
    async def test_a_foreground_command_can_be_signalled_by_its_id(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("sleep", "600")
        await box.instance.signal_exec(handle.id, signal.SIGINT)
        assert (await handle.wait()).signal == signal.SIGINT
        await handle.aclose()

    @guarantee()
    async def test_a_background_command_can_be_killed_with_everything_after_it_was_attached(self, lab: Lab) -> None:
        box = await lab.box()
        first = await box.start(
            "sh", "-c", f"(setsid sleep 600 {lab.marker} || exec sleep 600) & : {lab.marker}; wait", background=True
        )
        await first.aclose()
        handle = await box.instance.attach(first.id)
        await handle.kill()
        assert (await handle.wait()).signal == signal.SIGKILL
        await handle.aclose()

        async def gone() -> bool:
            return not processes(lab.marker)

        await eventually("nothing of the background command is left", gone)

    @guarantee()
    async def test_unknown_commands_are_not_found(self, lab: Lab) -> None:
        box = await lab.box()
        unknown = ExecId(mint(IdPrefix.EXEC))
        with pytest.raises(NotFoundError):
            await box.instance.attach(unknown)
        with pytest.raises(NotFoundError):
            await box.instance.signal_exec(unknown, signal.SIGTERM)

    @guarantee()
    async def test_names_that_are_no_ids_lead_nowhere(self, lab: Lab) -> None:
        box = await lab.box()
        for name in ("ex_", "../../etc/passwd", "..", "", "a\0b", "x" * 100_000):
            with pytest.raises(RequestError):
                await box.instance.attach(ExecId(name))
            with pytest.raises(RequestError):
                await box.instance.signal_exec(ExecId(name), signal.SIGTERM)
        assert (await box.run("true")).status.code == 0

    @guarantee()
    async def test_a_foreground_command_cannot_be_attached_to(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("sleep", "600")
        with pytest.raises(NotFoundError):
            await box.instance.attach(handle.id)
        await handle.aclose()

    @guarantee()
    async def test_the_list_is_in_order_of_starting_and_complete(self, lab: Lab) -> None:
        box = await lab.box()
        handles = [await box.start("sleep", "600", background=True) for _ in range(10)]
        infos = sorted(await box.instance.execs(), key=lambda info: info.started_at)
        assert [info.id for info in infos] == [handle.id for handle in handles]
        for handle in handles:
            await handle.aclose()

    @guarantee()
    async def test_its_timeout_holds_when_nobody_holds_it_and_is_named_to_whoever_asks(self, lab: Lab) -> None:
        box = await lab.box()
        script = f"setsid sh -c 'sleep 600; : {lab.marker}' & sleep 600; :"
        first = await box.start("sh", "-c", script, "sh", lab.marker, background=True, timeout_seconds=0.5)
        await first.aclose()

        async def over() -> bool:
            return (await _only(box)).status is not None and not processes(lab.marker)

        await eventually("it is over, with all that it had started", over)
        status = (await _only(box)).status
        assert status is not None
        assert (status.signal, status.limit) == (signal.SIGKILL, Limit.TIME)
        finished = await finish(await box.instance.attach(first.id))
        assert (finished.status.signal, finished.status.limit) == (signal.SIGKILL, Limit.TIME)

    @guarantee()
    async def test_a_background_command_that_ends_in_time_is_not_touched(self, lab: Lab) -> None:
        box = await lab.box()
        seconds = lab.test_seconds / 30
        while True:
            began = time.monotonic()
            finished = await finish(await box.start("sh", "-c", "exit 4", background=True, timeout_seconds=seconds))
            if (finished.status.code, finished.status.limit) == (4, None):
                break
            assert time.monotonic() - began >= seconds, f"it had time left, and ended with {finished.status}"
            seconds *= 2  # a slow machine needs more to start it
        other = await box.start("sleep", "600", background=True, timeout_seconds=600)
        await asyncio.sleep(seconds + 0.2)
        assert [info.status for info in await box.instance.execs() if info.id == other.id] == [None]
        await other.aclose()

    @guarantee("adopt")
    async def test_a_background_command_is_found_again_by_a_later_service(self, lab: Lab) -> None:
        box = await lab.box()
        first = await box.start(
            "sh", "-c", "echo before; while ! test -e go; do sleep 0.02; done; echo after", background=True
        )
        assert first.stdout is not None
        await read_until(first.stdout, b"before")
        await first.aclose()
        await box.instance.aclose()
        later = await lab.second_backend().adopt(box.instance.id)
        assert later is not None
        adopted = lab.keep(Box(later, box.plan))
        handle = await later.attach(first.id)
        await adopted.write("go", b"")
        assert handle.stdout is not None
        assert await drain(handle.stdout) == b"before\nafter\n"
        assert (await handle.wait()).code == 0
        await handle.aclose()


async def _only(box: Box) -> ExecInfo:
    infos = await box.instance.execs()
    assert len(infos) == 1, f"exactly one command is listed, not {infos!r}"
    return infos[0]


async def _kept(box: Box, id: ExecId, stream: int) -> bytes:
    reader = await box.instance.output(id, stream)
    try:
        return b"".join([data async for data in _chunks(reader)])
    finally:
        await reader.aclose()


async def _chunks(reader: ByteReader) -> AsyncIterator[bytes]:
    while data := await reader.read():
        yield data
