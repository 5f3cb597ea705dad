"""The count of lines leaves out blanks, comments and docstrings, and nothing else."""

from __future__ import annotations

from tools.lines import c_lines, python_lines


def test_python_lines_are_those_with_code() -> None:
    text = '"""Title."""\n\nimport os  # why\n\n# alone\ndef f() -> str:\n    """Say."""\n    return """a\n    b"""\n'
    assert python_lines(text) == 4


def test_c_lines_are_those_with_code() -> None:
    assert c_lines('/* a\n   b */\nint x; // why\n\nchar *s = "/* no comment";\n') == 2
