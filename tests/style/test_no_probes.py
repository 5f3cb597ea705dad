"""Whether a process lives is told by its pidfd, or by a lock that it holds: a signal 0 says EPERM of a stranger's."""

from __future__ import annotations

import ast
from pathlib import Path

import paddock

ROOT = Path(paddock.__file__).parent
_SIGNALS = {"kill", "killpg", "pidfd_send_signal", "send_signal"}


def _probes(source: str) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in _SIGNALS
        and any(
            isinstance(argument, ast.Constant) and argument.value is not False and argument.value == 0
            for argument in (*node.args[1:], *(keyword.value for keyword in node.keywords))
        )
        for node in ast.walk(ast.parse(source))
    )


def test_no_code_asks_by_a_signal_whether_a_process_lives() -> None:
    assert _probes("os.kill(pid, 0)")
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if _probes(path.read_text())}
    assert found == set()
