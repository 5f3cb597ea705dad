"""The kit: a tree with our Python, its libraries, its loader, and `paddock.vmm` with its imports, byte-compiled.

It works at any path: the controller of a VMM runs out of it, with any template. It only contains the controller's
imports. The controller imports all of them when it starts, and nothing later.
"""

from __future__ import annotations

import hashlib
import json
import marshal
import os
import struct
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import TypedDict

from paddock import vmm
from paddock.errors import UnsupportedError
from paddock.storage.templates.recipe import FOLDER, Entry, Manifest, Recipe, put, writes

PLACE = "/.paddock"
COMMAND = (
    f"{PLACE}/lib/ld.so",
    *("--library-path", f"{PLACE}/lib"),
    *(f"{PLACE}/bin/python3", "-I", "-S", "-c", "from paddock.vmm.controller import main; main([])"),
)
"""Starts a controller from the kit at `PLACE`. The controller reads its orders from its standard input."""
_VERSION = "2"
_SECONDS = 60
_INTERPRETER_OF_ELF = 3  # PT_INTERP, elf(5)
# Prints the files that the controller's interpreter loads: modules by file, and shared libraries by their requested
# names (dl_iterate_phdr(3)). The first of these is the program itself, without a name.
_LIST_IMPORTS = """
import ctypes, importlib, json, os, sys

where, *names = sys.argv[1:]
sys.path.insert(0, where)
for name in names:
    importlib.import_module("paddock.vmm." + name)

class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]

libraries = []
def add(info, size, data):
    libraries.append(os.fsdecode(info.contents.name or b""))
    return 0

kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
ctypes.CDLL(None).dl_iterate_phdr(kind(add), None)
modules = {}
for name, module in sys.modules.items():
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.has_location:
        modules[name] = spec.origin
print(json.dumps({"modules": modules, "libraries": libraries, "os": os.__file__, "library": sys.platlibdir}))
"""


def recipe() -> Recipe:
    """Return the recipe. Raises UnsupportedError if this Python can't be in a kit."""
    program = _program()
    loader = _loader(program)
    sources = hashlib.sha256()
    for package in ("vmm", "linux", "wire"):
        for path in sorted((_source() / "paddock" / package).glob("*.py")):
            sources.update(path.name.encode() + b"\0" + path.read_bytes())
    facts = (_VERSION, sys.version, _stamp(program), _stamp(loader), _stamp(Path(os.__file__)), sources.hexdigest())
    return Recipe(name="kit", facts=facts, fill=writes(manifest), host_usr=False, env={})


def manifest() -> Manifest:
    """Return the files of the kit, by their path below `PLACE`."""
    program = _program()
    loader = _loader(program)
    imports = _find_imports(program)
    standard = f"{imports['library']}/{Path(imports['os']).parent.name}"
    files: dict[str, Entry] = {".": FOLDER}
    put(files, "bin/python3", _file(program, 0o755))
    put(files, f"lib/{loader.name}", _file(loader, 0o755))
    put(files, "lib/ld.so", Entry("link", 0o777, loader.name.encode()))
    for library in map(Path, imports["libraries"]):
        if library.is_absolute() and library.name != loader.name and "lib-dynload" not in library.parts:
            put(files, f"lib/{library.name}", _file(library, 0o644))
    # The interpreter finds its library by this file, and has the module itself inside (getpath.py, STDLIB_LANDMARKS).
    put(files, f"{standard}/os.pyc", _compiled(Path(imports["os"]), f"{standard}/os.py"))
    put(files, f"{standard}/lib-dynload", FOLDER)
    for name, origin in imports["modules"].items():
        _add_module(files, standard, name, Path(origin))
    return files


def _program() -> Path:
    """Return the interpreter of the system, also in a virtual environment."""
    base: str | None = getattr(sys, "_base_executable", None)
    return Path(base or sys.executable).resolve()


def _source() -> Path:
    """Return the directory with the package `paddock`, whose `vmm` is to be in the kit."""
    return Path(vmm.__path__[0]).parents[1]


def _loader(program: Path) -> Path:
    """Return the loader that the program names. UnsupportedError: it names none."""
    with program.open("rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            raise _unsupported(program, "it is not a 64-bit program")
        (table,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        for number in range(count):
            file.seek(table + number * size)
            kind, _, offset, _, _, length = struct.unpack("<IIQQQQ", file.read(40))
            if kind == _INTERPRETER_OF_ELF:
                file.seek(offset)
                return Path(os.fsdecode(file.read(length).rstrip(b"\0")))
    raise _unsupported(program, "it is linked statically")


class _Imports(TypedDict):
    modules: dict[str, str]
    libraries: list[str]
    os: str
    library: str


def _find_imports(program: Path) -> _Imports:
    names = sorted(path.stem for path in Path(vmm.__path__[0]).glob("*.py") if path.stem != "__init__")
    result = subprocess.run(
        [program, "-I", "-S", "-B", "-c", _LIST_IMPORTS, str(_source()), *names],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_SECONDS,
        check=False,
        env={},
        cwd="/",
    )
    if result.returncode != 0:
        raise _unsupported(program, f"it does not start by itself: {result.stderr.decode(errors='replace')[-300:]}")
    return json.loads(result.stdout)


def _add_module(files: dict[str, Entry], standard: str, name: str, origin: Path) -> None:
    if origin.suffix == ".so":
        put(files, f"{standard}/lib-dynload/{origin.name}", _file(origin, 0o644))
        return
    path = name.replace(".", "/") + ("/__init__" if origin.name == "__init__.py" else "")
    put(files, f"{standard}/{path}.pyc", _compiled(origin, f"{standard}/{path}.py"))


def _compiled(source: Path, name: str) -> Entry:
    """Compile a module for an import without its source, which compares no times."""
    code = compile(source.read_bytes(), f"{PLACE}/{name}", "exec", dont_inherit=True)
    return Entry("file", 0o644, MAGIC_NUMBER + bytes(12) + marshal.dumps(code))


def _file(path: Path, mode: int) -> Entry:
    return Entry("file", mode, path.read_bytes())


def _stamp(path: Path) -> str:
    info = path.stat()
    return f"{path} {info.st_size} {info.st_mtime_ns}"


def _unsupported(program: Path, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"{program} cannot run in a virtual machine's or gVisor sandbox's jail: {why}",
        hint="run paddock with the system's python3, or with one of uv or pyenv",
    )
