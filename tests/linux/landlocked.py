"""A process that puts Landlock on as pid 1 of a jail does for its agents (`native/jail.c`)."""

from __future__ import annotations

import os
import struct

from paddock.linux import landlock
from paddock.linux.syscall import call

_PATH_BENEATH = 1


def restrict(abi: int) -> None:
    """The ruleset of a sandbox, for a kernel of version `abi`."""
    ruleset = landlock.ruleset(abi)
    assert ruleset is not None
    rules = call("landlock_create_ruleset", ruleset.attributes, len(ruleset.attributes), 0, what="ruleset")
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    rule = struct.pack("=Qi", ruleset.below_root, root)
    call("landlock_add_rule", rules, _PATH_BENEATH, rule, 0, what="rule")
    landlock.restrict_self(rules)
    os.close(root)
    os.close(rules)
