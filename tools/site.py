"""What `make site` adds to MkDocs: the pages that lie above `docs/`, a Markdown twin of each page, and llms.txt."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, cast

ROOT = Path(__file__).resolve().parent.parent
ABOVE = {name: f"{name.lower()}" for name in ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHARTER.md")}
LINK = re.compile(r"(!?\[[^\]]*\])\(([^)#\s]+)((?:#[^)\s]*)?)\)")
_pages: dict[str, tuple[str, str]] = {}


def on_config(config: Any) -> Any:
    """List the pages of folders that the navigation names as a whole."""
    config.nav = [_listed(entry) for entry in config.nav]
    return config


def _listed(entry: Any) -> Any:
    match entry:
        case dict():
            return {name: _listed(inner) for name, inner in cast("dict[str, Any]", entry).items()}
        case list():
            return [_listed(one) for one in cast("list[Any]", entry)]
        case str() if entry.endswith("/"):
            return [f"{entry}{path.name}" for path in sorted((ROOT / "docs" / entry).glob("*.md"))]
        case _:
            return entry


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie above `docs/`."""
    generated: Any = import_module("mkdocs.structure.files").File.generated  # MkDocs isn't in .venv

    for name, target in ABOVE.items():
        files.append(generated(config, target, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links into the repository to links within the site; a file that isn't a page stays as text."""
    source = page.file.src_uri
    above = {target: name for name, target in ABOVE.items()}
    here = posixpath.dirname(f"docs/{source}") if source not in above else ""

    def resolved(found: re.Match[str]) -> str:
        text, target, anchor = found.groups()
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        path = posixpath.normpath(posixpath.join(here, target))
        if path in ABOVE:
            path = f"docs/{ABOVE[path]}"
        inside = path.removeprefix("docs/")
        if path.startswith("docs/") and (inside in above or (ROOT / path).is_file()):
            start = posixpath.dirname(source) or "."
            return f"{text}({posixpath.relpath(inside, start)}{anchor})"
        return f"`{path}`" if (ROOT / path).exists() else found[0]

    text = LINK.sub(resolved, markdown)
    title = next((line.lstrip("# ") for line in text.splitlines() if line.startswith("# ")), source)
    _pages[source] = (title, text)
    return text


def on_post_build(config: Any) -> None:
    """Write each page's Markdown beside its HTML, and an index of them for programs that read."""
    site = Path(config.site_dir)
    for source, (_title, text) in _pages.items():
        twin = site / source
        twin.parent.mkdir(parents=True, exist_ok=True)
        twin.write_text(text)
    (site / "llms.txt").write_text("\n".join(_index(config)) + "\n")


def _index(config: Any) -> Iterator[str]:
    """Yield the lines of llms.txt: the pages in the order of the navigation (https://llmstxt.org)."""
    yield f"# {config.site_name}\n\n> {config.site_description}"
    for section in config.nav:
        for title, pages in section.items():
            yield f"\n## {title}\n"
            yield from (f"- [{_pages[source][0]}]({source})" for source in _sources(pages))


def _sources(pages: list[Any]) -> Iterator[str]:
    for page in pages:
        if isinstance(page, str):
            yield page
        else:
            for inner in page.values():
                yield from _sources(inner)
