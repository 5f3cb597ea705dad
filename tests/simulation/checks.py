"""What must be true when all is quiet: the model of sessions, recovery and the order of verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from paddock.policy.network import Snapshot

if TYPE_CHECKING:
    from .history import History

SLACK_SECONDS = 30.0
"""Of a TTL, which goes on while it is woken from disk."""
LIVING = ("creating", "restoring", "running", "paused")
AFTER_BIRTH = ("its pid 1 has ended",)
"""Why one fails that has run."""


def check(history: History, told: list[dict[str, Any]]) -> None:
    world = history.world
    rows = {row["id"]: row for row in told}
    _states(history, rows)
    _leftovers(history, rows)
    _sessions(history, rows)
    _ends(history, rows)
    _once(history, rows)
    _whole(history, rows)
    _files(history, rows)
    _workspaces(history)
    _policies(history, rows)
    world.note("checked", len(rows))


def _database(history: History, sql: str) -> list[tuple[Any, ...]]:
    return history.world.disk.db.execute(sql).fetchall()


def _states(history: History, rows: dict[str, dict[str, Any]]) -> None:
    """What is recorded is what lives."""
    world = history.world
    asleep = {id for (id,) in _database(history, "SELECT id FROM sandboxes WHERE restoring IS NOT NULL")}
    deadlines = dict(_database(history, "SELECT id, deadline FROM sandboxes"))
    states = dict(_database(history, "SELECT id, state FROM sandboxes"))
    for id, row in rows.items():
        place = world.supervisor.places.get(id)  # pyright: ignore[reportArgumentType]
        lives = place is not None and place.ended is None
        if (place is not None and place.changed >= history.looked) or states[id] != row["state"]:
            continue  # by itself, while it was looked at
        match row["state"]:
            case "creating" | "restoring":
                world.violate(f"{id} is still {row['state']} when all is quiet")
            case "running" | "paused" if not lives and not (row["state"] == "paused" and id in asleep):
                world.violate(f"{id} is {row['state']}, and does not live")
            case "running" | "paused" if lives:
                assert place is not None
                if id in asleep:
                    world.violate(f"{id} sleeps on disk, and lives")
                elif place.paused is not (row["state"] == "paused"):
                    world.violate(f"{id} is {row['state']}, and stands still: {place.paused}")
                elif abs(place.deadline - deadlines[id]) > 1:
                    world.violate(f"{id} ends at {place.deadline:.1f}, and {deadlines[id]:.1f} is recorded")
                if place.freezes:
                    world.violate(f"{id} is frozen when all is quiet")
            case "killed" | "failed" if lives:
                world.violate(f"{id} is {row['state']}, and lives")
            case _:
                pass


def _now(history: History, id: str) -> dict[str, Any]:
    ((state, ended_at),) = _database(history, f"SELECT state, ended_at FROM sandboxes WHERE id = '{id}'")
    return {"state": state, "ended_at": ended_at}


def _leftovers(history: History, rows: dict[str, dict[str, Any]]) -> None:
    """Nothing that no row names, and nothing named that isn't there."""
    world = history.world
    recent = history.world.wall() - 2 * history.period
    rows = {id: {**row, **_now(history, id)} for id, row in rows.items()}
    fresh = {id for id, row in rows.items() if (row.get("ended_at") or 0.0) > recent}
    living = {id for id, row in rows.items() if row["state"] in LIVING}
    for id, place in world.supervisor.places.items():
        if place.ended is None and id not in living:
            world.violate(f"{id} lives, and no row says so")
        elif place.ended is not None and id not in living and id not in fresh:
            world.violate(f"the end of {id} was never forgotten")
    snapshots = dict(_database(history, "SELECT id, is_whole FROM snapshots"))
    asleep = dict(_database(history, "SELECT id, restoring FROM sandboxes WHERE restoring IS NOT NULL"))
    workspaces = {id for (id,) in _database(history, "SELECT id FROM workspaces")}
    for tree in world.trees:
        name = tree.removesuffix("_w")
        if tree == "tp_host" or tree in workspaces:
            continue
        if name not in living and name not in snapshots and name not in fresh:
            world.violate(f"the tree {name} belongs to nobody")
    for id in living:
        if id not in world.trees:
            world.violate(f"{id} has no tree")
        if id in asleep and asleep[id] not in world.trees:
            world.violate(f"{id} sleeps on {asleep[id]}, which is gone")
    for id, whole in snapshots.items():
        if not whole:
            world.violate(f"the snapshot {id} is still being made")
        elif id not in world.trees:
            world.violate(f"the snapshot {id} has no tree")
        elif world.trees[id].torn:
            world.violate(f"the snapshot {id} was copied while its sandbox ran")


def _sessions(history: History, rows: dict[str, dict[str, Any]]) -> None:
    """What isn't persistent ends with its last session."""
    for id, row in rows.items():
        if row["spec"].get("persistent") or row["state"] not in LIVING:
            continue
        box = history.boxes.get(id)
        owners = set() if box is None else box.owners | box.may_own
        if (maker := history.makers.get(row["spec"].get("labels", {}).get("request"))) is not None:
            owners.add(maker)
        owners |= history.forkers.get(row.get("origin"), set())
        if not any(owner.lives for owner in owners):
            history.world.violate(f"{id} outlives the programs that made it or connected to it")


