"""Runs tests in a virtual machine: `python -m tools.vm [--kernel 6.12] [--as root,user] [-- pytest's arguments]`.

The machine is emulated where there is no KVM, so everything takes ten to twenty times as long.
Results are JUnit files in `out/vm/`.
Exit code 0: all passed; 1: something failed; 77: it cannot be run here, and the last line says why.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.vm import _image, _machine, _results

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out" / "vm"
TESTS = (
    "tests/keeper/test_scope.py",
    "tests/keeper/test_watch.py",
    "tests/contract/test_jail_backend.py",
    "tests/security",
)
# What these hold is held on a real machine. They give a program seconds for what takes an emulated one minutes.
TOO_SLOW = (
    "test_a_deadline_strikes_without_a_service",
    "test_a_path_that_is_swapped_while_it_is_used_never_leads_out",
    "test_orphans_are_reaped_ten_thousand_times",
    "test_a_timeout_ends_a_tree_in_every_disguise",
    "test_a_fork_bomb_is_held_while_a_neighbour_works",
)
CANNOT = 77


def main() -> int:
    parser = argparse.ArgumentParser(prog="tools.vm", description=__doc__)
    parser.add_argument("--kernel", default="6.12", choices=sorted(_image.KERNELS), help="which of Debian's kernels")
    parser.add_argument("--as", dest="modes", default="root,user", help="root, user, or both")
    parser.add_argument("--accelerator", default="tcg", choices=("tcg", "kvm"))
    parser.add_argument("--memory-mib", type=int, default=3072)
    parser.add_argument("--shell", help="this command in place of the tests, in each mode")
    parser.add_argument("--timeout-seconds", type=float, default=5400.0)
    parser.add_argument("arguments", nargs="*", help=f"pytest's; by default {' '.join(TESTS)}")
    options = parser.parse_args()
    if reason := _image.missing():
        print(f"not run: {reason}", file=sys.stderr)
        return CANNOT
    OUT.mkdir(parents=True, exist_ok=True)
    image = _image.provide(OUT)
    left_out: list[str] = []
    if options.accelerator == "tcg" and not options.arguments and not options.shell:
        print(f"left out, since an emulated machine is too slow for them: {', '.join(TOO_SLOW)}", file=sys.stderr)
        left_out = ["-k", f"not ({' or '.join(TOO_SLOW)})"]
    job = {
        "modes": options.modes.split(","),
        "pytest": options.arguments or [*TESTS, *left_out],
        "shell": options.shell,
    }
    machine = _machine.Machine(
        image, kernel=options.kernel, accelerator=options.accelerator, memory_mib=options.memory_mib
    )
    results = OUT / options.kernel
    machine.run(ROOT, job, results, timeout_seconds=options.timeout_seconds)
    return _results.show(results, job["modes"], tests=options.shell is None)


if __name__ == "__main__":
    sys.exit(main())
