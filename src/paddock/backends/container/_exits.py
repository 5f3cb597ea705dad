"""The ways out of a container that runs: found again, or made where it had none."""

from __future__ import annotations

import os

from paddock.backends._base import Exits
from paddock.errors import PlatformError, Unsupported
from paddock.linux import pidfd

from ._life import Life
from ._records import BIRTH, Record, Records
from ._ways import show_trust


async def exits(records: Records, record: Record, life: Life, *, make: bool) -> Exits | None:
    """Of whoever has its lock. None: an earlier service's gateway has them. PlatformError, Unsupported,
    ProcessLookupError."""
    if not record.exits:
        if not make:
            raise Unsupported(f"sandbox {record.id} was made without a way out", hint="give it a policy")
        show_trust(records.place(record.id) / BIRTH)
    there = await life.ways.make(record.pid, (), again=record.exits)
    if not record.exits:
        if not there:
            raise PlatformError("a program inside listens at a port that the gateway needs", hint="end it")
        records.change(record.id, record.incarnation, exits=True, late=True)
    life.late = record.late or not record.exits
    if not there:
        return None
    process = pidfd.open(record.pid)
    if not record.lives():  # that was another process's by now
        os.close(process)
        raise ProcessLookupError
    return life.ways.copies(process, (record.pid, record.start))
