"""What sandboxes need of this machine beyond namespaces, tried in a process that is gone afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from paddock.model import Check

_EXITS = (
    "from paddock.keeper import _exits;from paddock.linux import namespaces,netlink,nft,routes;"
    "namespaces.unshare(namespaces.NEWUSER|namespaces.NEWNET);netlink.set_loopback_up();"
    "nft.load(_exits.rules());routes.keep_everything(version_6=False)"
)
_POOL = "from paddock.keeper import pool;pool.try_pool(sys.argv[2],int(sys.argv[3]))"
_SECONDS = 20


def exits() -> Check:
    """Say whether sandboxes can have the gateway as their only network access here."""
    said = attempt(_EXITS)
    if said is None:
        detail = "policies hold: packets are led to the gateway, which asks them"
        return Check(area="jail", name="egress", status="ok", detail=detail)
    return Check(
        area="jail",
        name="egress",
        status="missing",
        detail=f"no sandbox with a policy can be made: {said}",
        fix="a kernel with nf_tables, nft_redir, nft_reject_inet, nft_limit and nft_ct",
    )


def pool(state_dir: Path, keeper: int) -> Check:
    """Say whether the file system of a sandbox can be mounted in the pool that the process `keeper` holds."""
    said = attempt(_POOL, str(state_dir), str(keeper))
    if said is None:
        return Check(area="jail", name="file system", status="ok", detail="one was mounted in the pool and removed")
    return Check(
        area="jail",
        name="file system",
        status="missing",
        detail=f"no sandbox can be made: {said}",
        fix="make room on the disk below (df -h), then paddock doctor --storage",
    )


def attempt(code: str, *arguments: str) -> str | None:
    """Run `code`. None, or the last line of what it says as it fails."""
    source, code = str(Path(__file__).parents[3]), f"import sys\nsys.path.insert(0, sys.argv[1])\n{code}"
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", code, source, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            env={},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return (done.stderr.strip().splitlines() or ["it died"])[-1] if done.returncode else None
