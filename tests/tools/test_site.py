"""What `make site` adds: a Markdown twin of each page, and llms.txt in the order of the navigation."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tools import site

pytestmark = pytest.mark.pure


def test_each_page_has_a_markdown_twin_and_llms_txt_lists_them_by_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "_pages", {})
    config = SimpleNamespace(site_name="paddock", site_description="Safe", site_dir=str(tmp_path), nav=None)
    config.nav = [{"Start": ["index.md"]}, {"Internals": ["security.md", {"Decisions": ["decisions/0001-asyncio.md"]}]}]
    texts = {
        "index.md": "# Docs\n[all](../README.md) [code](../src/paddock/errors.py) [web](https://x.org/y)\n",
        "security.md": "# Security\n[levels](docs/levels.md#a)\n",
        "decisions/0001-asyncio.md": "# 1. asyncio\n[levels](../levels.md)\n",
    }
    for source, text in texts.items():
        site.on_page_markdown(text, SimpleNamespace(file=SimpleNamespace(src_uri=source)))
    site.on_post_build(config)
    twins = {source: (tmp_path / source).read_text() for source in texts}
    assert "[all](readme.md) `src/paddock/errors.py` [web](https://x.org/y)" in twins["index.md"]
    assert "[levels](levels.md#a)" in twins["security.md"]
    assert "[levels](../levels.md)" in twins["decisions/0001-asyncio.md"]
    assert (tmp_path / "llms.txt").read_text() == (
        "# paddock\n\n> Safe\n\n## Start\n\n- [Docs](index.md)\n\n"
        "## Internals\n\n- [Security](security.md)\n- [1. asyncio](decisions/0001-asyncio.md)\n"
    )
