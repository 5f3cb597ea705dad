"""The guest with AddressSanitizer and UBSan keeps the promises of the levels `process` and `jail`.

The program is linked with glibc. The spawner executes it in the supervisor's own namespaces, where the libraries are.
Jails are clones of the spawner, so nothing is loaded inside."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

from paddock.backends.guest import _program
from paddock.backends.jail import JailBackend
from tests.conformance import BackendConformance, Bench, ExecConformance
from tests.contract.test_jail_backend import JailHarness, jails
from tests.contract.test_process_backend import ProcessHarness
from tests.native.driver import build_module

__all__ = ["jails"]


@pytest.fixture(scope="module", autouse=True)
def sanitized() -> Generator[Path]:
    program = build_module().build(sanitize=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_program, "shipped", lambda: program)
        patch.setenv("ASAN_OPTIONS", "detect_leaks=0")
        yield program


class _InProcess(Bench):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> ProcessHarness:
        return ProcessHarness(tmp_path)


class _InAJail(Bench):
    @pytest.fixture
    def harness(self, sanitized: Path, jails: JailHarness) -> JailHarness:
        reason = JailBackend(jails.state_dir).probe()
        if reason is not None:
            pytest.skip(f"no jail here: {reason}")
        return jails


class TestJailSample(_InAJail, ExecConformance):
    """What each run of the tests takes; the rest is slow."""


@pytest.mark.slow
class TestProcess(_InProcess, BackendConformance):
    """Every promise, at level `process`."""


@pytest.mark.slow
class TestJail(_InAJail, BackendConformance):
    """Every promise, at level `jail`."""
