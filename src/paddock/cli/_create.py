"""`paddock create`: a sandbox that outlives this program, for `exec`, `cp` and `kill`."""

from __future__ import annotations

import argparse

from . import _render
from ._values import add_idle, add_json, add_spec, limits, mounts, pair, positive


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = "Makes a sandbox that stays until `paddock kill` or its TTL, and prints its id."
    parser.add_argument("--name", help="another way to say which; unique among the living")
    parser.add_argument("--env", type=pair, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--label", type=pair, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--nested", type=positive, default=0, metavar="N", help="programs inside may have N children of it at a time"
    )
    add_idle(parser)
    add_spec(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock import Sandbox

    from ._progress import progress

    with progress("making the sandbox"):
        sandbox = Sandbox.create(
            options.template,
            level=options.level,
            name=options.name,
            ttl_seconds=options.ttl,
            persistent=True,
            limits=limits(options),
            mounts=mounts(options),
            snapshot=options.snapshot,
            nested=options.nested,
            env=dict(options.env),
            labels=dict(options.label),
            policy=options.policy,
            idle_seconds=options.idle,
        )
    if options.json:
        _render.document(sandbox.info)
    else:
        _render.line(sandbox.id)
    return 0
