"""Directories of the host for a container of the machine's engine: made as a jail's, attached by an emissary."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from paddock.keeper._house import House
from paddock.keeper._mounts import make_mounts
from paddock.keeper._nursery import Reply
from paddock.keeper._plan import JailPlan, PlanError
from paddock.keeper._slots import ENGINE

Message = dict[str, Any]


def order(house: House) -> Callable[[Reply, Message], None]:
    """`mounts`: descriptors of the plan's, detached, in their order, with the ids of an engine that maps none. What is
    written to a copy-on-write one is in the plan's tree. The keeper keeps nothing of them."""

    def make(reply: Reply, plan: Message) -> None:
        wanted = JailPlan.from_message(plan)
        if not house.root_mode:
            raise PlanError("only root's keeper can show directories with other owners")
        late: list[int] = []
        try:
            made = tuple(fd for _, fd in make_mounts(house, wanted, ENGINE, late))
            reply(None, made)
        finally:
            for fd in late:
                os.close(fd)

    return make
