"""Count what the prose of docs, docstrings and comments does against the rules, by folder: `make prose`.

`--check` fails where a count is above the one in counts.json, and `--write` writes that file anew. `--list FOLDER`
prints each place. ruff judges the first word of a docstring (D401) and its full stop (D400); textlint judges the length
of sentences, passive voice and the words of words.yml. For textlint, docstrings and comments become Markdown files in
which each line has the number that it has in its source.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COUNTS = HERE / "counts.json"
NAMES = {
    "D400": "full stop",
    "D401": "first word",
    "en-max-word-count": "long sentence",
    "prh": "word",
    "write-good": "passive",
}
C_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)


class Finding(NamedTuple):
    path: str
    line: int
    rule: str
    text: str

    @property
    def room(self) -> str:
        parts = Path(self.path).parts
        return "/".join(parts[:3] if parts[0] == "src" and len(parts) > 3 else parts[: 2 if len(parts) > 2 else 1])


def main() -> int:
    parser = argparse.ArgumentParser(prog="make prose", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail where there is more than counts.json says")
    parser.add_argument("--write", action="store_true", help="write counts.json")
    parser.add_argument("--list", metavar="FOLDER", help="each place below it")
    options = parser.parse_args()
    found = [*docstrings(), *sentences()]
    if options.list:
        for one in sorted(found):
            if one.path.startswith(options.list.rstrip("/")):
                print(f"{one.path}:{one.line}: {NAMES[one.rule]}: {one.text}")
        return 0
    totals = dict(Counter(NAMES[one.rule] for one in found))
    if options.write:
        COUNTS.write_text(json.dumps(totals, indent=1, sort_keys=True) + "\n")
    if options.check:
        return check(totals, json.loads(COUNTS.read_text()))
    show(found)
    return 0


def check(totals: dict[str, int], most: dict[str, int]) -> int:
    """Print each count that is above the one of `most`, and return the exit code."""
    worse = [
        f"{name}: {number}, not {most.get(name, 0)}" for name, number in totals.items() if number > most.get(name, 0)
    ]
    if worse:
        print("prose got worse (`python -m tools.prose --list FOLDER` has the places):", *worse, sep="\n  ")
    return 1 if worse else 0


def show(found: list[Finding]) -> None:
    """Print the number of findings by folder and rule."""
    names = sorted(NAMES.values())
    print(f"{'folder':28}", *(f"{name:>13}" for name in names), sep="")
    counts = Counter((one.room, NAMES[one.rule]) for one in found)
    for room in sorted({room for room, _ in counts}):
        print(f"{room:28}", *(f"{counts[room, name]:13,}" for name in names), sep="")
    totals = Counter(NAMES[one.rule] for one in found)
    print(f"{'all':28}", *(f"{totals[name]:13,}" for name in names), sep="")


def docstrings() -> Iterator[Finding]:
    """Yield what ruff says of the docstrings in `src` and `tools`."""
    order = [
        *(Path(sys.executable).with_name("ruff"), "check", "--select", "D400,D401", "--output-format", "json"),
        *("--exit-zero", "--extend-exclude", "**/_sync/**", "src", "tools"),
    ]
    said = subprocess.run(order, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for one in json.loads(said):
        path = str(Path(one["filename"]).relative_to(ROOT))
        yield Finding(path, one["location"]["row"], one["code"], one["message"])


def sentences() -> Iterator[Finding]:
    """Yield what textlint says of pages, docstrings and comments."""
    with tempfile.TemporaryDirectory() as scratch:
        for path in sources():
            copy = Path(scratch, f"{path.relative_to(ROOT)}.md")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(prose(path))
        textlint = HERE / "node_modules" / ".bin" / "textlint"
        if not textlint.exists() or not shutil.which("node"):
            raise SystemExit("textlint is missing: tools/bootstrap check")
        order = [textlint, "-c", HERE / ".textlintrc.json", "-f", "json", "--no-color", f"{scratch}/**/*.md"]
        done = subprocess.run(order, cwd=HERE, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise SystemExit(f"textlint failed: {done.stderr}")
        for file in json.loads(done.stdout):
            path = str(Path(file["filePath"]).relative_to(scratch)).removesuffix(".md")
            for one in file["messages"]:
                yield Finding(path, one["line"], one["ruleId"], one["message"].partition("\n")[0])


def sources() -> Iterator[Path]:
    """Yield the files that people write: no generated ones, no tests."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.rstrip("\0").split("\0"):
        path = ROOT / name
        wanted = path.suffix == ".md" and not name.startswith(("tests/", "CHANGELOG", "docs/reference/"))
        wanted |= path.suffix == ".py" and name.startswith(("src/", "tools/")) and "/_sync/" not in name
        wanted |= path.suffix in (".c", ".h") and name.startswith("native/")
        if wanted and path.is_file() and "enerated" not in path.read_text()[:80]:
            yield path


def prose(path: Path) -> str:
    """Return the prose of a file, each line where it is there."""
    text = path.read_text()
    if path.suffix == ".md":
        return text
    lines = [""] * (text.count("\n") + 2)
    blocks = python_prose(text) if path.suffix == ".py" else c_prose(text)
    for number, line in blocks:
        lines[number - 1] = line
    return "\n".join(lines)


def python_prose(text: str) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of docstrings and of comments, but not of orders to tools behind code."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(said), lineno=first)):
                yield from ((first + n, line.strip()) for n, line in enumerate(said.split("\n")))
            case _:
                pass
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        said = token.string.lstrip("#! ").strip()
        if token.line.lstrip().startswith("#"):
            yield token.start[0], said
        elif not said.startswith(("noqa", "pyright:", "type:")):
            yield token.start[0], f"{said.rstrip('.')}."


def c_prose(text: str) -> Iterator[tuple[int, str]]:
    for found in C_COMMENT.finditer(text):
        first = text.count("\n", 0, found.start()) + 1
        body = found[0].removeprefix("/*").removesuffix("*/")
        yield from ((first + n, line.strip(" *")) for n, line in enumerate(body.split("\n")))


if __name__ == "__main__":
    raise SystemExit(main())
