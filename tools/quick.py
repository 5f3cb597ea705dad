"""Print the tests of the files that differ from `main`: about a minute of them, for `make quick`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# The longest path that a changed file begins with counts. Names are below tests/.
TESTS = {
    ".ci/": "tools",
    "Makefile": "tools",
    "bench/": "bench",
    "demo/": "demo",
    "docs/": "",
    "examples/": "client/test_client_real.py",
    "src/paddock/": "client cli/test_completion.py",
    "src/paddock/audit/": "audit",
    "src/paddock/backends/": "backends/test_hostile_guest.py backends/test_files.py contract/test_jail_backend.py",
    "src/paddock/backends/container/": "backends/test_container.py backends/test_container_engine.py",
    "src/paddock/backends/gvisor/": "backends/test_gvisor.py",
    "src/paddock/backends/microvm/": "backends/test_microvm.py backends/test_microvm_accelerator.py",
    "src/paddock/backends/process.py": "backends/test_process.py contract/test_process_backend.py",
    "src/paddock/backends/vmm/": "backends/test_vmm.py",
    "src/paddock/cli/": "cli/test_cli.py cli/test_policy_cli.py cli/test_completion.py cli/test_secret.py",
    "src/paddock/client/": "client",
    "src/paddock/daemon/": "service/test_door.py service/test_execs.py service/test_faults.py service/test_lane.py"
    " service/test_order.py service/test_recover.py service/test_sandboxes.py service/test_workspaces.py"
    " client/test_client_real.py simulation",
    "src/paddock/daemon/main/": "daemon client simulation service/test_recover.py",
    "src/paddock/gateway/": "gateway",
    "src/paddock/eval/": "eval",
    "src/paddock/vmm/": "vmm contract/test_jail_backend.py",
    "src/paddock/supervisor/": "supervisor/test_client.py supervisor/test_exits.py supervisor/test_plan.py"
    " supervisor/test_records.py supervisor/test_running.py contract/test_jail_backend.py",
    "src/paddock/linux/": "linux supervisor/test_mounts.py",
    "src/paddock/agents/": "agents",
    "src/paddock/model/": "policy client service/test_store.py service/test_door.py",
    "src/paddock/policy/": "policy",
    "src/paddock/server/": "nested",
    "src/paddock/storage/": "storage",
    "src/paddock/storage/git/forges.py": "results/test_forges.py",
    "src/paddock/storage/templates/images/": "images",
    "src/paddock/storage/git/": "repositories/test_acquire.py repositories/test_remote.py",
    "src/paddock/wire/": "wire daemon",
    "tests/": "",
    "tests/conformance/": "contract",
    "tools/": "tools",
}
ALWAYS = "style/test_clocks.py style/test_errors.py style/test_modes.py style/test_rooms.py style/test_guarantees.py"


def tests_for(changed: list[str]) -> list[str]:
    """A test that has changed is its own. Documents have `make check` and `make docs`."""
    chosen: set[str] = set(ALWAYS.split())
    for path in changed:
        if path.startswith("tests/") and Path(path).name.startswith("test_"):
            chosen.add(path.removeprefix("tests/"))
        else:
            longest = max((prefix for prefix in TESTS if path.startswith(prefix)), key=len, default="docs/")
            chosen.update(TESTS[longest].split())
    return sorted(f"tests/{name}" for name in chosen if (ROOT / "tests" / name).exists())


def changed_files() -> list[str]:
    """Return files that were committed since `main`, or are not committed, or unknown to git."""
    base = _git("merge-base", "main", "HEAD") or ["HEAD"]
    return _git("diff", "--name-only", *base) + _git("ls-files", "--others", "--exclude-standard")


def _git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return done.stdout.split("\n")[:-1]


if __name__ == "__main__":
    sys.stdout.write(" ".join(tests_for(changed_files())) + "\n")
