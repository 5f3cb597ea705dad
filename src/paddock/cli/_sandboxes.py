"""Sandboxes: `paddock create`, `kill`, `pause`, `resume`, `ls`, `ps`, `fork` and `inspect`, and their snapshots:
`snapshot` and `rollback`.
"""

from __future__ import annotations

import argparse
import sys
import time

from paddock import client, model

from . import _render
from ._answer import answer, ask, each, listing
from ._usage import Verbs, argument, usage
from ._values import ENV, IDLE, SANDBOX, pair, positive, sandbox_spec, seconds, spec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SANDBOXES = argument("sandboxes", nargs="+", metavar="ID", help="id, unique prefix of one, or name")


@usage(
    argument("--name", help="a name to use in place of the id; unique among living sandboxes"),
    ENV,
    argument("--label", type=pair, action="append", default=[], metavar="NAME=VALUE", help="for your own bookkeeping"),
    argument("--nested", type=positive, default=0, metavar="N", help="let programs inside have N sandboxes at a time"),
    IDLE,
    sandbox_spec(),
)
def verb_create(options: argparse.Namespace) -> int:
    """Make a sandbox that stays until `paddock kill` or its TTL, and print its id.

    Examples:
        paddock create --name box --ttl 2h --memory 1g
    """
    from ._progress import progress

    with progress("making the sandbox"):
        sandbox = client.Sandbox.create(
            **spec(options),
            name=options.name,
            persistent=True,
            max_children=options.nested,
            env=dict(options.env),
            labels=dict(options.label),
            idle_timeout=options.idle,
        )
    if sys.stderr.isatty() and not options.json:
        _render.note(f"it ends in {_render.span(options.ttl)}: --ttl TIME makes that longer, `paddock kill` shorter")
    return answer(options, sandbox.info, sandbox.id)


def _each(options: argparse.Namespace, action: Callable[[str], model.Action[model.Sandbox]]) -> int:
    return each(options, options.sandboxes, action, lambda info: (info.id,))


@usage(SANDBOX, argument("ttl_seconds", type=seconds, metavar="TIME", help="from now on: seconds, 5m, 2h or 1d"))
def verb_extend(options: argparse.Namespace) -> int:
    """Have a sandbox end a time from now, in place of when it would have ended.

    Examples:
        paddock extend box 2h
    """
    info = ask(model.ExtendSandbox, options)
    return answer(options, info, f"{info.id} ends in {_render.span(info.expires_at - time.time())}")


@usage(_SANDBOXES)
def verb_kill(options: argparse.Namespace) -> int:
    """End sandboxes at once and for good.

    Examples:
        paddock kill box
    """
    return _each(options, lambda name: model.KillSandbox(sandbox=name))


@usage(
    _SANDBOXES,
    argument("--to-disk", action="store_true", help="give its memory back as well (a microVM can)"),
    argument("--force", action="store_true", help="also while commands run in it: they stand still with it"),
)
def verb_pause(options: argparse.Namespace) -> int:
    """Pause all processes in sandboxes until their next use.

    Examples:
        paddock pause box
    """
    return _each(options, lambda name: model.PauseSandbox(sandbox=name, to_disk=options.to_disk, force=options.force))


@usage(_SANDBOXES)
def verb_resume(options: argparse.Namespace) -> int:
    """Have paused sandboxes go on.

    Examples:
        paddock resume box
    """
    return _each(options, lambda name: model.ResumeSandbox(sandbox=name))


@usage(argument("-a", "--all", action="store_true", help="those that have ended too"))
def verb_ls(options: argparse.Namespace) -> int:
    """List the sandboxes of this machine.

    Examples:
        paddock ls --all
    """
    found = [sandbox.info for sandbox in client.Sandbox.list(ended=options.all)]
    headings = "ID, NAME, STATE, LEVEL, TEMPLATE, ENDS, WHY"
    return listing(options, found, headings, _sandbox_row, "no sandboxes: paddock create makes one")


def _sandbox_row(info: model.Sandbox) -> tuple[str, ...]:
    ends = "" if info.ended_at is not None else f"in {_render.span(info.expires_at - time.time())}"
    if info.kept_until is not None:
        ends = f"paused, kept until {_render.when(info.kept_until)[:16]}"
    why = info.reason or (str(info.limit) if info.limit else "")
    return info.id, info.spec.name or "", info.state, info.level, info.template, ends, why


