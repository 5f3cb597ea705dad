"""The template `code-interpreter`: `host` with pytest on its Python, usable without a network.

paddock copies pytest and its dependencies from its own environment, which has them for this purpose.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path, PurePosixPath

from paddock.errors import NotConfiguredError, UnsupportedError
from paddock.storage.templates import _host
from paddock.storage.templates.recipe import ENV, FOLDER, Entry, Recipe, put, writes

_VERSION = "1"
_OLDEST = 11  # for an older Python pytest needs more than these
_DISTRIBUTIONS = ("iniconfig", "packaging", "pluggy", "pygments", "pytest")
_SCRIPT = b"""#!/usr/bin/python3
import sys

from pytest import console_main

sys.exit(console_main())
"""


def recipe(machine: Path) -> Recipe:
    """Return the recipe.

    Raises NotConfiguredError without python3, git or pytest, with the command in its hint. Raises UnsupportedError for
    an old Python.
    """
    for tool in ("python3", "git"):
        if not os.path.lexists(machine / "usr/bin" / tool):
            raise NotConfiguredError(f"/usr/bin/{tool} is not installed", hint=f"apt-get install {tool}")
    version, packages = _host.python_version(machine), _host.python_packages(machine)
    if version is None or packages is None:
        raise UnsupportedError(
            "/usr/bin/python3 of this machine is not a link to a python3.X", hint="use the template debian"
        )
    if version < _OLDEST:
        raise UnsupportedError(
            f"/usr/bin/python3 of this machine is 3.{version}; the template needs 3.{_OLDEST}",
            hint="use the template debian",
        )
    distributions = [_distribution(name) for name in _DISTRIBUTIONS]
    # The names and digests in RECORD identify the files, so the recipe needn't read them.
    facts = [_VERSION, packages, *(f"{d.name} {d.version} {d.read_text('RECORD')}" for d in distributions)]

    fill = writes(lambda: _manifest(packages, distributions))
    env = dict(ENV)
    if packages.endswith("site-packages"):
        env["PYTHONPATH"] = packages
    return Recipe(name="code-interpreter", facts=tuple(facts), fill=fill, below=_host.recipe(machine), env=env)


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        distribution = None
    if distribution is None or distribution.read_text("RECORD") is None:
        raise NotConfiguredError(
            f"the Python that runs paddock has no {name} to copy into the template",
            hint="python3 -m pip install --force-reinstall pytest",
        )
    return distribution


def _manifest(packages: str, distributions: list[importlib.metadata.Distribution]) -> dict[str, Entry]:
    files: dict[str, Entry] = {".": FOLDER}
    top = PurePosixPath(packages.removeprefix("/"))
    for distribution in distributions:
        for path in distribution.files or ():
            if ".." in path.parts or path.is_absolute() or "__pycache__" in path.parts:
                continue  # scripts, which are for another interpreter, and its byte code
            if path.suffix == ".so":
                raise UnsupportedError(
                    f"{distribution.name} holds {path}: not pure Python", hint="pip install it from source"
                )
            content = Path(str(distribution.locate_file(path))).read_bytes()
            put(files, str(top / path), Entry("file", 0o644, content))
    put(files, "usr/local/bin/pytest", Entry("file", 0o755, _SCRIPT))
    return files
