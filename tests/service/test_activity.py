"""An idle daemon isn't woken: what comes round stops when nothing lives and nothing is asked."""

from __future__ import annotations

from service_world import ME, Rig, until

from paddock.daemon.tasks import Activity
from paddock.model import CreateSandbox, KillSandbox, ListSandboxes


def rests(activity: Activity) -> bool:
    """Tell whether every series of `rounds` waits for a request."""
    return not any(one.is_set() for one in activity._waiting)


async def test_sweeps_stop_when_nothing_lives_and_begin_again_with_a_request(rig: Rig) -> None:
    async with rig.service() as service:
        service.activity = Activity(lambda: bool(service.store.list()))
        rounds = aiter(service.activity.rounds(0.0))
        await anext(rounds)
        assert rests(service.activity)
        await service.perform(ListSandboxes(), ME)
        assert not rests(service.activity)
        await anext(rounds)
        assert rests(service.activity)
        made = await service.perform(CreateSandbox(), ME)
        for _ in range(3):
            await anext(rounds)
            assert not rests(service.activity), "a sandbox lives"
        await service.perform(KillSandbox(sandbox=made.id), ME)
        await anext(rounds)
        await until(lambda: rests(service.activity))
        await rounds.aclose()
