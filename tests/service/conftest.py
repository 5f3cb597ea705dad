"""Coroutine tests run in a loop of their own; `rig` is ended inside that loop."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path

import pytest
from service_world import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "state")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def main() -> None:
        try:
            await function(**arguments)
        finally:
            for value in arguments.values():
                if isinstance(value, Rig):
                    await value.aclose()

    asyncio.run(main())
    return True
