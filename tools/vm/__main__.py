"""Runs tests in a virtual machine: `python -m tools.vm [--lane jail|kvm] [--as root,user] [-- pytest's arguments]`.

Lane `jail`: the jail under systemd and cgroup version 2, as root and as an ordinary user. An hour.
Lane `kvm`: virtual machines with a /dev/kvm that boots them, since QEMU emulates AMD's virtualization. Tests of level
`microvm`, and what create, exec and destroy take beside microsandbox, whose wheel is fetched from PyPI. Forty minutes.
The machine is emulated where there is no KVM, so everything takes ten to twenty times as long.
Results are JUnit files and the figures in `out/vm/`.
Exit code 0: all passed; 1: something failed; 77: it cannot be run here, and the last line says why.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.vm import _image, _machine, _peer, _results

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "out" / "vm"


@dataclass(frozen=True, kw_only=True)
class Lane:
    """`left_out`: tests that are held on a real machine. They give a program seconds for what takes an emulated one
    minutes. `nests`: the machine has a /dev/kvm, and measures beside microsandbox."""

    tests: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    kernel: str
    modes: str
    timeout_seconds: float
    nests: bool = False


_CONFORMANCE = "tests/backends/test_microvm_conformance.py::TestMicrovm::test_"
LANES = {
    "jail": Lane(
        tests=(
            "tests/supervisor/test_scope.py",
            "tests/supervisor/test_watch.py",
            "tests/contract/test_jail_backend.py",
            "tests/security",
        ),
        left_out=(
            "test_a_deadline_strikes_without_a_service",
            "test_a_path_that_is_swapped_while_it_is_used_never_leads_out",
            "test_orphans_are_reaped_ten_thousand_times",
            "test_a_timeout_ends_a_tree_in_every_disguise",
            "test_a_fork_bomb_is_held_while_a_neighbour_works",
        ),
        kernel="6.12",
        modes="root,user",
        timeout_seconds=5400.0,
    ),
    "kvm": Lane(
        tests=(
            f"{_CONFORMANCE}every_exit_code_is_reported_as_it_was",
            f"{_CONFORMANCE}the_user_is_the_templates_when_none_is_named",
            f"{_CONFORMANCE}what_was_written_is_read_by_commands_and_back",
            f"{_CONFORMANCE}two_sandboxes_share_no_file",
            f"{_CONFORMANCE}kill_ends_everything_that_the_command_started",
            f"{_CONFORMANCE}what_is_paused_does_nothing_until_it_is_resumed",
            f"{_CONFORMANCE}a_kill_leaves_no_process",
            "tests/backends/test_microvm.py::test_a_fork_and_its_fork_go_on_with_memory_connections_and_files",
            "tests/backends/test_microvm_faults.py::test_a_machine_that_is_killed_while_it_is_saved_leaves_no_copy",
        ),
        kernel="6.1",
        modes="root",
        timeout_seconds=2400.0,
        nests=True,
    ),
}
CANNOT = 77


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tools.vm", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lane", default="jail", choices=sorted(LANES))
    parser.add_argument("--kernel", choices=sorted(_image.KERNELS), help="which of Debian's kernels")
    parser.add_argument("--as", dest="modes", help="root, user, or both")
    parser.add_argument("--accelerator", default="tcg", choices=("tcg", "kvm"))
    parser.add_argument("--memory-mib", type=int, default=3072)
    parser.add_argument("--shell", help="this command in place of the tests, in each mode")
    parser.add_argument("--timeout-seconds", type=float, help="by default 5400, in lane kvm 2400")
    parser.add_argument("arguments", nargs="*", help="pytest's; by default the tests of the lane")
    options = parser.parse_args()
    lane = LANES[options.lane]
    if reason := _image.missing():
        print(f"not run: {reason}", file=sys.stderr)
        return CANNOT
    OUT.mkdir(parents=True, exist_ok=True)
    image = _image.provide(OUT)
    arguments = options.arguments or list(lane.tests)
    if options.accelerator == "tcg" and lane.left_out and not options.arguments and not options.shell:
        print(f"left out, since an emulated machine is too slow for them: {', '.join(lane.left_out)}", file=sys.stderr)
        arguments += ["-k", f"not ({' or '.join(lane.left_out)})"]
    kernel = options.kernel or lane.kernel
    job = {"modes": (options.modes or lane.modes).split(","), "pytest": arguments, "shell": options.shell}
    beside: list[Path] = []
    if lane.nests:
        beside = [*_peer.provide(OUT), Path(__file__).with_name("figures.py")]
        job |= {"kvm": True, "figures": True}
    machine = _machine.Machine(
        image, kernel=kernel, accelerator=options.accelerator, memory_mib=options.memory_mib, nests=lane.nests
    )
    results = OUT / (kernel if options.lane == "jail" else options.lane)
    machine.run(ROOT, job, results, beside=beside, timeout_seconds=options.timeout_seconds or lane.timeout_seconds)
    if (figures := results / "figures.txt").exists():
        print(figures.read_text(), end="")
    return _results.show(results, job["modes"], tests=options.shell is None)


if __name__ == "__main__":
    sys.exit(main())
