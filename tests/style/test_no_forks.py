"""The daemon has threads, so a fork of it can inherit a locked lock. Every file that may fork is named here."""

from __future__ import annotations

import ast
from pathlib import Path

import paddock

ROOT = Path(paddock.__file__).parent
ROOMS = ("audit", "backends", "daemon", "linux", "model", "policy", "storage", "wire")
FORKS = {
    "daemon/main/_process.py": "leaves its parent before it has a loop or a thread",
    "linux/children.py": "forks for the processes in this list, and those of the supervisor and the gateway",
    "linux/descriptors.py": "enters namespaces for the supervisor, which has one thread",
    "linux/subordinate_ids.py": "makes the user namespace, for the supervisor and the worker, which have one thread",
    "storage/pool/_jobs.py": "a program of its own, which the daemon executes",
    "storage/git/_confined.py": "a program of its own, which the daemon executes",
}
_CALLS = {"fork", "forkpty", "detach", "user_namespace", "id_mapping_namespace"}


def _forks(source: str) -> bool:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import) and any(name.name.startswith("multiprocessing") for name in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("multiprocessing"):
            return True
        if isinstance(node, ast.keyword) and node.arg == "preexec_fn":
            return True
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in ("os", "namespaces", "children")
            and node.attr in _CALLS
        ):
            return True
    return False


def test_nothing_else_in_the_daemon_forks() -> None:
    files = (path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    found = {str(path.relative_to(ROOT)) for path in files if _forks(path.read_text())}
    assert found == set(FORKS)
