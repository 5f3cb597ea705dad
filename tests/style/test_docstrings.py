"""Every public name says what it takes, returns and raises, and has an example, which runs.

Public is all that `docs/reference` shows of classes and functions. Properties need one sentence. Enumerations and
exceptions need no sections.
"""

from __future__ import annotations

import ast
import asyncio
import builtins
import contextlib
import io
import re
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import paddock
import paddock.agents
import paddock.errors
import paddock.model
from paddock.model import OpenPullRequest, PullRequest
from tests.style.test_docs import agree
from tools import reference
from tools.unasync import NAMES

MADE_BY_METHODS = {"Checkout"}
"""Classes of `paddock.agents` that callers don't make by their name. Those of the client are all of this kind."""
POLICY = {"commands": {"approve": [{"prefix": ["git", "push"]}], "unclear": "allow"}}
ECHO = """
import contextlib, socket
with socket.create_server(("127.0.0.1", 8000)) as server:
    print("ready", flush=True)
    while True:
        peer, _ = server.accept()
        with peer, contextlib.suppress(OSError):
            while data := peer.recv(1000):
                peer.sendall(data)
"""
_FENCE = re.compile(r"```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)
_SECONDS = re.compile(r"\bseconds\b", re.IGNORECASE)


class Name(NamedTuple):
    """A public name of one side. `asynchronous` examples have `await` at their top level."""

    name: str
    file: str
    node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    asynchronous: bool

    @property
    def sections(self) -> dict[str, str]:
        return reference.sections(ast.get_docstring(self.node) or "")

    def items(self, section: str) -> set[str]:
        """Return the arguments or errors that a section is about."""
        return set(reference.ITEM.findall(self.sections.get(section, "")))

    @property
    def code(self) -> str:
        return "".join(_FENCE.findall(self.sections.get("Example", "")))


def public() -> list[Name]:
    """Return the names of both sides, the asynchronous one's as they are written."""
    found: list[Name] = []
    for page in reference.PAGES.values():
        found += [Name(*entry, asynchronous=False) for entry in reference.entries(page)]
        sources = {
            file.replace("/_sync/", "/_async/"): names for file, names in page.names.items() if "/_sync/" in file
        }
        twins = {
            file: tuple(one for one in reference.definitions_of(file) if NAMES.get(one, one) in names)
            for file, names in sources.items()
        }
        modules = {name: file.replace("/_sync/", "/_async/") for name, file in page.modules.items()}
        awaited = page._replace(names=twins, modules=modules)
        found += [Name(*entry, asynchronous=True) for entry in reference.entries(awaited)]
    return found


PUBLIC = public()


def is_plain(one: Name) -> bool:
    """Tell whether one sentence is enough: of a property, an enumeration or an exception."""
    if isinstance(one.node, ast.ClassDef):
        return any(ast.unparse(base) in ("StrEnum", "IntEnum") for base in one.node.bases)
    return any(ast.unparse(decorator) == "property" for decorator in one.node.decorator_list)


def parameters(one: Name) -> dict[str, str]:
    """Return the parameters that a caller gives, with their annotations."""
    node = one.node
    if isinstance(node, ast.ClassDef):
        made_here = "agents/" in one.file and node.name.removeprefix("Async") not in MADE_BY_METHODS
        node = constructor(node, one.file) if made_here else None
    if node is None:
        return {}
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    every += [one for one in (node.args.vararg, node.args.kwarg) if one is not None and one.arg != "old"]
    return {one.arg: ast.unparse(one.annotation) if one.annotation else "" for one in every}


def constructor(node: ast.ClassDef, file: str) -> ast.FunctionDef | None:
    """Return the `__init__` of a class, or of its base in the same file."""
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            return item
    bases = [reference.definitions_of(file).get(ast.unparse(base)) for base in node.bases]
    return next((constructor(base, file) for base in bases if isinstance(base, ast.ClassDef)), None)


def faults(one: Name) -> list[str]:
    """Return what is missing in a docstring."""
    sections = one.sections
    if not sections[""]:
        return ["no docstring"]
    if is_plain(one):
        return []
    found = [] if one.code else ["no Example"]
    given = {name: kind for name, kind in parameters(one).items() if name not in ("self", "cls")}
    if lacking := given.keys() ^ one.items("Args"):
        found.append(f"Args: {sorted(lacking)}")
    text = sections.get("Args", "")
    for name, kind in given.items():
        told = re.search(rf"^{name}: (.*(?:\n +.*)*)", text, re.MULTILINE)
        if "Duration" in kind and told and not _SECONDS.search(told[1]):
            found.append(f"Args: {name} doesn't say seconds")
    if isinstance(one.node, ast.ClassDef):
        return found
    returns = ast.unparse(one.node.returns) if one.node.returns else "None"
    if (returns == "None") == ("Returns" in sections):
        found.append("Returns")
    names = one.items("Raises")
    unknown = {name for name in names if not hasattr(paddock.errors, name) and not hasattr(builtins, name)}
    raised = {name for name in raised_by(one.node) if name not in names}
    if unknown or raised or (asks(one.node) and not names):
        found.append(f"Raises: {sorted(unknown | raised) or 'nothing, but it asks the daemon'}")
    return found


def raised_by(node: ast.AST) -> set[str]:
    """Return the errors of paddock that stand behind a `raise`, but the one for its defects."""
    calls = (one.exc.func for one in ast.walk(node) if isinstance(one, ast.Raise) and isinstance(one.exc, ast.Call))
    return {name for name in map(ast.unparse, calls) if hasattr(paddock.errors, name)} - {"InternalError"}


def asks(node: ast.AST) -> bool:
    """Tell whether a function asks the daemon for something, which may refuse."""
    return any(isinstance(one, ast.Attribute) and one.attr == "perform" for one in ast.walk(node))


@pytest.mark.pure
def test_every_public_name_says_what_it_takes_returns_and_raises_and_has_an_example() -> None:
    found = {f"{one.file}: {one.name}": faults(one) for one in PUBLIC}
    assert {name: missing for name, missing in found.items() if missing} == {}


@pytest.mark.pure
@pytest.mark.parametrize(
    ("source", "missing"),
    [
        ("def f(): ...", ["no docstring"]),
        ("@property\ndef f(self) -> int:\n    'Count.'", []),
        ("def f(self, a: int):\n    'Do.'", ["no Example", "Args: ['a']"]),
        ("def f(self) -> int:\n    'Do.'", ["no Example", "Returns"]),
        ("def f(self):\n    'Do.'\n    raise NotFoundError('a')", ["no Example", "Raises: ['NotFoundError']"]),
        ("def f(self):\n    'Do.'\n    t.perform(a)", ["no Example", "Raises: nothing, but it asks the daemon"]),
    ],
)
def test_a_missing_section_is_found(source: str, missing: list[str]) -> None:
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.FunctionDef)
    assert faults(Name("f", "client/f.py", node, asynchronous=False)) == missing


