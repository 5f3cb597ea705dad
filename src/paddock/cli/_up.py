"""`paddock up`: the workspace of a task, and a sandbox over it."""

from __future__ import annotations

import argparse
import os
import re
import time
from typing import TYPE_CHECKING

from . import _render
from ._values import add_idle, add_json, add_spec, age, limits, mebibytes, pair

if TYPE_CHECKING:
    from paddock import Sandbox, Workspace
    from paddock.model import Workspace as WorkspaceInfo

_TTL_SECONDS = 8 * 3600.0


def add(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Opens the workspace of a task, and makes or finds the sandbox of the task's name over it, which stays until"
        " `paddock kill` or its TTL. The workspace outlives it: `paddock up --task TASK` goes on where it was left."
    )
    parser.add_argument("url", nargs="?", metavar="URL", help="of a git repository (default: an empty workspace)")
    parser.add_argument(
        "--task", metavar="TASK", help="names workspace and sandbox (default: as repository and branch)"
    )
    group = parser.add_argument_group("a new workspace")
    group.add_argument("--branch", metavar="B", help="to check out (default: the repository's own)")
    group.add_argument("--ref", metavar="REF", help="where it begins: a branch, tag or commit (default: the tip)")
    group.add_argument(
        "--max-age", type=age, default=60.0, metavar="TIME", help="how long ago the tip may have been seen"
    )
    group.add_argument("--workspace-disk", type=mebibytes, metavar="SIZE", help="MiB, or 20g (default: 10g)")
    group.add_argument("--submodules", action="store_true", help="fetch its submodules too, from where it says")
    parser.add_argument("--env", type=pair, action="append", default=[], metavar="NAME=VALUE")
    add_idle(parser)
    add_spec(parser, ttl_seconds=_TTL_SECONDS, files=False)
    add_json(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    from paddock import Workspace

    from ._progress import progress

    if options.url is not None and os.path.isdir(options.url):
        options.url = os.path.abspath(options.url)
    task = options.task or task_of(options.url, options.branch)
    with progress("opening the workspace"):
        workspace = Workspace.open(
            task,
            url=options.url,
            branch=options.branch,
            ref=options.ref,
            max_age_seconds=options.max_age,
            disk_mib=options.workspace_disk,
            submodules=options.submodules,
        )
    with progress("making the sandbox"):
        sandbox, found = _sandbox(workspace, options)
    if options.json:
        _render.document({"workspace": workspace.refresh(), "sandbox": sandbox.info, "found": found})
        return 0
    _render.note(f"workspace {task}: {origin(workspace.info)}")
    _render.note(f"sandbox {sandbox.id}{' is there already' if found else ''}; next: paddock exec {task} -- COMMAND")
    _render.line(sandbox.id)
    return 0


def _sandbox(workspace: Workspace, options: argparse.Namespace) -> tuple[Sandbox, bool]:
    """The one of the task's name, and whether it was there."""
    from paddock import Sandbox
    from paddock.errors import AlreadyExists

    living = workspace.info.sandbox
    if living is not None:
        return _at_level(Sandbox.connect(living), workspace, options.level), True
    try:
        made = Sandbox.create(
            options.template,
            level=options.level,
            name=workspace.name,
            ttl_seconds=options.ttl,
            persistent=True,
            limits=limits(options),
            env=dict(options.env),
            workspace=workspace.id,
            policy=options.policy,
            idle_seconds=options.idle,
        )
    except AlreadyExists:
        # Somebody was quicker; or a sandbox without a workspace has the name, which is then said.
        living = workspace.refresh().sandbox
        if living is None:
            raise
        return _at_level(Sandbox.connect(living), workspace, options.level), True
    return made, False


def _at_level(found: Sandbox, workspace: Workspace, level: str | None) -> Sandbox:
    """A level that was named is that one or an error, also where there is a sandbox already."""
    from paddock.errors import InvalidState

    if level is not None and found.level != level:
        name = workspace.name
        raise InvalidState(
            f"the sandbox of {name} is one of level {found.level}, and one that lives keeps its level",
            hint=f"paddock kill {name} && paddock up --task {name} --level {level}: the workspace stays",
        )
    return found


def origin(info: WorkspaceInfo) -> str:
    """Where a workspace began, and how old that was when it did."""
    if info.repository is None:
        return "no repository"
    seen = "" if info.observed_at is None else f", seen there {_age(info.observed_at)} ago"
    return f"{info.repository} {info.branch} at {(info.commit or '?')[:12]}{seen}"


def task_of(url: str | None, branch: str | None) -> str:
    """A name for a task that was given none. WrongUsage where there is nothing to name it after."""
    from ._verbs import WrongUsage

    if url is None:
        raise WrongUsage("a workspace needs a url or a task", "paddock up --task TASK")
    last = re.split(r"[/:]", url.rstrip("/"))[-1].removesuffix(".git")
    words = (last, branch) if branch else (last,)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(words)).strip("-._")[:63]
    if not name:
        raise WrongUsage(f"{url!r} names no repository", "paddock up URL --task TASK")
    return name


def _age(at: float) -> str:
    return _render.span(time.time() - at)
