"""Ways out for a sandbox that was made without any, while it runs.

What runs there may have taken the ports of the gateway's meanwhile: then there are none to be had. It has no power over
its network or its mounts, so that nothing else is different from those that were made with it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from paddock.keeper import _exits, _trust_places
from paddock.keeper._door import Door, visit
from paddock.keeper._errors import JailError, died_of

if TYPE_CHECKING:
    from paddock.keeper._house import House
    from paddock.keeper._jail import Jail
    from paddock.keeper._spare import Spare


class Way(NamedTuple):
    """Descriptors of namespaces of a sandbox, which an ordinary user's keeper can't open later."""

    network: int
    mounts: int

    @classmethod
    def of(cls, spare: Spare) -> Way | None:
        """Of one that was just fitted out; None: they can be opened whenever they are needed."""
        return None if spare.network is None else cls(os.dup(spare.network), os.dup(spare.door.mounts))

    @classmethod
    def to(cls, jail: Jail) -> Way:
        network = _exits.open_network(jail.pid)
        try:
            return cls(network, os.open(f"/proc/{jail.pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
        except BaseException:
            os.close(network)
            raise

    def close(self) -> None:
        os.close(self.network)
        os.close(self.mounts)


def opened(house: House, jail: Jail, reopen: Callable[[], None]) -> bool:
    """Gives it exits if it was made without, and has them opened again if they are lost. False: it has died meanwhile.
    OSError, JailError."""
    try:
        if not jail.record.exits:
            give(house, jail)
        if jail.exits is None:
            reopen()
    except (OSError, JailError) as error:
        if not died_of(error, jail.pidfd):
            raise
        return False
    return True


def give(house: House, jail: Jail) -> None:
    """Exits, and the certificates that go with them; its record says so. OSError, JailError."""
    if not house.root_mode and jail.way is None:
        raise JailError("the keeper that could give it a network is dead, and an ordinary user's next one can't")
    way = jail.way or Way.to(jail)
    try:
        _trust(house, jail.record.id, way)
        exits = _exits.make(way.network, may_return=house.root_mode)
    finally:
        if way is not jail.way:
            way.close()
    jail.exits = exits
    jail.record.exits = jail.record.late = True
    house.records.write(jail.record)
    jail.close_way()


def _trust(house: House, id: str, way: Way) -> None:
    held: list[int] = []
    try:
        try:
            made = _trust_places.make(house, id, held)
        except FileExistsError:
            return  # an attempt before has come so far
        with visit(Door(way.mounts, house.home.names), house.home):
            os.chdir("/")
            _trust_places.attach(made)
    finally:
        for mount in held:
            os.close(mount)
