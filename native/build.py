"""Compile `paddock-guest`. `hatch_build.py`, level `process` and the tests call `build`; nothing else compiles it.

    python native/build.py [--sanitize | --faults] [--arch aarch64] [--check]

A binary is kept in a cache under the digest of its sources, flags and compiler. Standard library only.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parent
COMPILERS = ("gcc", "clang", "cc")
ZIG = [sys.executable, "-m", "ziglang", "cc"]
"""The wheel `ziglang`, which uv.lock pins, compiles releases, and stands in where no compiler is installed."""
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wno-unused-parameter",  # callbacks of one type don't all need what they are given
    "-Werror",
    "-Wconversion",
    "-Wshadow",
    "-Wvla",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wcast-qual",
    "-Wformat=2",
    "-Wimplicit-fallthrough",
    "-Wundef",
]
COMMON = ["-std=c11", *WARNINGS, "-g0", "-ffile-prefix-map=.=native", "-fno-strict-aliasing"]
RELEASE = [
    "-Os",
    "-ffreestanding",
    "-fno-builtin",
    "-nostdlib",
    "-static",
    "-fno-pie",
    "-fno-asynchronous-unwind-tables",
    "-fno-unwind-tables",
    "-fno-stack-protector",
    "-ffunction-sections",
    "-fdata-sections",
    "-Wl,--gc-sections",
    "-Wl,--build-id=none",
    "-Wl,-z,noexecstack",
    "-Wl,-z,noseparate-code",
    "-s",
]
# Both architectures load from any address, and no pointer here comes near the end of memory: these two checks are a
# sixth of the program, and the sanitizer build makes them.
_CHECKS = ["-fsanitize=undefined", "-fno-sanitize=alignment,pointer-overflow"]
TRAPS = {
    "gcc": [*_CHECKS, "-fsanitize-undefined-trap-on-error"],
    "clang": [*_CHECKS, "-fsanitize-trap=all"],
}
HOSTED = [
    "-O1",
    "-g",
    "-DGUEST_HOSTED",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
]
COUNTED = ["-O0", "-g", "-fprofile-instr-generate", "-fcoverage-mapping", "-DGUEST_COVERAGE", "-DGUEST_HOSTED"]
COVERED = ("wire", "bytes", "message", "tar_read", "tar_write", "regex", "glob", "utf8")
"""The parsers: every branch of theirs is taken by a test (tests/native/coverage.py)."""
BESIDE = ("arena", "io", "loop", "tiny")
"""What they call."""


class NoCompiler(Exception):
    """Neither gcc nor clang is installed, nor the wheel that stands in for them."""


def find_compiler(wanted: str | None = None, arch: str | None = None) -> list[str]:
    """Return the first words of a command that compiles for `arch`. `wanted`: a program, or `ziglang`. NoCompiler."""
    zig = [*ZIG, "-target", f"{arch or platform.machine()}-linux-musl"] if importlib.util.find_spec("ziglang") else None
    if wanted == "ziglang":
        if zig is None:
            raise NoCompiler("releases of paddock-guest are compiled by ziglang; `make wheels` installs it")
        return zig
    foreign = arch not in (None, platform.machine())
    own = (f"{arch}-linux-gnu-gcc",) if foreign else (os.environ.get("CC"), *COMPILERS)
    for name in (wanted,) if wanted else own:
        path = shutil.which(name) if name else None
        if path:
            return [path]
    if wanted is None and zig is not None:
        return zig
    if foreign:
        name = str(arch).replace("_", "-")
        raise NoCompiler(f"paddock-guest needs gcc for {arch}; on Debian: apt-get install gcc-{name}-linux-gnu")
    raise NoCompiler("paddock-guest needs gcc or clang; on Debian: apt-get install gcc")


def sources() -> list[str]:
    """Relative names in a fixed order: the same bytes from any directory."""
    return sorted(path.name for path in SOURCES.glob("*.c"))


def flags_of(compiler: list[str], *, sanitize: bool, faults: bool) -> list[str]:
    family = "clang" if "clang" in _version(compiler) else "gcc"
    flags = [*COMMON, *(HOSTED if sanitize else [*RELEASE, *TRAPS[family]])]
    if "ziglang" in compiler:  # its linker doesn't know all of them
        flags = [*(flag for flag in flags if flag != "-Wl,-z,noseparate-code"), "-Oz"]
    return [*flags, *(["-DGUEST_FAULTS"] if faults else [])]


@functools.cache
def _version_of(*compiler: str) -> str:
    done = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0]


def _version(compiler: list[str]) -> str:
    return _version_of(*compiler)


def source_digest() -> str:
    """Of what the guest is made from, whatever compiles it."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.[ch]")]):
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def build(
    *, compiler: str | None = None, sanitize: bool = False, faults: bool = False, arch: str | None = None
) -> Path:
    """The program, compiled now or before. NoCompiler, or CalledProcessError with what the compiler said."""
    command = find_compiler(compiler, arch)
    flags = flags_of(command, sanitize=sanitize, faults=faults)
    digest = source_digest()
    target = _target(digest, command, flags)
    if target.exists():
        return target
    with tempfile.TemporaryDirectory(dir=_cache()) as scratch:
        made = Path(scratch) / "paddock-guest"
        order = [*command, *flags, f'-DBUILD="{digest[:32]}"', "-o", str(made), *sources()]
        subprocess.run(order, cwd=SOURCES, check=True, stdin=subprocess.DEVNULL)
        made.chmod(0o755)
        target.parent.mkdir(exist_ok=True)
        made.rename(target)
    return target


