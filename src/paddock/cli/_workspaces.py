"""Workspaces, each of a task: `paddock up`, `workspace` and `status`."""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator

from paddock import client, model

from . import _render
from ._answer import answer, ask, each, listing, perform
from ._usage import Verbs, argument, group, usage
from ._values import ENV, IDLE, age, mebibytes, sandbox_spec, seconds, spec

_TTL_SECONDS = 8 * 3600.0


@usage(
    argument("url", nargs="?", metavar="URL", help="of a git repository (default: an empty workspace)"),
    argument("--task", metavar="TASK", help="names workspace and sandbox (default: as repository and branch)"),
    group(
        "a new workspace",
        argument("--branch", metavar="B", help="to check out (default: the repository's own)"),
        argument("--ref", metavar="REF", help="where it begins: a branch, tag or commit (default: the tip)"),
        argument("--max-age", type=age, default=60.0, metavar="TIME", help="how long ago the tip may have been seen"),
        argument("--workspace-disk", type=mebibytes, metavar="SIZE", help="MiB, or 20g (default: 10g)"),
        argument("--submodules", action="store_true", help="fetch its submodules too, from where it says"),
    ),
    ENV,
    IDLE,
    sandbox_spec(ttl_seconds=_TTL_SECONDS, files=False),
)
def verb_up(options: argparse.Namespace) -> int:
    """Open the workspace of a task, and make or find the sandbox of the task's name with it.

    The sandbox stays until `paddock kill` or its TTL. The workspace outlives it: `paddock up --task TASK` continues
    from its files.

    Examples:
        paddock up https://example.org/app.git --branch fix --task T42
        paddock up --task T42
    """
    from ._progress import progress

    if options.url is not None and os.path.isdir(options.url):
        options.url = os.path.abspath(options.url)
    task = options.task or task_of(options.url, options.branch)
    with progress("opening the workspace"):
        workspace = client.Workspace.open(
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
    notes = (
        f"workspace {task}: {origin(workspace.info)}",
        f"sandbox {sandbox.id}{' is there already' if found else ''}; next: paddock exec {task} -- COMMAND",
    )
    if options.json:
        workspace.refresh()
    opened = {"workspace": workspace.info, "sandbox": sandbox.info, "found": found}
    return answer(options, opened, sandbox.id, notes=notes)


def _sandbox(workspace: client.Workspace, options: argparse.Namespace) -> tuple[client.Sandbox, bool]:
    """Return the one of the task's name, and whether it was there. One that was there has to have the level."""
    from paddock.errors import AlreadyExistsError, InvalidStateError

    name, level, living = workspace.name, options.level, workspace.info.sandbox
    if living is None:
        try:
            made = client.Sandbox.create(
                **spec(options),
                name=name,
                persistent=True,
                env=dict(options.env),
                workspace=workspace.id,
                idle_timeout=options.idle,
            )
        except AlreadyExistsError:
            # Another program was quicker, or a sandbox without a workspace has the name. The error then says so.
            living = workspace.refresh().sandbox
            if living is None:
                raise
        else:
            return made, False
    found = client.Sandbox.connect(living)
    if level is not None and found.level != level:
        raise InvalidStateError(
            f"the sandbox of {name} is one of level {found.level}, and one that lives keeps its level",
            hint=f"paddock kill {name} && paddock up --task {name} --level {level}: the workspace stays",
        )
    return found, True


def origin(info: model.Workspace) -> str:
    """Describe a workspace's first commit, and its age at that time."""
    if info.repository is None:
        return "no repository"
    seen = "" if info.observed_at is None else f", seen there {_render.span(time.time() - info.observed_at)} ago"
    return f"{info.repository} {info.branch} at {(info.commit or '?')[:12]}{seen}"


def task_of(url: str | None, branch: str | None) -> str:
    """Return a name for a task without one. Raises WrongUsage without a source for it."""
    from ._verbs import WrongUsage

    if url is None:
        raise WrongUsage("a workspace needs a url or a task", "paddock up --task TASK")
    last = re.split(r"[/:]", url.rstrip("/"))[-1].removesuffix(".git")
    words = (last, branch) if branch else (last,)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(words)).strip("-._")[:63]
    if not name:
        raise WrongUsage(f"{url!r} names no repository", "paddock up URL --task TASK")
    return name


_TASK = argument("workspace", metavar="TASK", help="name, id, or unique prefix of one")


@usage(
    argument("tasks", nargs="+", metavar="TASK", help="name, id, or unique prefix of one"),
    argument("--discard", action="store_true", help="lose what is nowhere else"),
)
def _remove(options: argparse.Namespace) -> int:
    """Delete workspaces. Without --discard, one with data that exists in no other place stays.

    Examples:
        paddock workspace rm T42 --discard
    """
    return each(options, options.tasks, lambda one: model.DeleteWorkspace(workspace=one, discard=options.discard))


@usage(
    _TASK,
    argument("--for", type=seconds, default=86_400.0, dest="seconds", metavar="TIME", help="how long (default: 24h)"),
)
def _pin(options: argparse.Namespace) -> int:
    """Keep a workspace from eviction."""
    return answer(options, ask(model.PinWorkspace, options))


@usage(_TASK, seconds=0.0)
def _unpin(options: argparse.Namespace) -> int:
    """Allow the eviction of a workspace again."""
    return answer(options, ask(model.PinWorkspace, options))


@usage()
def _list(options: argparse.Namespace) -> int:
    """List workspaces, those used least recently first.

    Examples:
        paddock workspace ls
    """
    found = perform(model.ListWorkspaces())
    headings = "TASK, ID, STATE, SANDBOX, REPOSITORY, BRANCH, COMMIT, USED"
    return listing(options, found, headings, _row, "no workspaces: paddock up --task NAME")


def _row(info: model.Workspace) -> tuple[str, ...]:
    pinned = info.pinned_until is not None and info.pinned_until > time.time()
    return (
        info.name,
        info.id,
        info.state + (", pinned" if pinned else ""),
        info.sandbox or "",
        info.repository or "",
        info.branch or "",
        (info.commit or "")[:12],
        f"{_render.span(time.time() - info.used_at)} ago",
    )


@usage(_TASK)
def verb_status(options: argparse.Namespace) -> int:
    """Show the data in the workspace of a task that exists in no other place, computed now in a separate sandbox.

    Examples:
        paddock status T42
    """
    from ._progress import progress

    with progress("looking at the workspace"):
        status = ask(model.InspectWorkspace, options)
    paths = [f"  {path}" for path in status.paths]
    more = status.modified + status.untracked - len(status.paths)
    if status.paths and more > 0:
        paths.append(f"  and {more} more")
    return answer(options, status, *paths, show=lambda: _render.facts(tuple(_facts(status))))


def _facts(status: model.WorkspaceStatus) -> Iterator[tuple[str, str]]:
    info = status.workspace
    yield "task", info.name
    yield "workspace", f"{info.id}, {info.state}"
    yield "began", origin(info)
    if info.sandbox is not None:
        yield "sandbox", info.sandbox
    elif info.state == "ready":
        yield "sandbox", f"none: paddock up --task {info.name}"
    if info.pinned_until is not None and info.pinned_until > time.time():
        yield "pinned", f"until {_render.when(info.pinned_until)}"
    if info.repository is not None:
        yield "head", f"{(status.head or 'none')[:12]} on {status.on or 'no branch'}"
    yield "only here", status.only_here
    if status.unreadable:
        yield "unreadable", status.unreadable


verb_workspace = Verbs(ls=_list, status=verb_status, pin=_pin, unpin=_unpin, rm=_remove)
