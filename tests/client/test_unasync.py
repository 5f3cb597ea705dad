"""The generator of the synchronous client."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("unasync", ROOT / "tools" / "unasync.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


unasync = load()
NAMES = {"AsyncThing": "Thing", "aclose": "close", "box.model.streams": "box.sync.streams", "__aenter__": "__enter__"}


def convert(source: str) -> str:
    return unasync.Converter(NAMES).convert(source, "file.py")


def test_the_generated_client_is_what_the_sources_say() -> None:
    assert unasync.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("async def f():\n    await g()\n", "def f():\n    g()\n"),
        ("async  with a as b:  # why\n    pass\n", "with a as b:  # why\n    pass\n"),
        ("x = (await f()).y\n", "x = (f()).y\n"),
        ("x = (await\n     f())\n", "x = (\n     f())\n"),
        ("box.model.streams.Reader.aclose\n", "box.sync.streams.Reader.close\n"),
        ("import box.model\nbox.model.AsyncThing\n", "import box.model\nbox.model.Thing\n"),
        ("# AsyncThing keeps its async soul\n", "# Thing keeps its async soul\n"),
        ('"""\nasync with AsyncThing() as t:\n    await t.aclose()\nawaiting async things\n"""\n',
         '"""\nwith Thing() as t:\n    t.close()\nawaiting async things\n"""\n'),
        ("x = 'plain \\\n   text'\n", "x = 'plain \\\n   text'\n"),
        ("f'{x!r:>{w}} {f\"{y}\"}'\r\n", "f'{x!r:>{w}} {f\"{y}\"}'\r\n"),
        ("é = 'ü'; await é\n", "é = 'ü'; é\n"),
    ],
)  # fmt: skip
def test_colour_goes_and_layout_stays(source: str, expected: str) -> None:
    assert convert(source) == expected


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\n",
        "x = AsyncOther\n",
        "def __aexit__(): ...\n",
        "x = 'AsyncThing'\n",
        "x = f'{AsyncThing}'\n",
    ],
)
def test_what_would_survive_is_an_error_with_its_line(source: str) -> None:
    with pytest.raises(unasync.ConversionError, match=r"^file\.py:1: "):
        convert(source)


def test_names_of_no_use_are_reported() -> None:
    converter = unasync.Converter(NAMES)
    converter.convert("AsyncThing\n", "file.py")
    assert converter.unused() == ["__aenter__", "aclose", "box.model.streams"]


_statements = st.sampled_from(
    [
        "x = 1  # AsyncThing\n",
        "async def f():\n    async with a as b, c:\n\n        await b  # why\n    return [await i async for i in b]\n",
        'def g(a, *, b=2):\n    """text: await it"""\n\n\n    return (a,\n      b)\n',
        "y = (\n    1,\n\n    # lonely\n    2,\n)\n",
        "z = f'{x}{{}}' 'more' '''three\n lines'''\n",
        "if x:\n\tpass\n",
        "\n",
    ]
)


@given(st.lists(_statements).map("".join))
def test_the_result_parses_has_every_line_and_nothing_asynchronous(source: str) -> None:
    result = convert(source)
    assert result.count("\n") == source.count("\n")
    colours = (ast.AsyncFunctionDef, ast.AsyncFor, ast.AsyncWith, ast.Await)
    nodes = list(ast.walk(ast.parse(result)))
    assert not any(isinstance(node, colours) for node in nodes)
    assert not any(node.is_async for node in nodes if isinstance(node, ast.comprehension))
    assert convert(result) == result


@given(st.lists(_statements.filter(lambda text: "async" not in text and "Async" not in text and '"""' not in text)))
def test_what_has_no_colour_is_untouched(parts: list[str]) -> None:
    source = "".join(parts)
    assert convert(source) == source


def a_project(root: Path) -> Path:
    (root / "client" / "_async").mkdir(parents=True)
    (root / "client" / "_async" / "streams.py").write_text('"""s"""\n')
    every_name = "".join(f"{name}\n" for name in unasync.NAMES)
    (root / "client" / "_async" / "a.py").write_text(every_name)
    assert unasync.main([], root) == 0
    assert unasync.main(["--check"], root) == 0
    return root / "client" / "_sync"


def truncate(target: Path) -> None:
    path = target / "a.py"
    path.write_bytes(path.read_bytes()[:-5])


def append(target: Path) -> None:
    with (target / "a.py").open("a") as file:
        file.write("# junk\n")


def remove(target: Path) -> None:
    (target / "streams.py").unlink()


def add(target: Path) -> None:
    (target / "b.py").write_text("")


def other_line_ends(target: Path) -> None:
    path = target / "a.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


@pytest.mark.parametrize("harm", [truncate, append, remove, add, other_line_ends])
def test_every_difference_between_the_sets_is_found_and_mended(tmp_path: Path, harm: Callable[[Path], None]) -> None:
    target = a_project(tmp_path)
    harm(target)
    assert unasync.main(["--check"], tmp_path) == 1
    assert unasync.main([], tmp_path) == 0
    assert unasync.main(["--check"], tmp_path) == 0


def test_an_unused_name_fails_the_run(tmp_path: Path) -> None:
    a_project(tmp_path)
    (tmp_path / "client" / "_async" / "a.py").write_text("x = 1\n")
    assert unasync.main([], tmp_path) == 1
