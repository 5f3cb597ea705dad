"""A wall that needs one of the host's devices has it in a /dev of its own, and nobody else has it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from paddock.backends.jail import JailBackend
from paddock.errors import PaddockError
from tests.supervisor.conftest import Yard, run

Play = Callable[[Callable[[Yard], Any]], Any]
# The number is KVM_GET_API_VERSION, which has been 12 since Linux 2.6.22.
_LOOK = """
import fcntl, json, os
said = {"names": sorted(os.listdir("/dev")), "terminals": bool(os.openpty())}
open("/dev/shm/written", "w").close()
try: open("/dev/made", "w")
except OSError as error: said["made"] = error.errno
try: said["kvm"] = fcntl.ioctl(os.open("/dev/kvm", os.O_RDWR), 0xAE00)
except OSError as error: said["kvm"] = -error.errno
print(json.dumps(said))
"""


def _planned(backend: JailBackend, plan: Any, kind: str) -> Any:
    return backend.jail_plan(plan)._replace(kind=kind, devices=("kvm",))


async def _look(instance: Any, user: str | None) -> dict[str, Any]:
    status, printed = await run(instance, "python3", "-c", _LOOK, user=user)
    assert status.code == 0, printed
    return json.loads(printed)


@pytest.mark.skipif(not os.path.exists("/dev/kvm"), reason="this machine has no /dev/kvm")
def test_a_wall_has_the_device_that_it_asks_for_and_no_other_sandbox_sees_it(play: Play) -> None:
    async def scene(yard: Yard) -> None:
        before = await yard.create()
        plan = yard.plan()
        wall = await yard.backend.make(plan, _planned(yard.backend, plan, "oven"))
        after = await yard.create()
        user = "root" if yard.backend.whole else None
        usual, also = await _look(before, user), await _look(after, user)
        assert usual == also
        assert usual["kvm"] < 0
        assert "kvm" not in usual["names"]
        seen = await _look(wall, user)
        assert sorted({*usual["names"], "kvm"}) == seen["names"]
        assert {**seen, "names": [], "kvm": 0} == {**usual, "names": [], "kvm": 0}
        if os.getuid() == 0 or (os.access("/dev/kvm", os.W_OK) and not yard.backend.whole):
            assert seen["kvm"] == 12
        told = {check.name: check.detail for check in await wall.posture()}
        assert told["devices"] == "the host's /dev/kvm, in a /dev of its own"
        assert "devices" not in {check.name for check in await before.posture()}
        for instance in (before, wall, after):
            await instance.kill()

    play(scene)


@pytest.mark.parametrize("kind", ["jail", "container"])
def test_no_other_kind_of_sandbox_is_given_one(play: Play, kind: str) -> None:
    async def scene(yard: Yard) -> None:
        plan = yard.plan()
        with pytest.raises(PaddockError, match="has no device 'kvm'"):
            await yard.backend.make(plan, _planned(yard.backend, plan, kind))

    play(scene)
