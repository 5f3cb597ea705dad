"""Workspaces at the door: who has one, who may write it, and what is left of it when services die half-way.

How files are kept and laid out again is copied here; `tests/workspaces` does it for real.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from service_world import ME, Rig, put, until

from paddock.daemon.main.service import Service
from paddock.daemon.store.database import WorkspaceArchive, WorkspaceRow
from paddock.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    InvalidStateError,
    NotFoundError,
    PlatformError,
    SandboxDiedError,
)
from paddock.model import (
    CollectGarbage,
    CreateSandbox,
    DeleteWorkspace,
    GetWorkspace,
    InspectWorkspace,
    KillSandbox,
    ListWorkspaces,
    OpenWorkspace,
    PinWorkspace,
    RunExec,
    Sandbox,
    SandboxSpec,
    State,
    Workspace,
    WorkspaceState,
    WorkspaceStatus,
)
from paddock.model.exec import ExecSpec
from paddock.storage.pool.kept import KeptArchives


class CopiedKeeping:
    """Keeping, with the folders of the rig's pool. `trip` is called at each of its steps."""

    def __init__(self, rig: Rig, archives: KeptArchives) -> None:
        self._pool, self.archives = rig.state_dir / "pool", archives
        self.trip: Callable[[str], None] = lambda step: None
        self.looked = 0

    async def status(self, row: WorkspaceRow, entry: object) -> WorkspaceStatus:
        self.looked += 1
        files = sorted(path.name for path in (self._pool / row.id).iterdir())
        return WorkspaceStatus(workspace=row.workspace, untracked=len(files), paths=tuple(files))

    async def archive(self, row: WorkspaceRow) -> WorkspaceArchive:
        status = await self.status(row, None)
        self.trip("keep")
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as tar:
            tar.add(self._pool / row.id, arcname=".")
        with self.archives.writing(row.id, 1 << 30) as archive:
            archive.write(content.getvalue()[:100])
            self.trip("half kept")
            await asyncio.sleep(0)
            archive.write(content.getvalue()[100:])
        self.trip("kept")
        return WorkspaceArchive(archive.digest, archive.size, status)

    async def extract(self, row: WorkspaceRow, entry: object) -> None:
        assert row.kept is not None
        self.archives.check(row.id, row.kept.digest)
        self.trip("lay")
        with tarfile.open(fileobj=io.BytesIO(b"".join(self.archives.reading(row.id, 1000)))) as tar:
            tar.extractall(self._pool / row.id)
        self.trip("laid")


def keeping_of(service: Service, rig: Rig) -> CopiedKeeping:
    workspaces = workspaces_of(service)
    workspaces._archiver = keeping = CopiedKeeping(rig, workspaces._archiver.archives)  # type: ignore[assignment]
    return keeping


def workspaces_of(service: Service) -> Any:
    return service.workspaces


def over(reference: str, **rest: Any) -> CreateSandbox:
    return CreateSandbox(spec=SandboxSpec(workspace=reference, **rest))


def folder(rig: Rig, workspace: Workspace) -> Path:
    return rig.state_dir / "pool" / workspace.id


async def test_g2_a_path_is_an_opaque_id_and_no_two_keys_share_one(rig: Rig) -> None:
    async with rig.service() as service:
        names = ("a_b", "a", "b_c", "A_b")
        made = [await service.perform(OpenWorkspace(name=name), ME) for name in names]
        assert len({one.id for one in made}) == len(names)
        assert set(rig.pool.names()) == {one.id for one in made}
        again = [await service.perform(OpenWorkspace(name=name), ME) for name in names]
        assert [one.id for one in again] == [one.id for one in made]
        assert not any(one.name in one.id for one in made if len(one.name) > 1)
        for name in ("../x", "a/b", "sb_x", "ws_x", "", "-x"):
            with pytest.raises(InvalidArgumentError):
                await service.perform(OpenWorkspace(name=name), ME)


