"""What the pages say holds: links lead somewhere, examples are Python that runs, every public name is explained."""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import paddock
from paddock.cli._verbs import VERBS
from paddock.errors import BY_CODE
from paddock.model.config import Config
from tests.conftest import SandboxFactory

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUN = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "howto").glob("*.md"))]
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
_INSTALLS_PADDOCK = re.compile(
    r"(?:pip install|uv add)[^\n]*[\s'\"`]paddock(?:\[|['\"`]?\s*$|==|>=)|paddock\[", re.MULTILINE
)
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"# ([\w.-]+\.(?:patch|py|toml|yaml))\n")
_ANYTHING = "…"
"""In the output of an example: any text, such as an id or a time."""


class Example(NamedTuple):
    """`output` is None if the page doesn't show any."""

    page: Path
    number: int
    code: str
    output: str | None


def examples(*pages: Path) -> list[Example]:
    """Return the Python of the pages. A block without a language right behind it is the output."""
    found: list[Example] = []
    for page in pages:
        blocks = list(_BLOCK.finditer(page.read_text()))
        for number, block in enumerate((one for one in blocks if one[1] == "python"), 1):
            behind = next((one for one in blocks if one.start() > block.start()), None)
            shown = behind is not None and not behind[1] and behind.start() - block.end() <= 2
            found.append(Example(page, number, block[2], behind[2] if shown and behind else None))
    return found


def sessions(page: Path) -> list[tuple[str, str]]:
    """Return the commands of a page's `console` blocks, each with the output that the page shows."""
    found: list[tuple[str, str]] = []
    for language, text in _BLOCK.findall(page.read_text()):
        if language == "console":
            pieces = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
            found += [(command, output) for command, _, output in (piece.partition("\n") for piece in pieces)]
    return found


def agree(shown: str, printed: str) -> bool:
    pattern = ".*?".join(re.escape(part.strip()) for part in shown.strip().split(_ANYTHING))
    pattern = re.sub(r"(?:\\\s)+|\s+", r"\\s+", pattern)
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def name(value: Example | Path) -> str:
    return f"{value.page.name}-{value.number}" if isinstance(value, Example) else str(value.relative_to(ROOT))


@pytest.mark.pure
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    missing = [target for target in _LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert missing == []


@pytest.mark.pure
@pytest.mark.parametrize("page", ["features.md", "rooms.md"])
def test_every_path_that_leads_from_a_feature_or_walk_to_the_code_exists(page: str) -> None:
    text = (ROOT / "docs" / "design" / page).read_text()
    paths = set(re.findall(r"`([\w.]+/[\w./]+)`", text))
    assert len(paths) > 30
    roots = (ROOT, ROOT / "src" / "paddock")
    assert [path for path in sorted(paths) if not any((root / path).exists() for root in roots)] == []


@pytest.mark.pure
def test_no_walk_names_a_file_twice() -> None:
    walks = (ROOT / "docs" / "design" / "rooms.md").read_text().split("\n## ")[2:]
    files = [re.findall(r"^\| `([\w.]+/[\w./]+)` \|", walk, re.MULTILINE) for walk in walks]
    assert len(files) == 3
    assert all(len(walk) > 5 and len(walk) == len(set(walk)) for walk in files)


@pytest.mark.pure
def test_nothing_tells_a_reader_to_install_the_package_of_that_name_which_is_not_ours() -> None:
    found = {file: _INSTALLS_PADDOCK.findall(file.read_text()) for file in (*PAGES, *(ROOT / "src").rglob("*.py"))}
    assert {file: told for file, told in found.items() if told} == {}


@pytest.mark.pure
@pytest.mark.parametrize("example", examples(*PAGES), ids=name)
def test_every_example_is_python(example: Example) -> None:
    flags = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    compile(example.code, f"{example.page}:{example.number}", "exec", flags)


@pytest.mark.parametrize("example", examples(*RUN), ids=name)
def test_the_examples_of_readme_and_pages_print_what_is_shown(example: Example, sandbox: SandboxFactory) -> None:
    sandbox()  # skips with the reason where no sandbox can be had; its state directory is the example's
    code = compile(example.code, f"{example.page}:{example.number}", "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {"__name__": "example"})
    assert example.output is None or agree(example.output, printed.getvalue()), printed.getvalue()


@pytest.mark.root  # whose limits all hold
@pytest.mark.parametrize("page", [page for page in RUN if sessions(page)], ids=name)
def test_the_commands_of_a_page_print_what_is_shown(page: Path, sandbox: SandboxFactory, tmp_path: Path) -> None:
    sandbox().kill()  # skips with the reason where no sandbox can be had
    for _, text in _BLOCK.findall(page.read_text()):
        if named := _NAMED.match(text):
            (tmp_path / named[1]).write_text(text)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    try:
        for command, shown in sessions(page):
            run = subprocess.run(
                ["bash", "-c", command],
                cwd=tmp_path,
                env=os.environ | {"PATH": path, "COLUMNS": "200"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=120,
                check=False,
            )
            assert agree(shown, run.stdout), (command, run.stdout)
    finally:
        for left in paddock.Sandbox.list():
            paddock.Sandbox.connect(left.id).kill()


@pytest.mark.pure
def test_every_error_code_has_a_section_with_what_to_do() -> None:
    text = (ROOT / "docs" / "errors.md").read_text()
    sections = dict(re.findall(r"^### `(\w+)`\n(.*?)(?=^###? |\Z)", text, re.MULTILINE | re.DOTALL))
    assert sections.keys() == {*BY_CODE, paddock.PaddockError.code}
    assert [code for code, section in sections.items() if "**Do:**" not in section] == []


@pytest.mark.pure
def test_every_key_and_variable_is_in_the_configuration_reference() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "native").glob("*.[ch]")]
    variables = {found for file in sources for found in re.findall(r'"(PADDOCK_[A-Z_]+)"', file.read_text())}
    assert variables
    assert [key for key in Config.__struct_fields__ if f"| `{key}` |" not in text] == []
    assert [variable for variable in sorted(variables - _FOR_TESTS) if f"`{variable}`" not in text] == []


_FOR_TESTS = {"PADDOCK_BENCH_CANARY", "PADDOCK_EVAL_CANARY"}
"""Bait that the attacks of `paddock bench` and `paddock eval` look for."""


@pytest.mark.pure
def test_every_verb_is_on_the_page_of_the_command_line() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    assert [verb for verb in VERBS if not re.search(rf"^paddock (\w+ \| )?{verb}\b", text, re.MULTILINE)] == []


@pytest.mark.pure
def test_every_argument_of_create_is_on_the_page_of_the_sdk() -> None:
    text = (ROOT / "docs" / "sdk.md").read_text()
    named = inspect.signature(paddock.Sandbox.create).parameters.values()
    assert [one.name for one in named if one.kind is not one.VAR_KEYWORD and f"`{one.name}`" not in text] == []


@pytest.mark.pure
def test_every_public_name_is_explained() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert [public for public in dir(paddock) if not re.search(rf"`[^`\n]*\b{public}\b", text)] == []


@pytest.mark.pure
def test_every_decision_has_its_context_choice_and_consequences() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text()
        assert all(f"## {part}" in text for part in ("Context", "Choice", "Consequences")), page.name
