"""What is said of a container's end, at whatever moment its engine is asked."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec
import pytest

from paddock.backends.base import TreeMount
from paddock.backends.container import ContainerBackend
from paddock.backends.container._cleanup import Cleanup
from paddock.backends.container._egress import EgressSockets
from paddock.backends.container._engine import Engine, ending_of
from paddock.backends.container._records import Record, Records
from paddock.errors import PlatformError
from paddock.linux import proc
from paddock.model import SandboxId, Template, User

T = TypeVar("T")
ID = SandboxId("sb_0000000000000001")
_BROKEN = PlatformError("it does not exist in database", engine_status=500)


class Told(Engine):
    """Says one thing after the other; what is no state is raised, None stands for no container."""

    def __init__(self, *answers: dict[str, object] | PlatformError | None) -> None:
        super().__init__(Path("nowhere"))
        self.answers = list(answers)

    async def get(self, path: str, kind: type[T], **query: str) -> T | None:
        answer = self.answers.pop(0)
        if isinstance(answer, PlatformError):
            raise answer
        return None if answer is None else msgspec.convert({"State": answer}, kind)


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([_BROKEN, None], "removed by somebody else"),
        ([{"Status": "running", "Running": True}, {"Status": "stopping"}, None], "removed by somebody else"),
        ([{"Status": "removing"}, None], "removed by somebody else"),
        ([{"Status": "stopping"}, {"Status": "exited", "ExitCode": 3}], "its pid 1 ended with 3"),
        ([{"Status": "stopped", "ExitCode": 137}], "killed from outside: by somebody else"),
        ([{"Status": "stopped", "ExitCode": 137, "OOMKilled": True}], "its memory was used up"),
    ],
)
def test_an_engine_is_asked_until_it_knows(
    answers: list[dict[str, object] | PlatformError | None], reason: str
) -> None:
    engine = Told(*answers)
    assert reason in asyncio.run(ending_of(engine, "one")).reason
    assert engine.answers == []


def test_an_engine_that_goes_on_failing_says_so() -> None:
    with pytest.raises(PlatformError):
        asyncio.run(ending_of(Told(_BROKEN, _BROKEN), "one"))


class Services:
    """Some that look at one dead container at the same time, each as if it were alone with it."""

    def __init__(self, directory: Path) -> None:
        self.records = Records(directory)
        self.carried: list[str] = []
        self.entered, self.go = asyncio.Event(), asyncio.Event()

    def cleanup(self, name: str) -> Cleanup:
        async def out(*_: object) -> None:
            self.carried.append(name)
            self.entered.set()
            await self.go.wait()

        async def engine() -> Engine:
            return Told({"Status": "exited"})

        return Cleanup(self.records, engine, cast("Any", SimpleNamespace(out=out)), {})

    async def waiting(self) -> None:
        """Until another has come as far as it can, or further."""
        for _ in range(20):
            await asyncio.sleep(0)


def left(instance_id: int) -> Record:
    """Of one that is dead: its number is nobody's."""
    user = User(name="user", uid=1000, gid=1000, home="/home/user")
    return Record(
        id=ID,
        instance_id=instance_id,
        deadline=0.0,
        template=Template(name="t", digest="", layers=(), host_usr=True, users=(user,), default_user="user"),
        boot="another",
        trees=(TreeMount(tree="ws_1", target="/workspace", writable=True),),
        loaded=True,
    )


def test_of_tasks_that_see_one_die_one_takes_its_work_out_and_the_others_wait(tmp_path: Path) -> None:
    async def main() -> None:
        services = Services(tmp_path)
        services.records.make(left(0))
        one = asyncio.ensure_future(services.cleanup("one").settled(ID, 0))
        await services.entered.wait()
        other = asyncio.ensure_future(services.cleanup("other").settled(ID, 0))
        await services.waiting()
        services.go.set()
        await asyncio.gather(one, other)
        assert services.carried == ["one"]
        record = services.records.read(ID)
        assert record is not None
        assert (record.carried, record.lost) == (True, "")

    asyncio.run(main())


def test_who_waited_leaves_the_next_of_that_id_alone(tmp_path: Path) -> None:
    async def main() -> None:
        services = Services(tmp_path)
        services.records.make(left(0))
        removed: list[str] = []

        async def remove() -> None:
            services.records.remove(ID)
            services.records.make(left(1))

        async def remove_again() -> None:
            removed.append(ID)

        engine, again = Told({"Status": "exited"}), Told({"Status": "exited"})
        one = asyncio.ensure_future(services.cleanup("one").take_out(engine, ID, 0, then=remove))
        await services.entered.wait()
        other = asyncio.ensure_future(services.cleanup("other").take_out(again, ID, 0, then=remove_again))
        await services.waiting()
        services.go.set()
        await asyncio.gather(one, other)
        assert (services.carried, removed) == (["one"], [])
        assert services.records.read(ID) == left(1)

    asyncio.run(main())


def test_what_is_written_in_the_place_of_one_that_is_removed_is_not_in_the_next_ones_way(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.make(left(0))
    real = os.rmdir

    def late(path: Any, **more: Any) -> None:
        records.write(left(0))  # by who has read the record before
        real(path, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "rmdir", late)
        records.remove(ID)
    records.make(left(1))
    assert records.read(ID) == left(1)


def living() -> Record:
    return msgspec.structs.replace(
        left(0), boot=proc.boot_id(), pid=os.getpid(), start=proc.start_time(os.getpid()), loaded=False
    )


def test_a_deadline_that_is_moved_while_ways_out_are_made_stays_moved(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.make(living())

    class Waiting(EgressSockets):
        async def furnish(self, *_: object, **__: object) -> None:
            records.move_deadline(ID, 0, 7.0)
            self._sockets = [socket.socket(socket.AF_UNIX) for _ in range(5)]

    egress = Waiting()
    found = asyncio.run(egress.exits(records, living(), make=True))
    assert found is not None
    for descriptor in found.detach():
        os.close(descriptor)
    egress.close()
    record = records.read(ID)
    assert record is not None
    assert (record.deadline, record.exits, record.late, egress.late) == (7.0, True, True, True)


def test_nobody_else_changes_a_record_between_its_being_read_and_written(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.make(living())
    write = records.write

    def look(record: Record) -> None:
        assert records._changing.locked()
        write(record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "write", look)
        assert records.change(ID, 0, killed="caller") == living()
    assert records.change(ID, 1, loaded=True) is None
    assert records.read(ID) == msgspec.structs.replace(living(), killed="caller")


def test_one_that_was_given_more_time_is_not_killed_for_having_none(tmp_path: Path) -> None:
    async def main() -> None:
        backend = ContainerBackend(tmp_path)
        backend.records.make(msgspec.structs.replace(living(), deadline=proc.boottime() + 3600))

        class RunningContainer:
            def kill(self) -> bool:
                raise AssertionError

        await backend.kill(ID, 0, cast("Any", RunningContainer()), why="deadline")
        await backend.aclose()

    asyncio.run(main())