async def test_one_is_found_by_id_prefix_and_name_by_its_owner_alone(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(OpenWorkspace(name="task"), ME)
        for reference in ("task", made.id, made.id[:-2]):
            assert (await service.perform(GetWorkspace(workspace=reference), ME)).id == made.id
        with pytest.raises(NotFoundError):
            workspaces_of(service).find("task", "local:99")
        with pytest.raises(InvalidStateError, match="has disk_mib 10240, not 5"):
            await service.perform(OpenWorkspace(name="task", disk_mib=5), ME)


async def test_g7_one_living_sandbox_writes_it_and_the_next_needs_the_first_dead(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(OpenWorkspace(name="task"), ME)
        first = await service.perform(over("task"), ME)
        assert rig.world.places[first.id].plan.trees[0].tree == made.id
        with pytest.raises(InvalidStateError, match=f"sandbox {first.id} has workspace 'task'"):
            await service.perform(over(made.id), ME)
        with pytest.raises(InvalidStateError, match="only one may write it"):
            await service.perform(DeleteWorkspace(workspace="task", discard=True), ME)
        await service.perform(KillSandbox(sandbox=first.id), ME)
        assert (await service.perform(GetWorkspace(workspace="task"), ME)).sandbox is None
        second = await service.perform(over("task"), ME)
        now = await service.perform(GetWorkspace(workspace="task"), ME)
        assert (now.sandbox, now.epoch) == (second.id, 2)


async def test_g7_what_believes_in_an_epoch_that_has_passed_is_refused(rig: Rig) -> None:
    async with rig.service() as service:
        await service.perform(OpenWorkspace(name="task"), ME)
        first = await service.perform(over("task"), ME)
        believed = (await service.perform(GetWorkspace(workspace="task"), ME)).epoch
        await service.perform(KillSandbox(sandbox=first.id), ME)
        second = await service.perform(over("task"), ME)
        await service.perform(KillSandbox(sandbox=second.id), ME)
        with pytest.raises(InvalidStateError, match="another sandbox has had it since"):
            await service.perform(DeleteWorkspace(workspace="task", discard=True, epoch=believed), ME)
        with pytest.raises(SandboxDiedError, match="paddock up --task"):
            await service.perform(RunExec(sandbox=first.id, spec=ExecSpec(argv=("true",))), ME)
        await service.perform(DeleteWorkspace(workspace="task", discard=True, epoch=believed + 1), ME)
        await until(lambda: rig.pool.names() == ())


async def test_g7_of_many_that_want_it_at_once_one_gets_it(rig: Rig) -> None:
    async with rig.service() as service:
        await service.perform(OpenWorkspace(name="task"), ME)
        asked = [service.perform(over("task"), ME) for service in (service, service) for _ in range(5)]
        got = await asyncio.gather(*asked, return_exceptions=True)
        assert sorted(type(service).__name__ for service in got) == ["InvalidStateError"] * 9 + ["Sandbox"]
        assert (await service.perform(GetWorkspace(workspace="task"), ME)).epoch == 1


async def test_g7_the_lease_is_taken_with_the_row_or_not_at_all(rig: Rig) -> None:
    async with rig.service() as service:
        await service.perform(OpenWorkspace(name="task"), ME)
        await service.perform(CreateSandbox(spec=SandboxSpec(name="taken")), ME)
        with pytest.raises(AlreadyExistsError):
            await service.perform(over("task", name="taken"), ME)
        rig.world.before_create = _fail
        with pytest.raises(PlatformError):
            await service.perform(over("task"), ME)
        rig.world.before_create = None
        now = await service.perform(GetWorkspace(workspace="task"), ME)
        assert (now.sandbox, now.epoch) == (None, 1), "it was given once, and that one never lived"
        await service.perform(over("task"), ME)


async def test_g7_what_is_recorded_as_dead_and_lives_is_dead_before_the_next_has_it(rig: Rig) -> None:
    async with rig.service() as service:
        await service.perform(OpenWorkspace(name="task"), ME)
        first = await service.perform(over("task"), ME)
        put(service, first.id, State.FAILED, ended_at=1.0, reason="said a bug")
        assert rig.world.places[first.id].ended is None
        second = await service.perform(over("task"), ME)
        assert first.id not in rig.world.places
        assert second.state is State.RUNNING


async def test_the_same_idempotency_key_is_the_same_sandbox_over_it(rig: Rig) -> None:
    async with rig.service() as service:
        await service.perform(OpenWorkspace(name="task"), ME)
        action = CreateSandbox(spec=SandboxSpec(workspace="task"), idempotency_key="k")
        first = await service.perform(action, ME)
        assert (await service.perform(action, ME)).id == first.id


async def test_the_end_of_its_sandbox_names_the_way_back(rig: Rig) -> None:
    async with rig.service() as service:
        await service.perform(OpenWorkspace(name="T42"), ME)
        with pytest.raises(NotFoundError, match="paddock up --task T42"):
            await service.perform(KillSandbox(sandbox="T42"), ME)
        await service.perform(over("T42", name="T42"), ME)
        await service.perform(KillSandbox(sandbox="T42"), ME)
        with pytest.raises(SandboxDiedError, match="its workspace lives on: paddock up --task T42"):
            await service.perform(RunExec(sandbox="T42", spec=ExecSpec(argv=("true",))), ME)


async def test_g5_a_delete_is_refused_while_anything_is_only_here(rig: Rig) -> None:
    async with rig.service() as service:
        keeping_of(service, rig)
        made = await service.perform(OpenWorkspace(name="task"), ME)
        (folder(rig, made) / "work").write_text("mine")
        with pytest.raises(InvalidStateError, match="1 untracked file: work"):
            await service.perform(DeleteWorkspace(workspace="task"), ME)
        assert (folder(rig, made) / "work").read_text() == "mine"
        await workspaces_of(service).evict(made.id)
        with pytest.raises(InvalidStateError, match="1 untracked file: work"):
            await service.perform(DeleteWorkspace(workspace="task"), ME)
        await service.perform(OpenWorkspace(name="task"), ME)
        assert (folder(rig, made) / "work").read_text() == "mine"
        (folder(rig, made) / "work").unlink()
        await service.perform(DeleteWorkspace(workspace="task"), ME)
        assert await service.perform(ListWorkspaces(), ME) == ()
        assert (rig.pool.names(), _archives(rig)) == ((), [])


async def test_g6_the_tree_goes_after_its_work_is_on_the_disk_and_comes_back(rig: Rig) -> None:
    async with rig.service() as service:
        keeping = keeping_of(service, rig)
        made = await service.perform(OpenWorkspace(name="task"), ME)
        (folder(rig, made) / "work").write_text("mine")
        keeping.trip = lambda step: _there(folder(rig, made) / "work")
        await workspaces_of(service).evict(made.id)
        evicted = await service.perform(GetWorkspace(workspace="task"), ME)
        assert (evicted.state, rig.pool.names(), _archives(rig)) == (WorkspaceState.EVICTED, (), [made.id])
        assert (await service.perform(InspectWorkspace(workspace="task"), ME)).untracked == 1
        keeping.trip = lambda step: None
        sandbox = await service.perform(over("task"), ME)
        assert sandbox.state is State.RUNNING
        assert (folder(rig, made) / "work").read_text() == "mine"
        assert _archives(rig) == []


@pytest.mark.parametrize("step", ["keep", "half kept", "kept"])
async def test_g6_what_cannot_be_kept_stays(rig: Rig, step: str) -> None:
    async with rig.service() as service:
        keeping = keeping_of(service, rig)
        made = await service.perform(OpenWorkspace(name="task"), ME)
        (folder(rig, made) / "work").write_text("mine")
        keeping.trip = _failing_at(step)
        with pytest.raises(PlatformError, match="no room"):
            await workspaces_of(service).evict(made.id)
        now = await service.perform(GetWorkspace(workspace="task"), ME)
        assert now.state is WorkspaceState.READY
        assert (folder(rig, made) / "work").read_text() == "mine"
        keeping.trip = lambda step: None
        await service.perform(over("task"), ME)


@pytest.mark.parametrize("step", ["lay", "laid"])
async def test_what_cannot_be_laid_out_again_is_still_kept(rig: Rig, step: str) -> None:
    async with rig.service() as service:
        keeping = keeping_of(service, rig)
        made = await service.perform(OpenWorkspace(name="task"), ME)
        (folder(rig, made) / "work").write_text("mine")
        await workspaces_of(service).evict(made.id)
        keeping.trip = _failing_at(step)
        with pytest.raises(PlatformError, match="no room"):
            await service.perform(OpenWorkspace(name="task"), ME)
        assert (rig.pool.names(), _archives(rig)) == ((), [made.id])
        keeping.trip = lambda step: None
        await service.perform(OpenWorkspace(name="task"), ME)
        assert (folder(rig, made) / "work").read_text() == "mine"


async def test_an_archive_that_was_changed_is_not_laid_out(rig: Rig) -> None:
    async with rig.service() as service:
        keeping_of(service, rig)
        made = await service.perform(OpenWorkspace(name="task"), ME)
        (folder(rig, made) / "work").write_text("mine")
        await workspaces_of(service).evict(made.id)
        path = rig.state_dir / "kept" / made.id
        path.write_bytes(path.read_bytes().replace(b"mine", b"thei"))
        with pytest.raises(PlatformError, match="is damaged"):
            await service.perform(OpenWorkspace(name="task"), ME)
        assert path.exists()


DIED_IN = [
    (WorkspaceState.MAKING, False, None),
    (WorkspaceState.MAKING, True, None),
    (WorkspaceState.EVICTING, True, "mine"),
    (WorkspaceState.RESTORING, False, "mine"),
    (WorkspaceState.RESTORING, True, "mine"),
    (WorkspaceState.DELETING, True, None),
    (WorkspaceState.DELETING, False, None),
]


@pytest.mark.parametrize(("state", "tree", "content"), DIED_IN)
async def test_g8_what_a_dead_daemon_has_left_is_put_right(
    rig: Rig, state: WorkspaceState, tree: bool, content: str | None
) -> None:
    async with rig.service() as service:
        keeping_of(service, rig)
        made = await service.perform(OpenWorkspace(name="task"), ME)
        (folder(rig, made) / "work").write_text("mine")
        if state is WorkspaceState.RESTORING:
            await workspaces_of(service).evict(made.id)
            if tree:
                folder(rig, made).mkdir()
                (folder(rig, made) / "half").write_text("")
        elif not tree:
            shutil.rmtree(folder(rig, made))
        if state is WorkspaceState.EVICTING:
            (rig.state_dir / "kept").mkdir()
            (rig.state_dir / "kept" / f"{made.id}.part").write_text("half")
        service.store.execute("UPDATE workspaces SET state = ?", (state.value,))
    async with rig.service() as service:
        keeping_of(service, rig)
        assert [one.state for one in await service.perform(ListWorkspaces(), ME)] in (
            ([WorkspaceState.READY], [WorkspaceState.EVICTED]) if content else ([],)
        )
        now = await service.perform(OpenWorkspace(name="task"), ME)
        assert (now.id == made.id) is (content is not None)
        assert [path.read_text() for path in folder(rig, now).iterdir()] == ([content] if content else [])
        await service.recovery.sweep()
        assert (rig.pool.names(), _archives(rig)) == ((now.id,), [])


async def test_g8_a_tree_that_outlived_its_eviction_goes(rig: Rig) -> None:
    async with rig.service() as service:
        keeping_of(service, rig)
        made = await service.perform(OpenWorkspace(name="task"), ME)
        (folder(rig, made) / "work").write_text("mine")
        delete, rig.pool.delete = rig.pool.delete, _fail  # type: ignore[method-assign]
        with pytest.raises(PlatformError):
            await workspaces_of(service).evict(made.id)
        rig.pool.delete = delete  # type: ignore[method-assign]
        assert rig.pool.names() == (made.id,)
        await service.recovery.sweep()
        assert (rig.pool.names(), _archives(rig)) == ((), [made.id])


async def test_a_caller_that_leaves_takes_nothing_with_it(rig: Rig) -> None:
    async with rig.service() as service:
        keeping = keeping_of(service, rig)
        made = await service.perform(OpenWorkspace(name="task"), ME)
        (folder(rig, made) / "work").write_text("mine")
        evicting = asyncio.ensure_future(workspaces_of(service).evict(made.id))
        keeping.trip = lambda step: step == "half kept" and evicting.cancel()  # type: ignore[assignment]
        with pytest.raises(asyncio.CancelledError):
            await evicting
        now = await service.perform(GetWorkspace(workspace="task"), ME)
        assert (now.state, _archives(rig)) == (WorkspaceState.READY, [])
        assert (folder(rig, made) / "work").read_text() == "mine"


async def test_what_goes_first_is_clean_then_old_and_never_what_is_held_or_pinned(rig: Rig) -> None:
    async with rig.service() as service:
        keeping_of(service, rig)
        made = {}
        for name in ("old", "dirty", "new", "held", "pinned"):
            made[name] = await service.perform(OpenWorkspace(name=name), ME)
        (folder(rig, made["dirty"]) / "work").write_text("mine")
        await service.perform(over("held"), ME)
        await service.perform(PinWorkspace(workspace="pinned", seconds=60), ME)
        for age, name in enumerate(("new", "dirty", "old")):
            service.store.execute("UPDATE workspaces SET used_at = ? WHERE name = ?", (1000.0 - age, name))
        rig.pool.used_bytes = 1 << 40
        found = await workspaces_of(service).candidates()
        names = [item.why.partition(":")[0].removeprefix("workspace ") for item in found]
        assert [item.kept is None for item in found] == [True, True, True, False, False]
        assert names[:3] == ["old", "new", "dirty"]
        assert ["nothing is only here" in item.why for item in found[:3]] == [True, True, False]
        assert set(names[3:]) == {"held", "pinned"}
        for name, why in (("held", "has workspace"), ("pinned", "pinned for")):
            with pytest.raises(InvalidStateError, match=why):
                await workspaces_of(service).evict(made[name].id)
        await service.perform(PinWorkspace(workspace="pinned", seconds=0), ME)
        await workspaces_of(service).evict(made["pinned"].id)


async def test_a_full_pool_evicts_workspaces_and_says_why(rig: Rig) -> None:
    async with rig.service() as service:
        keeping = keeping_of(service, rig)
        made = await service.perform(OpenWorkspace(name="task"), ME)
        (folder(rig, made) / "work").write_text("mine")
        keeping.looked = 0
        (item,) = [
            item for item in (await service.perform(CollectGarbage(dry_run=True), ME)).items if item.what == made.id
        ]
        assert (item.kind, item.why) == ("workspace", "workspace task: not used for 0 min")
        assert "the pool is" in (item.kept_because or "")
        assert keeping.looked == 0, "with room in the pool, none is looked into"
        rig.pool.used_bytes = 1 << 40
        collector = workspaces_of(service)
        (candidate,) = await collector.candidates()
        assert "keeps 1 untracked file" in candidate.why
        assert keeping.looked == 1
        assert await candidate.take(candidate.what) is None
        assert any(b"workspace.evicted" in path.read_bytes() for path in (rig.state_dir / "audit").rglob("*.jsonl"))
        assert (rig.pool.names(), _archives(rig)) == ((), [made.id])
        await service.perform(OpenWorkspace(name="task"), ME)
        assert (folder(rig, made) / "work").read_text() == "mine"


MOVES = st.lists(
    st.tuples(st.sampled_from(["open", "up", "kill", "write", "evict", "die", "sweep", "delete"]), st.integers(0, 5)),
    max_size=14,
)


@settings(max_examples=25)
@given(MOVES)
@example([("sweep", 1), ("die", 2)])
def test_whatever_happens_every_byte_is_found_again(tmp_path_factory: pytest.TempPathFactory, moves: Any) -> None:
    asyncio.run(_interleave(Rig(tmp_path_factory.mktemp("rig") / "state"), moves))


async def _interleave(rig: Rig, moves: list[tuple[str, int]]) -> None:
    """One workspace; `wanted` is what has to be in it."""
    wanted: dict[str, str] = {}
    sandbox: Sandbox | None = None
    async with rig.service() as service:
        keeping = keeping_of(service, rig)
        made = await service.perform(OpenWorkspace(name="task"), ME)
        for number, (move, choice) in enumerate(moves):
            match move:
                case "open":
                    assert (await service.perform(OpenWorkspace(name="task"), ME)).id == made.id
                case "up":
                    if sandbox is None:
                        sandbox = await service.perform(over("task"), ME)
                    else:
                        with pytest.raises(InvalidStateError):
                            await service.perform(over("task"), ME)
                case "kill" if sandbox is not None:
                    await service.perform(KillSandbox(sandbox=sandbox.id), ME)
                    sandbox = None
                case "write" if sandbox is not None:
                    wanted[f"f{choice}"] = f"{number}"
                    (folder(rig, made) / f"f{choice}").write_text(f"{number}")
                case "evict" | "die":
                    if move == "die":
                        keeping.trip = _failing_at(("keep", "half kept", "kept", "lay", "laid")[choice % 5])
                    with _either(InvalidStateError, PlatformError):
                        await workspaces_of(service).evict(made.id)
                    with _either(PlatformError):
                        await service.perform(OpenWorkspace(name="task"), ME)
                    keeping.trip = lambda step: None
                case "sweep":
                    await service.recovery.sweep()
                case "delete":
                    with _either(InvalidStateError):
                        await service.perform(DeleteWorkspace(workspace="task"), ME)
                        assert not wanted
                        made = await service.perform(OpenWorkspace(name="task"), ME)
                case _:
                    pass
        await service.perform(OpenWorkspace(name="task"), ME)
        found = {path.name: path.read_text() for path in folder(rig, made).iterdir()}
        assert found == wanted
        await service.recovery.sweep()
        assert [name for name in rig.pool.names() if name.startswith("ws_")] == [made.id]
        assert _archives(rig) == []
        await rig.aclose()


def _either(*kinds: type[Exception]) -> Any:
    import contextlib

    return contextlib.suppress(*kinds)


def _archives(rig: Rig) -> list[str]:
    kept = rig.state_dir / "kept"
    return sorted(path.name for path in kept.iterdir()) if kept.exists() else []


def _there(path: Path) -> None:
    assert path.exists()


def _fail(*_: object) -> None:
    raise PlatformError("no room")


def _failing_at(wanted: str) -> Callable[[str], None]:
    def trip(step: str) -> None:
        if step == wanted:
            _fail()

    return trip