def kept() -> Path:
    """Where `build` keeps what it makes here; it may not be there. NoCompiler."""
    command = find_compiler()
    return _target(source_digest(), command, flags_of(command, sanitize=False, faults=False))


def _target(digest: str, compiler: list[str], flags: list[str]) -> Path:
    key = hashlib.sha256("\0".join((digest, _version(compiler), *compiler, *flags)).encode()).hexdigest()
    return _cache() / key / "paddock-guest"


def fuzzer(name: str, *, coverage: bool = False) -> Path:
    """The libFuzzer target `fuzz/NAME.c` with all that it tests, of which the objects are cached. It needs clang."""
    compiler = find_compiler("clang")
    hosted = COUNTED if coverage else HOSTED
    flags = [*COMMON, *hosted, "-fsanitize=fuzzer-no-link"]
    wanted = (
        [f"{name}.c" for name in (*COVERED, *BESIDE)] if coverage else [name for name in sources() if name != "main.c"]
    )
    objects = [_object(compiler, flags, source) for source in wanted]
    target = _cache() / f"fuzz-{name}-{os.getpid()}"
    order = [*compiler, *COMMON, *hosted, "-fsanitize=fuzzer", "-o", str(target), f"fuzz/{name}.c"]
    subprocess.run([*order, *objects], cwd=SOURCES, check=True, stdin=subprocess.DEVNULL)
    return target


def _object(compiler: list[str], flags: list[str], source: str) -> str:
    """One file, compiled, under the digest of what it is made from."""
    digest = hashlib.sha256("\0".join((source, _version(compiler), *flags)).encode())
    for path in (*sorted(SOURCES.glob("*.h")), SOURCES / source):
        digest.update(path.read_bytes())
    target = _cache() / f"{digest.hexdigest()}.o"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=_cache()) as scratch:
            made = Path(scratch) / "o"
            order = [*compiler, *flags, "-c", "-o", str(made), source]
            subprocess.run(order, cwd=SOURCES, check=True, stdin=subprocess.DEVNULL)
            made.rename(target)
    return str(target)


def check() -> int:
    """No warning from gcc's analyzer or clang, file by file. 1 if there is one."""
    found = 0
    for name, more in (("gcc", ["-fanalyzer"]), ("clang", [])):
        if shutil.which(name) is None:
            print(f"{name} is not installed and was not asked; tools/bootstrap check installs it", file=sys.stderr)
            continue
        flags = [*COMMON, *more, "-Os", "-ffreestanding", "-fno-builtin", "-c", "-o", os.devnull]
        for source in (*sources(), *(f"fuzz/{path.name}" for path in _fuzzers())):
            found |= subprocess.run([name, *flags, source], cwd=SOURCES, check=False).returncode
    return int(found != 0)


def _fuzzers() -> list[Path]:
    return sorted((SOURCES / "fuzz").glob("*.c"))


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(home) / "paddock" / "guest"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compiler")
    parser.add_argument("--arch")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = vars(parser.parse_args(arguments))
    if options.pop("check"):
        return check()
    try:
        print(build(**options))
    except NoCompiler as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
