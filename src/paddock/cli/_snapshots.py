"""Snapshots: `paddock snapshot`, `snapshots` and `rollback`."""

from __future__ import annotations

import argparse

from paddock import model

from . import _render
from ._answer import answer, listing, perform
from ._values import add_json, add_sandbox


def add_snapshot(parser: argparse.ArgumentParser) -> None:
    parser.description = "Keeps the files of a sandbox as they are at this instant, and prints the snapshot's id."
    add_sandbox(parser)
    parser.add_argument("--name", help="another way to say which; unique among snapshots")
    add_json(parser, snapshot)


def snapshot(options: argparse.Namespace) -> int:
    snapshot = perform(model.CreateSnapshot(sandbox=options.sandbox, name=options.name))
    return answer(options, snapshot, lambda: _render.line(snapshot.id))


def add_snapshots(parser: argparse.ArgumentParser) -> None:
    parser.description = "Lists snapshots, oldest first; with --delete, deletes those that are named."
    parser.add_argument("sandbox", nargs="?", metavar="ID", help="only those of this sandbox")
    parser.add_argument("--delete", nargs="+", default=[], metavar="SNAPSHOT", help="id, unique prefix, or name")
    add_json(parser, snapshots)


def snapshots(options: argparse.Namespace) -> int:
    for snapshot in options.delete:
        perform(model.DeleteSnapshot(snapshot=snapshot))
    if options.delete:
        return 0
    found = perform(model.ListSnapshots(sandbox=options.sandbox))
    headings = ("ID", "NAME", "OF", "TEMPLATE", "MADE")
    return listing(
        options,
        found,
        headings,
        lambda one: (one.id, one.name or "", one.source, one.template, _render.when(one.created_at)),
    )


def add_rollback(parser: argparse.ArgumentParser) -> None:
    parser.description = "Ends all processes of a sandbox and takes its files back to a snapshot; its id stays."
    add_sandbox(parser)
    parser.add_argument("snapshot", metavar="SNAPSHOT", help="id, unique prefix of one, or name")
    add_json(parser, rollback)


def rollback(options: argparse.Namespace) -> int:
    info = perform(model.RollbackSandbox(sandbox=options.sandbox, snapshot=options.snapshot))
    return answer(options, info, lambda: _render.line(info.id))