class Forge:
    """A transport that opens pull requests without a forge."""

    def __init__(self, transport: Any, asynchronous: bool) -> None:
        self._transport, self._asynchronous = transport, asynchronous

    def perform(self, action: Any) -> Any:
        if not isinstance(action, OpenPullRequest):
            return self._transport.perform(action)
        made = PullRequest(number=7, url="https://forge.test/7", title=action.title, branch="fix", base="main")
        return _later(made) if self._asynchronous else made


async def _later(value: object) -> object:
    return value


class Scene:
    """What the names of examples mean, on one side."""

    def __init__(self, name: str, url: str, asynchronous: bool) -> None:
        self._runner = asyncio.Runner()
        self._kept = paddock.Sandbox.create(policy=POLICY), paddock.Sandbox.create()
        sandbox, base = self._kept
        next(sandbox.start(["python3", "-c", ECHO], background=True).stdout.lines())
        base.files.write("task.py", "def double(x):\n    return x\n")
        self._workspace = paddock.Workspace.open(name, url=url)
        self._names: dict[str, Any] = {name: getattr(paddock.model, name) for name in paddock.model.HOMES}
        self._names |= vars(paddock.errors) | vars(paddock.agents)
        self._names |= {name: getattr(paddock, name) for name in dir(paddock)} | {"url": url}
        self._names |= self._runner.run(self._asynchronous()) if asynchronous else self._synchronous()

    def _synchronous(self) -> dict[str, Any]:
        forge: Any = Forge(paddock.local(), asynchronous=False)
        return {
            "sandbox": self._kept[0],
            "workspace": paddock.Workspace(self._workspace.info, forge),
            "checkout": paddock.agents.Checkout.of(self._kept[1]),
            "model": paddock.agents.ScriptModel(_replies()),
        }

    async def _asynchronous(self) -> dict[str, Any]:
        sandbox, base = [await paddock.AsyncSandbox.connect(one.id) for one in self._kept]
        forge: Any = Forge(paddock.local_async(), asynchronous=True)
        return {
            "sandbox": sandbox,
            "workspace": paddock.AsyncWorkspace(self._workspace.info, forge),
            "checkout": await paddock.agents.AsyncCheckout.of(base),
            "model": paddock.agents.AsyncScriptModel(_replies()),
        }

    def run(self, one: Name) -> None:
        """Run an example, and compare what it prints with the comments behind `print`."""
        allow_await = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(one.code, one.name, "exec", allow_await if one.asynchronous else 0)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            left = eval(code, dict(self._names))
            if left is not None:
                self._runner.run(left)
        if shown := _PRINTED.findall(one.code):
            assert agree("\n".join(shown), printed.getvalue()), printed.getvalue()

    @property
    def ids(self) -> set[str]:
        return {self._workspace.id, *(one.id for one in self._kept)}

    def close(self) -> None:
        for one in self._kept:
            one.kill()
        self._workspace.delete(discard=True)
        self._runner.close()


