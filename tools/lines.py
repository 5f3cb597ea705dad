"""Print the lines of code by room: no blanks, comments, docstrings or generated files. `make lines`.

C is counted the same way. A line is what the formatter makes of it, at most 120 columns.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
C_COMMENT = re.compile(r'"(?:\\.|[^"\\\n])*"|' + r"'(?:\\.|[^'\\\n])*'|(/\*.*?\*/|//[^\n]*)", re.DOTALL)


def main() -> None:
    code, whole = Counter[str](), Counter[str]()
    for path in sorted((ROOT / "src" / "paddock").rglob("*.py")):
        count(path, path.relative_to(ROOT / "src" / "paddock").parts[0], python_lines, code, whole)
    for path in sorted((ROOT / "native").glob("*.[ch]")):
        count(path, "native (C)", c_lines, code, whole)
    print(f"{'room':20}{'code':>8}{'all':>8}")
    for room, lines in sorted(code.items(), key=lambda item: -item[1]):
        print(f"{room:20}{lines:8,}{whole[room]:8,}")
    python = [room for room in code if room not in ("generated", "native (C)")]
    print(f"{'Python':20}{sum(code[room] for room in python):8,}{sum(whole[room] for room in python):8,}")


def count(path: Path, room: str, counted: Callable[[str], int], code: Counter[str], whole: Counter[str]) -> None:
    text = path.read_text()
    if "enerated" in text[:80]:
        room = "generated"
    code[room] += counted(text)
    whole[room] += text.count("\n")


def python_lines(text: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), lineno=first, end_lineno=int(last)):
                lines.difference_update(range(first, last + 1))
            case _:
                pass
    return len(lines)


def c_lines(text: str) -> int:
    without = C_COMMENT.sub(lambda found: "\n" * found[0].count("\n") if found[1] else found[0], text)
    return sum(1 for line in without.splitlines() if line.strip())


if __name__ == "__main__":
    main()
