"""What the pages say holds: links lead somewhere, examples are Python that runs, every public name is explained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import paddock
from tests.conftest import SandboxFactory

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
RUN = [ROOT / "README.md", ROOT / "docs" / "tutorial.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)]*)?\)")
_INSTALLS_PADDOCK = re.compile(
    r"(?:pip install|uv add)[^\n]*[\s'\"`]paddock(?:\[|['\"`]?\s*$|==|>=)|paddock\[", re.MULTILINE
)
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Example(NamedTuple):
    page: Path
    number: int
    code: str


def examples(*pages: Path) -> list[Example]:
    return [Example(page, n, code) for page in pages for n, code in enumerate(_BLOCK.findall(page.read_text()), 1)]


def name(value: Example | Path) -> str:
    return f"{value.page.name}-{value.number}" if isinstance(value, Example) else str(value.relative_to(ROOT))


@pytest.mark.pure
@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    missing = [target for target in _LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert missing == []


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
def test_the_examples_of_readme_tutorial_and_guides_run(example: Example, sandbox: SandboxFactory) -> None:
    sandbox()  # skips with the reason where no sandbox can be had; its state directory is the example's
    exec(compile(example.code, f"{example.page}:{example.number}", "exec"), {"__name__": "example"})


@pytest.mark.pure
def test_every_public_name_is_explained() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    assert [public for public in paddock.__all__ if not re.search(rf"`[^`\n]*\b{public}\b", text)] == []


@pytest.mark.pure
def test_every_decision_has_its_context_choice_and_consequences() -> None:
    pages = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        text = page.read_text()
        assert all(f"## {part}" in text for part in ("Context", "Choice", "Consequences")), page.name
