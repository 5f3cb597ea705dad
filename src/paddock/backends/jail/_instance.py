"""Hold a live jail in the daemon: talk to its guest directly, and ask the supervisor for the rest."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from paddock.backends.base import Command, Ending, Paused
from paddock.backends.guest import EmptyBody, orders, place_of
from paddock.backends.guest.connection import GuestConnection
from paddock.backends.guest.instance import GuestInstance
from paddock.backends.pump import Journal
from paddock.errors import SandboxDiedError, SupervisorUnavailableError
from paddock.linux.cgroups import Refusals
from paddock.model import Check, ExecId, ExecSpec, Limit, Process, SandboxId, Template, Usage
from paddock.model.caller import SESSION

if TYPE_CHECKING:
    from paddock.backends.jail._supervisor import SupervisorClient
    from paddock.backends.jail.backend import JailBackend


_OOM_SCORE = 500
"""Of commands: they die of lack of memory before their agent does."""


class DescriptorStore:
    """Descriptors of one sandbox's commands, which the supervisor holds, whichever daemon lives. `outside`: the sandbox
    is not the supervisor's."""

    def __init__(self, supervisor: SupervisorClient, id: SandboxId, *, outside: bool = False) -> None:
        self._supervisor, self._id, self._outside = supervisor, id, outside

    def journal(self) -> Journal:
        """Make one over a file without a name, in a thread."""
        return Journal(os.open(self._supervisor.state_dir, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600))

    async def put(self, command: ExecId, descriptors: tuple[int, ...], *, after: int = 0) -> None:
        """Keep copies of these in place of those kept before, except the first `after`. None: forget it."""
        session = SESSION.get()
        await self._supervisor.request(
            "keep",
            descriptors=descriptors,
            id=self._id,
            outside=self._outside,
            command=command,
            owner="" if session is None else session.name,
            after=after,
        )

    async def get(self, command: ExecId) -> tuple[int, ...]:
        """Return copies of the descriptors that are kept of it."""
        answer = await self._supervisor.request("kept", id=self._id, outside=self._outside, command=command)
        return tuple(answer.get("fds", ()))


class JailInstance(GuestInstance):
    """Hold a live jail. Each identity of it has a socket in `run/<id>/`, so reaching it needs no state."""

    def __init__(
        self, backend: JailBackend, id: SandboxId, template: Template, instance_id: int, env: Mapping[str, str]
    ) -> None:
        super().__init__(id, template, root_user=backend.root_user)
        self._backend, self._instance_id = backend, instance_id
        self.pause_clock = backend.state_of(id).pause_clock
        self._env = env
        self.descriptor_store = DescriptorStore(backend.supervisor, id)
        self.pid = 0
        """Of its pid 1."""
        self.is_new = False
        """No command has started in it yet, so the kernel's counts are zero and not read."""

    async def turn_to(self) -> None:
        """Connect to the agent while the create is being recorded, and not during the first command."""
        await self.connection("user")

    async def start(self, spec: ExecSpec, *, id: ExecId, background: bool) -> Command:
        return await super().start(self._backend.furnished(self.id, spec), id=id, background=background)

    async def connect(self, identity: str) -> GuestConnection:
        """Connect to the agent of an identity, or to pid 1."""
        return await self.reach(identity)

    async def reach(self, identity: str) -> GuestConnection:
        """To an agent of the jail's own, or to its pid 1."""
        place = place_of(identity, self.template, self._env, _OOM_SCORE)
        return await GuestConnection.connect(self._backend.socket(self.id, identity), place)

    async def set_deadline(self, deadline: float) -> None:
        await self._backend.supervisor.request("deadline", id=self.id, deadline=deadline)
        await self.tell_deadline(deadline)

    async def tell_deadline(self, deadline: float) -> None:
        """To pid 1, which holds it as well as the supervisor."""
        try:
            control = await self.reach("init")
        except OSError:  # the deadline had passed
            raise SandboxDiedError(f"{self.id} is dead") from None
        with contextlib.closing(control):
            await control.open(orders.deadline(deadline)).call(EmptyBody)

    async def usage(self) -> Usage:
        answer = await self._backend.supervisor.request("usage", id=self.id)
        strikes = {Limit(k): v for k, v in cast("dict[str, int | None]", answer.pop("strikes", {})).items() if v}
        return Usage(**answer, strikes=strikes)

    def strikes(self) -> Mapping[Limit, int] | None:
        is_new, self.is_new = self.is_new, False
        return {} if is_new else super().strikes()

    def refusals(self) -> Refusals:
        if "memory" in self._backend.supervisor.facts.get("watched", ()):
            return super().refusals()  # what the supervisor kills, no group counts
        return Refusals(self.pid)

    async def processes(self) -> tuple[Process, ...]:
        from paddock.backends.jail import _look

        return await asyncio.to_thread(_look.table, await self._backend.record(self.id))

    async def posture(self) -> tuple[Check, ...]:
        from paddock.backends.jail import _look

        return await asyncio.to_thread(_look.posture, await self._backend.record(self.id))

    async def _ask_pauses(self, operation: str) -> dict[str, Any]:
        return await self._backend.supervisor.request(operation, id=self.id, instance_id=self._instance_id)

    async def pause(self) -> Paused:
        times = await self._ask_pauses("pause")
        self.pause_clock.begin()
        return paused_of(times)

    async def resume(self) -> float:
        times = await self._ask_pauses("resume")
        self.pause_clock.end()
        return float(times["deadline"])

    async def stay_awake(self) -> Callable[[], None]:
        return await self._backend.stay_awake(self.id, self._instance_id)

    @contextlib.asynccontextmanager
    async def frozen(self) -> AsyncGenerator[None]:
        hold = next(self._backend.supervisor.holds)
        await self._backend.supervisor.request("freeze", id=self.id, hold=hold)
        try:
            yield
        finally:
            # Shielded: a cancelled caller would leave it frozen until the supervisor's timeout.
            thawing = self._backend.start(self._backend.supervisor.request("thaw", id=self.id, hold=hold))
            answer = await asyncio.shield(thawing)
        if not answer["held"]:
            raise SupervisorUnavailableError(
                f"{self.id} did not stand still for as long as it took", hint="try again", lost=True
            )

    async def kill(self) -> None:
        self.close_connections()
        await self._backend.kill(self.id, self._instance_id)

    async def aclose(self) -> None:
        self.close_connections()

    async def wait_ended(self) -> Ending:
        return await asyncio.shield(self._backend.ending(self.id, self._instance_id))


def paused_of(times: dict[str, Any]) -> Paused:
    return Paused(times["left"], float(times["deadline"]))
