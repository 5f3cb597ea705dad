"""What Firecracker is told, against its API document: a strict double of it as the pilot's child, and behind that the
real guest. Firecracker itself did not run: there is no KVM where this was written, and no package with the program."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from test_exec import collect, start

from paddock.backends._guest import GuestConnection
from paddock.backends.microvm._firecracker import Firecracker
from paddock.backends.microvm._vmm import Machine
from paddock.errors import InvalidState, PaddockError
from paddock.model import Noun, mint
from tests.guest import firecracker_api as api
from tests.guest.agents import SRC
from tests.guest.pilots import IDENTITIES, PilotProcess, guest_command

DOUBLE = Path(__file__).with_name("firecracker_double.py")
MACHINE = Machine(memory_mib=64, processors=2, accelerator="kvm")
BOOT_CALLS = [
    "PUT /machine-config",
    "PUT /boot-source",
    "PUT /drives/view",
    "PUT /drives/disk",
    "PUT /vsock",
    "PUT /entropy",
    "PUT /actions",
]


class Bench:
    """One guest, and as many doubles and pilots as come to it, one after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.log = directory, directory / "calls"
        self.place, self.image = directory / "vm", directory / "image"
        (self.place / "boot").mkdir(parents=True)
        for name in ("kernel", "initrd"):
            (self.place / "boot" / name).touch()
        (directory / "template").mkdir()
        (directory / "template" / "file").write_bytes(b"of the template")
        pairs = {name: socket.socketpair() for name in IDENTITIES}
        self.ends = [ours for ours, _ in pairs.values()]
        theirs = {name: theirs.fileno() for name, (_, theirs) in pairs.items()}
        self.guest = subprocess.Popen(guest_command(directory, theirs), pass_fds=tuple(theirs.values()), env={})
        for _, end in pairs.values():
            end.close()
        self.giver = socket.create_server(str(directory / "lines"), family=socket.AF_UNIX)
        threading.Thread(target=self._give, daemon=True).start()
        self.pilots: list[PilotProcess] = []
        self.first: dict[PilotProcess, socket.socket] = {}

    def _give(self) -> None:
        while True:
            try:
                asker, _ = self.giver.accept()
            except OSError:
                return
            with asker:
                socket.send_fds(asker, [b"."], [end.fileno() for end in self.ends])

    def pilot(
        self,
        mischief: dict[str, str] | None = None,
        *,
        boot: bool = True,
        program: Path = DOUBLE,
        memory_mib: int = MACHINE.memory_mib,
        **fields: Any,
    ) -> PilotProcess:
        machine = Machine(memory_mib=memory_mib, processors=MACHINE.processors, accelerator="kvm")
        options = Firecracker(Path("/none"), "1.10.0").options(machine, IDENTITIES, boot=boot)
        script = {
            "ports": [options["lines"][name] for name in IDENTITIES],
            "lines": str(self.directory / "lines"),
            "log": str(self.log),
            "mischief": mischief or {},
        }
        text = json.dumps(options).replace("/vm/", f"{self.place}/").replace("/tmp/fire", f"{self.directory}/fire")
        told = json.loads(text)
        told["argv"] = [sys.executable, str(program), str(SRC), json.dumps(script), *told["argv"][1:]]
        told |= {
            "vmm": "firecracker",
            "place": str(self.place),
            "stamp": "this one",
            "memory": "",
            "env": {},
            "exports": [],
        }
        if boot:
            source = {"place": str(self.directory / "template"), "path": "/", "readable": True}
            told["make"] = {"sources": [source], "disk_bytes": 1 << 20, "format": ["/bin/true"]}
        told |= fields
        ours, theirs = socket.socketpair()
        with theirs:
            pilot = PilotProcess(self.directory, first=theirs, course="microvm", options=told)
        self.pilots.append(pilot)
        self.first[pilot] = ours
        return pilot

    def freeze(self, control: GuestConnection) -> Any:
        """Its memory goes into `image`."""
        control.descriptors = True
        with self.image.open("w+b") as file:
            return control.open({"op": "freeze", "memory": "mm_this"}, fds=[file.fileno()])

    def calls(self) -> list[str]:
        lines = map(json.loads, self.log.read_text().splitlines())
        return [f"{method} {path}" for method, path, _ in lines]

    def close(self) -> None:
        for pilot in self.pilots:
            pilot.stop()
        for stream in self.first.values():
            stream.close()
        self.giver.shutdown(socket.SHUT_RDWR)
        self.giver.close()
        for end in self.ends:
            end.close()
        self.guest.wait(60)


