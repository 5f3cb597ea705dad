"""Write what follows from `native/schema.py`: the C tables, the Python classes, the page. `--check` writes nothing."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paddock.wire import Kind

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "native" / "schema.py"
C_TYPES = {"u16": "uint16_t", "u32": "uint32_t", "u64": "uint64_t", "i32": "int32_t", "i64": "int64_t"}
PYTHON_CODES = {"u16": "H", "u32": "I", "u64": "Q", "i32": "i", "i64": "q"}
PYTHON_TYPES = {
    "text": ("bytes", 'b""'),
    "bytes": ("bytes", 'b""'),
    "strings": ("tuple[bytes, ...]", "()"),
    "u32s": ("tuple[int, ...]", "()"),
    "u64s": ("tuple[int, ...]", "()"),
}


def main(arguments: list[str]) -> int:
    schema = runpy.run_path(str(SOURCE))
    wanted = {
        ROOT / "native" / "schema.h": "\n".join(c_header(schema)) + "\n",
        ROOT / "src" / "paddock" / "wire" / "guest.py": formatted("\n".join(python_module(schema)) + "\n"),
        ROOT / "docs" / "design" / "guest-messages.md": "\n".join(page(schema)) + "\n",
    }
    stale = [path for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not what native/schema.py says: make fix", file=sys.stderr)
        return int(bool(stale))
    for path in stale:
        path.write_text(wanted[path])
    return 0


def formatted(text: str) -> str:
    ruff = Path(sys.executable).with_name("ruff")
    order = [ruff, "format", "--config", ROOT / "pyproject.toml", "--stdin-filename", "guest.py", "-"]
    return subprocess.run(order, input=text, capture_output=True, text=True, check=True).stdout


def c_header(schema: dict[str, Any]) -> Iterator[str]:
    yield "/* Generated from schema.py by tools/schema.py. */"
    yield "#pragma once\n"
    yield '#include "message.h"\n'
    yield f"enum {{ PROTOCOL_VERSION = {schema['VERSION']} }};\n"
    for title, prefix in (("KINDS", "KIND"), ("STREAMS", "STREAM"), ("OPS", "OP")):
        yield f"enum {prefix.lower()}_number {{"
        yield from (f"    {prefix}_{name} = {number}," for name, number in schema[title].items())
        yield "};\n"
    yield "enum limit {"
    yield from (f"    LIMIT_{name} = {number}, /* {doc} */" for name, (number, doc) in schema["LIMITS"].items())
    yield "};"
    for group, flags in schema["FLAGS"].items():
        yield f"\nenum {group.lower()}_flags {{"
        yield from (
            f"    {group}_{name} = {bit}," + (f" /* {doc} */" if doc else "") for name, (bit, doc) in flags.items()
        )
        yield f"    {group}_FLAGS = {sum(bit for bit, _ in flags.values())},"
        yield "};"
    for message in schema["MESSAGES"]:
        yield from _c_message(message, schema["FLAGS"])
    yield "\n/* Of all messages, in this order. */\n#define EVERY_SHAPE \\"
    yield ", \\\n".join(f"    &{message.name}_shape" for message in schema["MESSAGES"])


def _c_message(message: Any, flags: dict[str, Any]) -> Iterator[str]:
    name = message.name
    yield f"\nstruct {name}_message {{"
    yield from (f"    {C_TYPES[kind]} {field};" for field, kind, _ in message.fixed)
    yield from (f"    struct reader {field.name};" for field in message.fields)
    if not message.fixed and not message.fields:
        yield "    char none;"
    yield "};"
    yield f"static const struct shape {name}_shape = {{"
    group = message.fixed[0][2] if message.fixed and message.sender == "host" else ""
    if group in flags:
        yield f"    .known = {group}_FLAGS,"
    yield f"    .numbers = {len(message.fixed)},\n    .number = {{"
    for field, kind, _ in message.fixed:
        size = int(kind[1:]) // 8
        yield (
            f"        {{offsetof(struct {name}_message, {field}), {size}, {'true' if field == 'zero' else 'false'}}},"
        )
    yield "    },"
    yield f"    .fields = {len(message.fields)},\n    .field = {{"
    for field in message.fields:
        yield (
            f"        {{offsetof(struct {name}_message, {field.name}), {field.tag}, "
            f"FIELD_{field.kind.upper()}, {field.limit}}},"
        )
    yield "    },\n};"


def python_module(schema: dict[str, Any]) -> Iterator[str]:
    yield '"""The messages of a guest. Generated from native/schema.py by tools/schema.py."""\n'
    yield "from __future__ import annotations\n"
    yield "from enum import IntEnum, IntFlag"
    yield "from struct import Struct\n"
    yield "from ._frames import Kind as Kind"
    yield "from .message import Field, Message, Shape\n"
    assert schema["KINDS"].items() <= Kind.__members__.items(), "wire/_frames.py has other kinds"
    yield f"VERSION = {schema['VERSION']}"
    for title, name in (("STREAMS", "Stream"), ("OPS", "Op")):
        yield f"\n\nclass {name}(IntEnum):"
        yield from (f"    {member} = {number}" for member, number in schema[title].items())
    yield "\n\nclass Limit:"
    for name, (number, doc) in schema["LIMITS"].items():
        yield f"    {name} = {number}\n    # {doc[0].upper()}{doc[1:]}."
    for group, flags in schema["FLAGS"].items():
        yield f"\n\nclass {group.capitalize()}Flags(IntFlag):"
        yield from (f"    {name} = {bit}" for name, (bit, _) in flags.items())
    ordered = sorted(schema["MESSAGES"], key=lambda message: any(field.kind == "rows" for field in message.fields))
    for message in ordered:
        yield from _python_message(message)


def _class(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _python_message(message: Any) -> Iterator[str]:
    yield f"\n\nclass {_class(message.name)}(Message):"
    if message.doc:
        yield f'    """{message.doc}"""\n'
    parameters: list[str] = []
    for name, _, _ in message.fixed:
        if name != "zero":
            parameters.append(f"{name}: int = 0")
    for field in message.fields:
        kind, default = PYTHON_TYPES.get(field.kind, (f"tuple[{_class(field.rows)}, ...]", "()"))
        parameters.append(f"{field.name}: {kind} = {default}")
    codes = "".join("x" * (int(kind[1:]) // 8) if n == "zero" else PYTHON_CODES[kind] for n, kind, _ in message.fixed)
    zeros: list[tuple[int, int]] = []
    offset = 0
    for name, kind, _ in message.fixed:
        if name == "zero":
            zeros.append((offset, offset + int(kind[1:]) // 8))
        offset += int(kind[1:]) // 8
    names = [name for name, _, _ in message.fixed if name != "zero"]
    yield "    SHAPE = Shape("
    yield f'        Struct("<{codes}"),'
    yield f"        {_tuple(repr(name) for name in names)},"
    yield f"        {_tuple(repr(span) for span in zeros)},"
    yield "        ("
    for field in message.fields:
        rows = f", {_class(field.rows)}" if field.rows else ""
        yield f'            Field({field.tag}, "{field.name}", "{field.kind}", {field.limit}{rows}),'
    yield "        ),"
    yield "    )"
    everything = [*names, *(field.name for field in message.fields)]
    if parameters:
        yield "\n    def __init__("
        yield "        self,"
        yield from (f"        {parameter}," for parameter in parameters)
        yield "    ) -> None:"
        yield from (f"        self.{name} = {name}" for name in everything)


def _tuple(items: Any) -> str:
    listed = [str(item).replace("'", '"') for item in items]
    return f"({listed[0]},)" if len(listed) == 1 else f"({', '.join(listed)})"


def page(schema: dict[str, Any]) -> Iterator[str]:
    yield "# Messages of the guest\n"
    yield "Generated from `native/schema.py` by `tools/schema.py`. `guest.md` says what they mean.\n"
    yield f"The protocol's version is {schema['VERSION']}.\n"
    yield "| limit | | |\n|---|---|---|"
    yield from (f"| `{name}` | {number:,} | {doc} |" for name, (number, doc) in schema["LIMITS"].items())
    yield "\n| operation | code |\n|---|---|"
    yield from (f"| {name} | {number} |" for name, number in schema["OPS"].items())
    for message in schema["MESSAGES"]:
        yield f"\n## {message.name}\n"
        yield f"{message.frame or 'row'}, from the {message.sender}. {message.doc}\n".replace("the both", "both")
        if message.fixed or message.fields:
            yield "| | | |\n|---|---|---|"
            yield from (f"| `{name}` | {kind} | {doc} |" for name, kind, doc in message.fixed)
            yield from (
                f"| `{field.name}` | {field.kind}, tag {field.tag}, at most {field.limit:,} bytes | {field.doc} |"
                for field in message.fields
            )
        else:
            yield "No body."
    for group, flags in schema["FLAGS"].items():
        yield f"\n## Flags {group}\n\n| | | |\n|---|---|---|"
        yield from (f"| {name} | {bit} | {doc} |" for name, (bit, doc) in flags.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