def _ends(history: History, rows: dict[str, dict[str, Any]]) -> None:
    """Each has a cause, and the record says which."""
    world = history.world
    for id, row in rows.items():
        if row["state"] in LIVING:
            continue
        box, reason = history.boxes.get(id), row.get("reason") or ""
        if row.get("ended_at") is None or not reason:
            world.violate(f"{id} has ended, and its record says neither when nor why")
        if box is None:
            continue  # its maker was never told of it
        may_end = box.may_end_with_session or all(owner.was_cut or not owner.lives for owner in box.owners)
        allowed = (
            (box.killed and reason.startswith("killed by"))
            or ((box.killed or may_end) and reason == "killed")
            or (row.get("limit") in ("ttl", "retention"))
            or (box.crashed and reason == "its pid 1 has ended")
            or (not box.persistent and may_end and reason == "the program that made it ended")
            or (box.rollbacks and reason.startswith("rollback failed"))
        )
        if not allowed:
            world.violate(f"{id} has ended, and nobody asked for it: {row['state']}, {reason}")
        ran, ttl = world.supervisor.ran.get(id, 0.0), row["spec"].get("ttl_seconds", 300.0)
        slack = SLACK_SECONDS + world.suspended
        if row.get("limit") == "ttl" and ran < ttl - slack and not box.was_extended and not box.rollbacks:
            world.violate(f"{id} has ended by its TTL of {ttl:.0f} s, and has run for {ran:.0f} s")
    told: dict[str, int] = {}
    for name, fields in world.events:
        if name == "sandbox.ended":
            told[fields["sandbox"]] = told.get(fields["sandbox"], 0) + 1
    for id, times in told.items():
        if times > world.generation:  # a daemon that could not write the row leaves the end to the next one
            world.violate(f"the end of {id} was recorded {times} times")


def _once(history: History, rows: dict[str, dict[str, Any]]) -> None:
    """No verb happened twice."""
    made: dict[str, list[str]] = {}
    for id, row in rows.items():
        tag = row["spec"].get("labels", {}).get("request")
        is_undone = row["state"] == "failed" or (id not in history.boxes and row["state"] == "killed")
        if tag in history.makers and row.get("origin") is None and not is_undone:
            made.setdefault(tag, []).append(id)
    for tag, ids in made.items():
        if len(ids) > 1:
            history.world.violate(f"the request {tag} made {ids}")


def _whole(history: History, rows: dict[str, dict[str, Any]]) -> None:
    """A fork has made all of its children, or none."""
    for ttl, count in history.forks.items():
        children = {id: row for id, row in rows.items() if row.get("origin") and row["spec"].get("ttl_seconds") == ttl}
        if any(
            row["state"] == "killed" and not row.get("limit") and id not in history.boxes
            for id, row in children.items()
        ):
            continue  # undone by a recovery that died before it could record why, or ended with its program
        unborn = [row for row in children.values() if row["state"] == "failed" and row.get("reason") not in AFTER_BIRTH]
        if len(children) - len(unborn) not in (0, count):
            history.world.violate(f"a fork of {count} has made {len(children) - len(unborn)}")


def _files(history: History, rows: dict[str, dict[str, Any]]) -> None:
    """Acknowledged writes are there, unless a rollback was asked for since."""
    world = history.world
    for id, box in history.boxes.items():
        tree = world.trees.get(id)
        if id not in rows or rows[id]["state"] not in LIVING or tree is None:
            continue
        if not box.writes <= tree.writes:
            world.violate(f"{id} has lost {sorted(box.writes - tree.writes)}")
        if tree.torn:
            world.violate(f"{id} was copied while its source ran")


def _workspaces(history: History) -> None:
    """Each is whole, and has what was acknowledged, whoever wrote it."""
    world = history.world
    states = dict(_database(history, "SELECT id, state FROM workspaces"))
    for id, state in states.items():
        if state != "ready":
            world.violate(f"the workspace {id} is {state} when all is quiet")
        elif id not in world.trees:
            world.violate(f"the workspace {id} has no tree")
        elif world.trees[id].torn:
            world.violate(f"the workspace {id} was copied while a sandbox wrote it")
    for id, task in history.tasks.items():
        if id not in states and not task.is_deleted:
            world.violate(f"the workspace {id} is gone, and nobody deleted it")
        elif id in world.trees and not task.writes <= world.trees[id].writes:
            world.violate(f"the workspace {id} has lost {sorted(task.writes - world.trees[id].writes)}")


def _policies(history: History, rows: dict[str, dict[str, Any]]) -> None:
    """The gateway lets out what is recorded, and nothing else."""
    world = history.world
    for id, (_, snapshot) in world.gateway.doors.items():
        row = rows.get(id)
        if row is None or row["state"] not in LIVING:
            if row is None or row["ended_at"] < world.wall() - 2 * history.period:
                world.violate(f"{id} has ended, and may go out")
            continue
        holds = Snapshot.from_bytes(snapshot)
        if row.get("policy") is None:
            if msgspec.to_builtins(holds.document).get("egress", {}).get("allow"):
                world.violate(f"{id} has no policy, and may go out")
        elif row["policy"] != holds.revision:
            world.violate(f"{id} has the policy {row['policy']}, and {holds.revision} holds")
    if not world.gateway.lives or history.disk_was_full:
        return  # on a full disk a policy may be recorded that nobody could take back: then nothing gets out
    for id, row in rows.items():
        place = world.supervisor.places.get(id)  # pyright: ignore[reportArgumentType]
        lives = place is not None and place.ended is None  # else the daemon is about to hear of its end
        runs = lives and row["state"] == "running" == _now(history, id)["state"]
        if runs and row.get("policy") is not None and id not in world.gateway.doors:
            world.violate(f"{id} has a policy, and no way out")