@pytest.fixture
def bench(tmp_path: Path) -> Generator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def play(scene: Any) -> Any:
    async def whole() -> Any:
        async with asyncio.timeout(120):
            return await scene

    return asyncio.run(whole())


async def words(bench: Bench, pilot: PilotProcess) -> str:
    """The last of a pilot."""
    control = GuestConnection(bench.first[pilot])
    control.descriptors = False
    try:
        said = await control.open({"op": "end"}).result(dict)
        return f"{said.get('words', '')} {said['log']} {said['code']}"
    finally:
        control.close()


async def echo(pilot: PilotProcess, *, say: str = "user") -> bytes:
    connection = pilot.dial(say)
    try:
        return (await collect(await start(connection, "echo", "from inside")))[1]
    finally:
        connection.close()


def test_a_machine_is_described_started_and_spoken_to(bench: Bench) -> None:
    pilot = bench.pilot()

    async def scene() -> None:
        assert [await echo(pilot), await echo(pilot, say="root")] == [b"from inside\n"] * 2
        connection = pilot.dial("user")
        assert len((await collect(await start(connection, "head", "-c", "20000000", "/dev/zero")))[1]) == 20_000_000
        connection.close()

    play(scene())
    assert bench.calls() == BOOT_CALLS
    assert b"of the template" in (bench.place / "view").read_bytes()  # it reads one file, with everything


@pytest.mark.parametrize(("memory_mib", "processors"), [(128, 1), (256, 3), (4096, 32)])
def test_every_body_is_one_of_the_api_document(memory_mib: int, processors: int) -> None:
    machine = Machine(memory_mib=memory_mib, processors=processors, accelerator="kvm")
    bodies = Firecracker(Path("/none"), "1.10.0").options(machine, IDENTITIES, boot=True)["machine"]
    for path, body in bodies.items():
        name, states, _ = api.CALLS["PUT", path.split("/")[1]]
        assert api.faults(name, body) == []
        assert api.NOT_STARTED in states
    assert api.faults("Drive", {**bodies["/drives/view"], "read_only": True})
    assert api.faults("MachineConfiguration", {"vcpu_count": 33, "mem_size_mib": 128})
    assert api.faults("Vsock", {"uds_path": "/v"})


def test_a_command_goes_on_over_a_freeze_and_hears_all_that_was_said(bench: Bench) -> None:
    pilot = bench.pilot()

    async def scene() -> None:
        user, control = pilot.dial("user"), pilot.dial("control")
        command = await start(user, "cat", stdin=True)
        await command.stdin.write(b"before ")
        freeze = bench.freeze(control)
        await freeze.reply(dict)
        assert bench.image.stat().st_size == MACHINE.memory_bytes
        assert not (bench.place / "ram.new").exists()
        assert {"state", "lines"} <= {path.name for path in bench.place.iterdir()}
        with pytest.raises(InvalidState, match="just taking a copy"):
            await bench.freeze(control).reply(dict)
        await command.stdin.write(b"meanwhile ")
        freeze.close()
        await command.stdin.write(b"after")
        await command.stdin.aclose()
        assert (await collect(command))[1] == b"before meanwhile after"
        assert not {"state", "lines"} & {path.name for path in bench.place.iterdir()}
        user.close()
        control.close()

    play(scene())
    assert bench.calls() == [*BOOT_CALLS, "PATCH /vm", "PUT /snapshot/create", "PATCH /vm"]


