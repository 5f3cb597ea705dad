"""Which tests `.ci/run` runs as root only. A file that isn't named here runs as root and as an ordinary user.

`make test` runs them all, for everyone. The lists name files below `tests/` without `test_` and `.py`; `*` is a whole
folder. A test of such a file that the mark `both` carries runs as an ordinary user too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

# The result doesn't depend on the user, and no test makes a sandbox: the fixtures refuse a state directory.
PURE = {
    "audit": "kinds log ocsf read signing statement stream verify",
    "backends": "connections hostile_guest pipes",
    "bench": "figures peers report results",
    "client": "client_sandbox client_streams exports unasync values",
    "gateway": "certificates clients connection_owner dns evaluation_network gateway git_push git_push_flow h2"
    " h2_hostile h2_heads hello hostile http1 identity limits malware mock mock_cassettes names package_cache"
    " package_pages package_store recording refusal registry registry_crates registry_debian registry_filters"
    " replacer resolver revisions secret_flow streaming substitution synthetic websocket websocket_frames",
    "eval": "canaries",
    "vmm": "control fuse_state fuse_wire seal trunk",
    "images": "registry tar zstd",
    "supervisor": "plan",
    "agents": "budget trace verdict",
    "native": "coverage echo fuzz guest_faults protocol",
    "policy": "*",
    "repositories": "remote",
    "results": "forges",
    "service": "activity approvals conduct disk_sleep disk_sleep_races door evidence execs faults garbage levels"
    " malware_lists policies providers order recover lane rollback sandboxes secret_leases secret_policies"
    " secrets sleeping_states store wall_clock workspace_trees workspaces",
    "simulation": "*",
    "storage": "secret_sources vault",
    "style": "clocks errors guarantees modes no_forks no_probes orphans rooms",
    "tools": "quick reference",
    "wire": "codec duplex",
}
# Needs sandboxes, but the part that differs for an ordinary user is proved elsewhere.
ONCE = {
    "acceptance": "01_malicious_install 03_one_identity 04_one_address 06_secret_only_there 07_git 08_registries"
    " 09_fidelity 10_revisions 11_approvals 12_evidence crowd record_and_replay trust_stores",  # 05 has the ways out
    "audit": "parts",
    "backends": "container container_start container_copies container_endings container_images"
    " container_mounts container_trees files gvisor gvisor_memory gvisor_platforms killed_agent"
    " microvm microvm_accelerator microvm_conformance microvm_faults process pause_clock stopped_agent threads"
    " vmm waiting waiting_faults waiting_trees",  # tests/levels runs each level as the ordinary user too
    "bench": "*",
    "cli": "*",
    "client": "client_real",
    # without isolation there is nothing that root could do differently
    "contract": "jail_backend process_backend sanitized",
    "daemon": "first_start lifetime many_clients outliving steps",  # of outliving, one test at level jail: `both`
    "demo": "*",  # .ci/run runs `make demo` as the ordinary user
    "gateway": "mock_handlers mock_real process registry_reader whole",
    "eval": "*",
    "faults": "killed_rollback killed_services",
    "vmm": "fuse_mount controller",
    "images": "image_cli layer_workers",
    "levels": "every_level expected images",
    "linux": "seccomp seccomp_profile",
    "agents": "*",
    "native": "agent_memory archives commands exact files_faults guest_files guest_start init led parent patterns"
    " program relays",
    "remotes": "*",
    "repositories": "acquire attack_addresses attack_repository bases repository_collector",
    "results": "*",
    "service": "disobedient egress_doors fork_workspaces over_guest",
    "storage": "kit memories templates",
    "style": "docs docstrings examples",
    "tools": "package",
    "workspaces": "kept",
}


# Machines are baked once for a state directory: what shares one goes to one worker of xdist, in one piece.
TOGETHER = {
    "tests/backends/test_microvm": "machines of a harness",
    "tests/levels/": "machines of the daemon",
    "tests/style/test_docs.py": "machines of the daemon",
    "tests/style/test_examples.py": "machines of the daemon",
}


def piece(nodeid: str) -> str:
    """Of the files that xdist hands out, or of those that go together."""
    return next((together for start, together in TOGETHER.items() if nodeid.startswith(start)), nodeid.split("::")[0])


def mark(items: list[pytest.Item]) -> None:
    for item in items:
        if listed(PURE, item.path):
            item.add_marker(pytest.mark.pure)


def differs(item: pytest.Item) -> bool:
    """Whether a test runs as an ordinary user too."""
    marks = item.get_closest_marker("user"), item.get_closest_marker("both")
    return any(marks) or not (listed(PURE, item.path) or listed(ONCE, item.path))


def may_differ(path: Path) -> bool:
    """Whether there may be such a test in a file."""
    if not (path.name.startswith("test_") and (listed(PURE, path) or listed(ONCE, path))):
        return True
    text = path.read_text()
    return "pytest.mark.user" in text or "pytest.mark.both" in text


_in_a_pure_test = False


def begin(item: pytest.Item) -> None:
    """Note which kind of test runs now. A pure one may not name a fixture that makes a state directory."""
    global _in_a_pure_test
    _in_a_pure_test = item.get_closest_marker("pure") is not None
    if {"state_dir", "shared_state"} & set(getattr(item, "fixturenames", ())):
        refuse_if_pure()


def refuse_if_pure() -> None:
    if _in_a_pure_test:
        pytest.fail("this test is pure in tests/modes.py and asks for a state directory: take it out of that list")


def listed(table: dict[str, str], path: Path) -> bool:
    names = table.get(path.parent.name, "").split()
    return path.stem.removeprefix("test_") in names or "*" in names
