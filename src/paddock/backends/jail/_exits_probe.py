"""Whether sandboxes can have a gateway for their only way out here: tried, in a namespace that is gone afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from paddock.model import Check

_TRY = (
    "import sys;sys.path.insert(0,sys.argv[1]);"
    "from paddock.keeper import _exit_rules;from paddock.linux import namespaces,netlink,nft,routes;"
    "namespaces.unshare(namespaces.NEWUSER|namespaces.NEWNET);netlink.set_loopback_up();"
    "nft.load(_exit_rules.rules());routes.keep_everything(version_6=False)"
)
_SECONDS = 20


def check() -> Check:
    """A line for `doctor`."""
    source = str(Path(__file__).parents[3])
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRY, source],
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
            env={},
        )
        said = done.stderr.strip().splitlines()[-1] if done.returncode else None
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
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