_COMMAND_CHARS = 200


@usage(SANDBOX)
def verb_ps(options: argparse.Namespace) -> int:
    """List every process inside.

    The list comes from the host's kernel, so none can hide, and only the command is the process's own text. Numbers are
    the ones inside. Number 1 and its children named paddock are the guest agent's.

    Examples:
        paddock ps box
    """
    found = ask(model.ListProcesses, options)
    headings = "PID, PARENT, UID, STATE, THREADS, CPU, MEMORY, AGE, COMMAND"
    return listing(options, found, headings, _process_row, "no processes: the sandbox sleeps on disk")


def _process_row(process: model.Process) -> tuple[str, ...]:
    return (
        str(process.pid),
        str(process.parent),
        str(process.uid),
        process.state,
        str(process.threads),
        f"{process.cpu_seconds:.1f} s",
        _render.size(process.memory_bytes),
        _render.span(time.time() - process.started_at),
        " ".join(process.argv)[:_COMMAND_CHARS] or f"[{process.name}]",
    )


@usage(
    SANDBOX,
    argument("-n", "--count", type=int, default=1, metavar="N", help="how many (default: 1)"),
    argument("--ttl", type=seconds, metavar="TIME", help="they die after that (default: as the parent)"),
)
def verb_fork(options: argparse.Namespace) -> int:
    """Make sandboxes with the files of one that lives, at one instant, and print their ids. They stay until `paddock
    kill` or their TTL.

    Examples:
        paddock fork box -n 3
    """
    # The children stay, also of a parent that doesn't, because this program ends at once.
    children = ask(model.ForkSandbox, options, ttl_seconds=options.ttl, persistent=True)
    return answer(options, children, *(child.id for child in children))


@usage(SANDBOX)
def verb_inspect(options: argparse.Namespace) -> int:
    """Show a sandbox: its source, its limits and its use of them, its times, its state with the reason, and its
    isolation as the kernel shows it now. Exit code 1 if some isolation is missing.

    Examples:
        paddock inspect box --json
    """
    known = ask(model.InspectSandbox, options)
    answer(options, known, show=lambda: _tell(known))
    return 1 if any(check.status == "missing" for check in known.posture) else 0


def _tell(known: model.Inspection) -> None:
    _render.facts(tuple(_facts(known)))
    if known.posture:
        _render.line()
        rows = [(check.status, check.name, check.detail) for check in known.posture]
        _render.table(("ISOLATION", "", ""), rows, marks=[row[0] for row in rows])


def _facts(known: model.Inspection) -> Iterator[tuple[str, str]]:
    box = known.sandbox
    spec, now = box.spec, time.time()
    yield "id", box.id
    if spec.name:
        yield "name", spec.name
    yield (
        "state",
        box.state + (f": {box.reason}" if box.reason else "") + (f" ({box.limit} limit)" if box.limit else ""),
    )
    yield "level", f"{box.level}, by {box.backend}"
    yield "template", box.template
    yield "owner", model.Principal(box.owner).name
    yield "made", f"{_render.when(box.created_at)}, {_render.span(now - box.created_at)} ago"
    if box.ended_at is not None:
        yield "ended", f"{_render.when(box.ended_at)}, after {_render.span(box.ended_at - box.created_at)}"
    elif box.kept_until is not None:
        yield "kept until", f"{_render.when(box.kept_until)}, unless it is resumed before"
        yield "ttl", f"{_render.span(box.left_seconds or 0)} left when it is resumed"
    else:
        yield "ends", f"{_render.when(box.expires_at)}, in {_render.span(box.expires_at - now)}"
    yield "persistent", "yes" if spec.persistent else "no: it ends with the program that made it"
    for mount in spec.mounts:
        yield "mount", f"{mount.source} at {mount.target} ({mount.mode})"
    for name, value in spec.labels.items():
        yield "label", f"{name}={value}"
    for name in spec.env:
        yield "variable", f"{name} (its value: --json)"
    yield from _limits(known)