def tidy(kept: set[str]) -> None:
    """Remove what an example has left."""
    for sandbox in paddock.Sandbox.list():
        if sandbox.id not in kept:
            sandbox.kill()
    for snapshot in paddock.Snapshot.list():
        snapshot.delete()
    for workspace in paddock.Workspace.list():
        if workspace.id not in kept:
            workspace.delete(discard=True)
    for secret in paddock.secrets.list():
        paddock.secrets.remove(secret.name)


def _replies() -> list[paddock.agents.Reply]:
    message = paddock.agents.Message(role=paddock.agents.Role.ASSISTANT, text="It is done.")
    return [paddock.agents.Reply(message=message, tokens=paddock.agents.Tokens(input=10, output=5))]


def repository(here: Path) -> str:
    """Make a repository, and return its URL."""
    here.chmod(0o755)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in ("init -q -b main app", "-C app commit -q --allow-empty -m first", "-C app branch fix"):
        subprocess.run([*git, *words.split()], cwd=here, check=True)
    return f"file://{here}/app"


@pytest.fixture(scope="module")
def scenes(shared_state: object, tmp_path_factory: pytest.TempPathFactory) -> Generator[dict[bool, Scene]]:
    """The scene of each side, by whether it is asynchronous."""
    url = repository(tmp_path_factory.mktemp("examples"))
    try:
        made = {side: Scene(f"T{side:d}", url, side) for side in (False, True)}
    except paddock.errors.LevelUnavailableError as error:
        pytest.skip(str(error))
    yield made
    for one in made.values():
        one.close()


@pytest.mark.parametrize("one", [one for one in PUBLIC if one.code], ids=lambda one: f"{one.file}-{one.name}")
def test_an_example_runs_and_prints_what_it_shows(
    one: Name, scenes: dict[bool, Scene], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "README.md").write_text("# A project\n")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "Dockerfile").write_text("FROM host\nRUN true\n")
    (tmp_path / "script.json").write_text('[{"text": "done"}]')
    monkeypatch.chdir(tmp_path)
    try:
        scenes[one.asynchronous].run(one)
    finally:
        tidy({id for scene in scenes.values() for id in scene.ids})