def test_a_saved_machine_is_loaded_by_another_pilot_and_goes_on(bench: Bench) -> None:
    first = bench.pilot()

    async def save() -> None:
        user, control = first.dial("user"), first.dial("control")
        command: dict[str, Any] = {"id": mint(Noun.EXEC), "argv": ["sleep", "1000"], "cwd": "/", "stdin": False}
        await user.open({"op": "exec", **command, "background": True}).call(dict)
        await control.open({"op": "freeze", "for_good": True}).reply(dict)
        user.close()
        control.close()

    async def goes_on() -> None:
        connection = second.dial("user")
        execs = await connection.open({"op": "execs"}).call(dict)
        assert len(execs["execs"]) == 1
        connection.close()

    play(save())
    first.stop()
    bench.log.unlink()
    second = bench.pilot(boot=False)
    play(goes_on())
    assert bench.calls() == ["PUT /snapshot/load", "PATCH /vm"]
    assert not (bench.place / "state").exists()
    assert play(echo(second, say="root")) == b"from inside\n"


MISCHIEF = {
    "endless": "an answer without end",
    "huge": "9999999999 bytes",
    "two": "more than one answer",
    "garbage": "an answer that is none",
    "chunked": "an answer that is none",
    "refusal": "it is too much (400)",
    "cut": "Firecracker is gone",
    "death": " 7",
}


@pytest.mark.parametrize(
    ("call", "mischief"),
    [
        *(("PUT /machine-config", mischief) for mischief in MISCHIEF),
        ("PUT /actions", "refusal"),
        ("PUT /actions", "death"),
    ],
)
def test_one_who_answers_wrong_ends_with_the_reason(bench: Bench, call: str, mischief: str) -> None:
    pilot = bench.pilot({call: mischief})
    assert MISCHIEF[mischief] in play(words(bench, pilot))
    assert bench.calls()[-1] == call


@pytest.mark.parametrize("mischief", ["huge", "cut", "death"])
def test_one_who_dies_or_lies_while_the_machine_is_saved_is_the_end_of_it(bench: Bench, mischief: str) -> None:
    pilot = bench.pilot({"PUT /snapshot/create": mischief})

    async def scene() -> str:
        await echo(pilot)
        control = pilot.dial("control")
        end = asyncio.ensure_future(words(bench, pilot))
        with pytest.raises(PaddockError):
            await bench.freeze(control).reply(dict)
        control.close()
        return await end

    assert MISCHIEF[mischief] in play(scene())
    assert not (bench.place / "state").exists()


def test_a_snapshot_that_is_refused_leaves_the_machine_running(bench: Bench) -> None:
    pilot = bench.pilot({"PUT /snapshot/create": "refusal"})

    async def scene() -> None:
        await echo(pilot)
        control = pilot.dial("control")
        with pytest.raises(InvalidState, match="it is too much"):
            await bench.freeze(control).reply(dict)
        assert await echo(pilot) == b"from inside\n"
        control.close()

    play(scene())
    assert not (bench.place / "state").exists()
    assert bench.calls()[-1] == "PATCH /vm"


def test_a_disk_that_is_full_is_told_as_such_and_the_machine_goes_on(bench: Bench) -> None:
    pilot = bench.pilot({"PUT /snapshot/create": "full"})

    async def scene() -> None:
        control = pilot.dial("control")
        with pytest.raises(PaddockError, match="there is no room") as caught:
            await bench.freeze(control).reply(dict)
        assert caught.value.details["errno"] == "ENOSPC"
        assert await echo(pilot) == b"from inside\n"
        control.close()

    play(scene())


def _saved(bench: Bench, stamp: str = "this one", memory_mib: int = MACHINE.memory_mib) -> None:
    (bench.place / "state").write_text("{}")
    (bench.place / "lines").write_text(json.dumps({"stamp": stamp, "memory": "", "marks": {}}))
    with (bench.place / "ram").open("wb") as file:
        file.truncate(memory_mib << 20)


@pytest.mark.parametrize(
    ("saved", "said"),
    [({"stamp": "another"}, "saved by another, and this is this one"), ({"memory_mib": 1}, "1048576 bytes")],
)
def test_what_another_has_saved_and_what_is_cut_short_is_not_loaded(bench: Bench, saved: Any, said: str) -> None:
    _saved(bench, **saved)
    assert said in play(words(bench, bench.pilot(boot=False)))
    assert not bench.log.exists()


def test_a_template_that_is_too_large_for_one_file_is_refused_with_its_size(bench: Bench) -> None:
    (bench.directory / "template" / "large").write_bytes(bytes(3 << 20))
    assert "3 MiB of files" in play(words(bench, bench.pilot(largest_view=1 << 20)))
    assert not bench.log.exists()
