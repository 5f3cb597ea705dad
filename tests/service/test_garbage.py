"""What nobody needs goes, and nothing that anything needs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from service_world import ME, FolderPool, Rig

from paddock.daemon.main.service import Service
from paddock.daemon.store.database import Store
from paddock.daemon.store.references import TreeReference, trees_needed
from paddock.daemon.upkeep.garbage import Candidate, Collector, Storage
from paddock.daemon.workspaces import _bases
from paddock.errors import PlatformError
from paddock.model import (
    CheckStorage,
    CollectGarbage,
    CreateSandbox,
    CreateSnapshot,
    KillSandbox,
    Level,
    PoolSpace,
    Sandbox,
    SandboxSpec,
    Template,
)
from paddock.supervisor.layout import PACKAGES
from tests.stand_ins import HOST, OneTemplate

ORPHANS = ("sb_0000000000000000", "sb_0000000000000000_w", "sn_0000000000000000", "sn_0000000000000000_w")


class Versions(OneTemplate):
    """`tp_host` is an old version, `tp_new` the one that would be built; `used` are those that other programs use."""

    def __init__(self, pool: FolderPool) -> None:
        self._pool, self.used = pool, {"tp_used"}

    def versions(self) -> frozenset[str]:
        return frozenset({"tp_new"})

    def is_version(self, tree: str) -> bool:
        return tree.startswith(("tp_", "tb_"))

    def discard(self, tree: str) -> bool:
        if tree in self.used:
            return False
        self._pool.delete(tree)
        return True


async def test_a_dry_run_says_what_would_go_and_why_and_the_next_run_does_it(rig: Rig) -> None:
    async with rig.service() as service:
        kept = await service.perform(CreateSandbox(), ME)
        snapshot = await service.perform(CreateSnapshot(sandbox=kept.id), ME)
        needed = {kept.id, f"{kept.id}_w", snapshot.id, f"{snapshot.id}_w", "xx_somebody_elses"}
        for name in (*ORPHANS, f"{kept.id}_w", f"{snapshot.id}_w", "xx_somebody_elses"):
            rig.pool.create(name)
        before = rig.pool.names()
        dry = await service.perform(CollectGarbage(dry_run=True), ME)
        assert rig.pool.names() == before
        assert {item.what for item in dry.items if item.kept_because is None} == set(ORPHANS)
        assert all(item.kind == "orphan" and item.why for item in dry.items)
        report = await service.perform(CollectGarbage(), ME)
        assert report.items == dry.items
        assert set(rig.pool.names()) == needed


async def test_the_sweep_takes_orphans_and_no_workspace_of_what_lives(rig: Rig) -> None:
    async with rig.service() as service:
        kept = await service.perform(CreateSandbox(), ME)
        for name in (*ORPHANS, f"{kept.id}_w"):
            rig.pool.create(name)
        await service.recovery.sweep()
        assert set(rig.pool.names()) == {kept.id, f"{kept.id}_w"}


async def test_a_version_of_a_template_goes_when_nothing_lies_over_it_any_more(rig: Rig) -> None:
    templates = Versions(rig.pool)
    async with rig.service(templates=templates) as service:
        made = await service.perform(CreateSandbox(spec=SandboxSpec(persistent=True)), ME)
        snapshot = await service.perform(CreateSnapshot(sandbox=made.id), ME)
    for name in (*HOST.layers, "tp_new", "tp_old", "tp_used", "tb_begun"):
        rig.pool.create(name)
    async with rig.service(templates=templates) as service:  # one that has never heard of the old version
        report = await service.perform(CollectGarbage(), ME)
        kept = {item.what: item.kept_because or "" for item in report.items if item.kept_because}
        assert set(kept) == {"tp_host", "tp_used"}
        assert made.id in kept["tp_host"] or snapshot.id in kept["tp_host"]
        await service.perform(KillSandbox(sandbox=made.id), ME)
        await service.perform(CollectGarbage(), ME)
        assert set(rig.pool.names()) == {snapshot.id, "tp_host", "tp_new", "tp_used"}, "the snapshot lies over it"
        await service.snapshots._remove(snapshot.id)
        await service.perform(CollectGarbage(), ME)
        assert set(rig.pool.names()) == {"tp_new", "tp_used"}


class OneVersion(Versions):
    """`tree` is the version to be had."""

    def __init__(self, pool: FolderPool, tree: str) -> None:
        super().__init__(pool)
        self.tree = tree

    def get(self, name: str, progress: object = None) -> Template:
        return msgspec.structs.replace(HOST, layers=(self.tree,))

    def is_version(self, tree: str) -> bool:
        return super().is_version(tree) and not tree.startswith("tp_oci_")


class OneImage:
    """It is here, and nobody who lives has its tree locked."""

    def __init__(self, pool: FolderPool, tree: str) -> None:
        self._pool, self._tree = pool, tree

    def trees(self) -> dict[str, str]:
        return {self._tree: "debian"}

    def discard(self, tree: str) -> bool:
        self._pool.delete(tree)
        return True


@pytest.mark.parametrize("tree", ["tp_old", "tp_oci_layer_1"])
async def test_what_is_taken_into_use_while_it_is_looked_at_stays(
    rig: Rig, tree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tp_new", tree):
        rig.pool.create(name)
    rig.pool.used_bytes = 10 << 40  # images go only where room is wanted
    loop, made = asyncio.get_running_loop(), list[Sandbox]()

    async def create() -> None:  # of what it found when `tree` was the version to be had
        versions.tree = tree
        made.append(await service.perform(CreateSandbox(spec=SandboxSpec(persistent=True)), ME))
        versions.tree = "tp_new"

    measured = rig.pool.measure

    def measure(name: str) -> int:
        if name == tree and not made:
            asyncio.run_coroutine_threadsafe(create(), loop).result(60)
        return measured(name)

    monkeypatch.setattr(rig.pool, "measure", measure)
    versions, image = OneVersion(rig.pool, "tp_new"), OneImage(rig.pool, tree)
    async with rig.service(templates=versions, images=lambda: image) as service:
        report = await service.perform(CollectGarbage(), ME)
        kept = {item.what: item.kept_because or "" for item in report.items}
        assert kept[tree].startswith(f"{made[0].id} needs it")
        assert tree in rig.pool.names()


@pytest.mark.parametrize("way", ["collected", "forgotten"])
async def test_nobody_comes_to_lie_over_a_base_between_the_last_look_and_its_end(
    rig: Rig, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = "bs_0000000000000000"
    async with rig.service() as service:
        columns = "id, repository, commit_id, branch, is_whole, created_at, used_at"
        sql = f"INSERT INTO bases ({columns}) VALUES (?, 'rp_1', 'c', 'b', 1, 0, 0)"
        service.store.execute(sql, (base,))
        rig.pool.create(base)
        bases, left = service.repositories.bases, list[tuple[object, ...]]()

        def looks(store: Store) -> Mapping[str, tuple[TreeReference, ...]]:
            asyncio.get_running_loop().call_soon(lambda: left.append(bases.of("rp_1")))  # whoever runs next
            return trees_needed(store)

        monkeypatch.setattr(_bases, "trees_needed", looks)
        if way == "collected":
            (one,) = await bases.candidates()
            left.clear()
            assert await one.take(one.what) is None
        else:
            discard = bases.forget("rp_1")
            await asyncio.sleep(0)
            discard()
        assert left == [()]
        assert base not in rig.pool.names()
        assert bases.of("rp_1") == ()


async def test_a_sandbox_that_does_not_say_what_it_lies_over_keeps_every_version(rig: Rig) -> None:
    async with rig.service(templates=Versions(rig.pool)) as service:
        made = await service.perform(CreateSandbox(), ME)
        service.store.execute("UPDATE sandboxes SET layers = '[]'", ())
        rig.pool.create("tp_old")
        report = await service.perform(CollectGarbage(), ME)
        assert [made.id in (item.kept_because or "") for item in report.items] == [True]
        assert "tp_old" in rig.pool.names()


async def test_what_walls_are_made_of_stays_while_one_stands(rig: Rig) -> None:
    async with rig.service(templates=Versions(rig.pool), level=Level.MICROVM) as service:
        made = await service.perform(CreateSandbox(spec=SandboxSpec(level=Level.MICROVM)), ME)
        for name in ("tp_kit_machine_old", "tp_old"):
            rig.pool.create(name)
        report = await service.perform(CollectGarbage(), ME)
        kept = {item.what: item.kept_because or "" for item in report.items if item.kept_because}
        assert made.id in kept["tp_kit_machine_old"]
        assert "tp_old" not in rig.pool.names()
        await service.perform(KillSandbox(sandbox=made.id), ME)
        await service.perform(CollectGarbage(), ME)
        assert "tp_kit_machine_old" not in rig.pool.names()


async def test_a_template_in_use_is_kept_in_a_dry_run_too(rig: Rig) -> None:
    async with rig.service(templates=Versions(rig.pool)) as service:
        rig.pool.create("tp_kit_machine_new")
        rig.pool.in_use.add("tp_kit_machine_new")
        for dry_run in (True, False):
            report = await service.perform(CollectGarbage(dry_run=dry_run), ME)
            assert [item.kept_because for item in report.items] == ["the daemon has used it since its start"]


async def test_a_tree_that_this_daemon_uses_is_no_orphan(rig: Rig) -> None:
    async with rig.service() as service:
        rig.pool.create("wv_waits")
        rig.pool.in_use.add("wv_waits")
        await service.perform(CollectGarbage(), ME)
        assert rig.pool.names() == ("wv_waits",)
        rig.pool.in_use.clear()  # as in the daemon after this one
        await service.perform(CollectGarbage(), ME)
        assert rig.pool.names() == ()


async def test_only_one_collects_at_a_time(rig: Rig) -> None:
    async with rig.service() as service:
        rig.pool.create(ORPHANS[0])
        async with service.garbage._alone:
            collecting = [asyncio.ensure_future(service.perform(CollectGarbage(), ME)) for _ in range(2)]
            await service.perform(CollectGarbage(dry_run=True), ME)
            assert rig.pool.names() == (ORPHANS[0],)
        first, second = await asyncio.gather(*collecting)
        assert rig.pool.names() == ()
        assert [len(report.items) for report in (first, second)] == [1, 0], "not both take it"


class Things:
    """A collector of things of ten bytes each."""

    def __init__(self, kind: str, number: int, *, only_when_full: bool = True) -> None:
        self.left = [f"{kind}{n}" for n in range(number)]
        self._kind, self._full = kind, only_when_full
        self.refused = "nobody"

    async def candidates(self) -> Sequence[Candidate]:
        full, why = self._full, "it is old"
        return [Candidate(one, self._kind, why, 10, self._take, only_when_full=full) for one in self.left]

    async def _take(self, what: str) -> None:
        if what == self.refused:
            raise PlatformError("it will not go")
        self.left.remove(what)


class Filled(FolderPool):
    """Of a hundred bytes."""

    def space(self) -> PoolSpace:
        return PoolSpace(used_bytes=self.used_bytes, available_bytes=100 - self.used_bytes)


async def test_above_the_high_mark_what_can_be_had_again_goes_in_order_until_the_low_mark(rig: Rig) -> None:
    pool = Filled(rig.state_dir / "filled")
    bases, workspaces = Things("base", 2), Things("workspace", 9)
    garbage = alone(pool, collectors=(bases.candidates, workspaces.candidates))
    pool.used_bytes = 90
    report = await garbage.collect(dry_run=False)
    assert (len(bases.left), len(workspaces.left)) == (2, 9), "at the high mark, not above it"
    assert all("90%" in (item.kept_because or "") for item in report.items)
    pool.used_bytes = 99
    await garbage.collect(dry_run=True)
    assert (len(bases.left), len(workspaces.left)) == (2, 9)
    await garbage.sweep()
    assert (bases.left, workspaces.left) == ([], [f"workspace{n}" for n in range(1, 9)]), "69 is below the low mark"


def alone(pool: FolderPool, *, sweepers: tuple[Collector, ...] = (), collectors: tuple[Collector, ...] = ()) -> Storage:
    """The collection alone, of a pool without a service."""
    made = Storage.__new__(Storage)
    made._pool, made._alone = lambda: pool, asyncio.Lock()
    made._sweepers, made._collectors = sweepers, collectors  # type: ignore[assignment]
    return made


async def test_with_enough_available_nothing_goes_that_can_be_had_again(rig: Rig) -> None:
    class Large(FolderPool):
        def space(self) -> PoolSpace:
            return PoolSpace(used_bytes=99 << 40, available_bytes=1 << 40)

    pool, things = Large(rig.state_dir / "large"), Things("workspace", 3)
    await alone(pool, collectors=(things.candidates,)).sweep()
    assert len(things.left) == 3


async def test_what_will_not_go_is_said_and_keeps_no_other(rig: Rig) -> None:
    pool = Filled(rig.state_dir / "filled")
    things = Things("base", 3, only_when_full=False)
    things.refused = "base1"
    report = await alone(pool, sweepers=(things.candidates,)).collect(dry_run=False)
    assert [item.kept_because for item in report.items] == [None, "it will not go", None]
    assert things.left == ["base1"]


async def test_trees_and_records_that_do_not_agree_are_named_with_a_remedy(rig: Rig) -> None:
    async with rig.service() as service:
        kept, lost = [await service.perform(CreateSandbox(), ME) for _ in range(2)]
        rig.pool.create(HOST.layers[0])
        checks = await service.perform(CheckStorage(), ME)
        assert {check.name: check.status for check in checks if check.name in ("trees", "records")} == {
            "trees": "ok",
            "records": "ok",
        }
        rig.pool.delete(lost.id)
        rig.pool.create(ORPHANS[0])
        rig.pool.create("xx_strange")
        found = {check.name: check for check in await service.perform(CheckStorage(), ME)}
        assert found["trees"].status == found["records"].status == "missing"
        assert all(name in found["trees"].detail for name in (ORPHANS[0], "xx_strange"))
        assert lost.id in found["records"].detail
        assert kept.id not in found["records"].detail
        assert found["trees"].fix
        assert found["records"].fix
        await service.perform(CheckStorage(repair=True), ME)
        assert ORPHANS[0] not in rig.pool.names()
        assert "xx_strange" in rig.pool.names()


async def test_a_collection_beside_creates_takes_nothing_of_theirs(rig: Rig) -> None:
    async def collect(service: Service) -> None:
        for _ in range(30):
            report = await service.perform(CollectGarbage(), ME)
            assert [item for item in report.items if item.kind == "orphan"] == []

    async def make(service: Service) -> set[str]:
        made = [await service.perform(CreateSandbox(), ME) for _ in range(10)]
        shots = [await service.perform(CreateSnapshot(sandbox=one.id), ME) for one in made]
        return {one.id for one in (*made, *shots)}

    async with rig.service() as service:
        made, _ = await asyncio.gather(make(service), collect(service))
        assert set(rig.pool.names()) == made


async def test_the_package_cache_is_told_of_and_stays(rig: Rig) -> None:
    async with rig.service() as service:
        assert (await service.perform(CollectGarbage(), ME)).items == ()
        cache = rig.state_dir / PACKAGES
        cache.mkdir(exist_ok=True)
        (cache / "wheel").write_bytes(b"x" * 5000)
        (item,) = (await service.perform(CollectGarbage(), ME)).items
        assert (item.kind, item.bytes, item.kept_because is None) == ("packages", 5000, False)
        assert (cache / "wheel").exists()