def _limits(known: model.Inspection) -> Iterator[tuple[str, str]]:
    limits, usage = known.sandbox.spec.limits, known.usage

    def held(name: str) -> str:
        if usage is None or name in known.enforced:
            return ""
        return "  (this machine does not enforce it: paddock doctor)"

    yield "cpus", f"{limits.cpus:g}" + (f", {usage.cpu_seconds:.1f} s used" if usage and usage.cpu_seconds else "")
    memory = _of(usage and usage.memory_bytes, limits.memory_mib << 20)
    peak = f", at most {_render.size(usage.memory_peak_bytes)}" if usage and usage.memory_peak_bytes else ""
    yield "memory", memory + peak + held("memory")
    yield "swap", _render.size(limits.swap_mib << 20)
    processes = f"{usage.processes} of " if usage and usage.processes is not None else ""
    yield "processes", f"{processes}{limits.processes}" + held("processes")
    yield "disk", _of(usage and usage.disk_bytes, limits.disk_mib << 20) + held("disk")
    yield "files", f"at most {limits.inodes}" + held("inodes")
    yield "open files", f"at most {limits.open_files} by a process"
    yield "/tmp", f"{_render.size(limits.tmp_mib << 20)}, counts as memory"  # noqa: S108 (that of the sandbox)
    yield "output", f"{_render.size(limits.output_mib << 20)} by a command"
    if usage is not None and usage.strikes:
        yield "limits exceeded", ", ".join(f"{limit} {count} times" for limit, count in usage.strikes.items())


def _of(used: int | None, most: int) -> str:
    return f"at most {_render.size(most)}" if used is None else f"{_render.size(used)} of {_render.size(most)}"


@usage(SANDBOX, argument("--name", help="a name to use in place of the id; unique among snapshots"))
def _make_snapshot(options: argparse.Namespace) -> int:
    """Keep the files of a sandbox as they are at this instant, and print the snapshot's id.

    Examples:
        paddock snapshot create box --name before
    """
    snapshot = ask(model.CreateSnapshot, options)
    return answer(options, snapshot, snapshot.id)


@usage(
    argument("directory", nargs="?", default=".", metavar="DIR", help="COPY takes files from it (default: .)"),
    argument("-f", "--file", default="Dockerfile", metavar="FILE", help="the Dockerfile in DIR (default: Dockerfile)"),
    argument("--name", help="a name to use in place of the id; an older snapshot of that name loses it"),
    argument("--build-arg", type=pair, action="append", default=[], metavar="NAME=VALUE", help="the value of an ARG"),
    sandbox_spec(ttl_seconds=3600.0, template=False, files=False),
)
def _build_snapshot(options: argparse.Namespace) -> int:
    """Build a snapshot from a Dockerfile, and print its id. It does FROM, RUN, COPY, ENV, WORKDIR, USER and ARG.

    Examples:
        paddock snapshot build . --name tools --network pypi
    """
    given = {name: value for name, value in spec(options).items() if name not in ("template", "mounts", "snapshot")}
    snapshot = client.Snapshot.build(
        options.directory,
        dockerfile=options.file,
        name=options.name,
        args=dict(options.build_arg),
        on_output=None if options.json else _render.said,
        **given,
    )
    return answer(options, snapshot.info, snapshot.id)


@usage(argument("snapshots", nargs="+", metavar="SNAPSHOT", help="id, unique prefix, or name"))
def _remove_snapshots(options: argparse.Namespace) -> int:
    """Delete snapshots."""
    return each(options, options.snapshots, lambda one: model.DeleteSnapshot(snapshot=one))


@usage(argument("sandbox", nargs="?", metavar="ID", help="only those of this sandbox"))
def _list_snapshots(options: argparse.Namespace) -> int:
    """List snapshots, oldest first."""
    found, empty = ask(model.ListSnapshots, options), "no snapshots: paddock snapshot create ID"
    return listing(options, found, "ID, NAME, OF, TEMPLATE, MADE", _snapshot_row, empty)


def _snapshot_row(one: model.Snapshot) -> tuple[str, ...]:
    return one.id, one.name or "", one.source, one.template, _render.when(one.created_at)


verb_snapshot = Verbs(create=_make_snapshot, build=_build_snapshot, ls=_list_snapshots, rm=_remove_snapshots)


@usage(SANDBOX, argument("snapshot", metavar="SNAPSHOT", help="id, unique prefix of one, or name"))
def verb_rollback(options: argparse.Namespace) -> int:
    """End all processes of a sandbox and restore the files of a snapshot. Its id stays.

    Examples:
        paddock rollback box before
    """
    info = ask(model.RollbackSandbox, options)
    return answer(options, info, info.id)
