from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from service_world import ME, Rig, put

from paddock.errors import FileError, InvalidArgumentError, InvalidStateError, PolicyDeniedError, UnrecordedError
from paddock.model import (
    LEGAL,
    CreateSandbox,
    Diagnose,
    GetSandbox,
    ListSandboxes,
    Principal,
    ReadFile,
    RunExec,
    SecretValue,
    State,
    StatFile,
    VerifyAudit,
    WriteFile,
)
from paddock.model.any_action import BY_TAG
from paddock.model.exec import ExecSpec
from paddock.policy import Policy


def records(rig: Rig) -> list[dict[str, Any]]:
    lines = [line for p in sorted((rig.state_dir / "audit").glob("*.jsonl")) for line in p.read_text().splitlines()]
    return [json.loads(line) for line in lines]


async def test_every_action_has_a_decision_and_one_outcome(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        await service.perform(RunExec(sandbox=made.id, spec=ExecSpec(argv=("true",))), ME)
        with pytest.raises(FileError):
            await service.perform(StatFile(sandbox=made.id, path="/none"), ME)
    told = [(r["kind"], r["action"], r.get("ok"), r.get("error")) for r in records(rig) if r["kind"] != "event"]
    assert told == [
        ("decision", "sandbox.create", None, None),
        ("outcome", "sandbox.create", True, None),
        ("decision", "exec.run", None, None),
        ("outcome", "exec.run", True, None),
        ("decision", "file.stat", None, None),
        ("outcome", "file.stat", False, "file"),
    ]


async def test_what_is_denied_is_recorded_and_not_done(rig: Rig) -> None:
    async with rig.service() as service:
        with pytest.raises(PolicyDeniedError, match="no rule allows this"):
            await service.perform(CreateSandbox(), Principal("local:99999"))
    denied = [r for r in records(rig) if r["kind"] == "decision"]
    assert [r["allowed"] for r in denied] == [False]
    assert rig.world.creates == 0


async def test_a_service_without_rules_does_nothing(rig: Rig) -> None:
    async with rig.service(policy=Policy()) as service:
        for kind in BY_TAG.values():
            with pytest.raises(PolicyDeniedError):
                await service.perform(_some(kind), ME)


async def test_what_cannot_be_recorded_is_not_done(rig: Rig) -> None:
    async with rig.service() as service:
        service._audit.close()
        with pytest.raises(UnrecordedError):
            await service.perform(CreateSandbox(), ME)
        assert rig.world.creates == 0
        assert service.store.list(ended=True) == ()


async def test_every_action_of_the_union_is_answered(rig: Rig) -> None:
    """With a world that knows few verbs: what matters is that each arrives at a handler."""
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        for kind in BY_TAG.values():
            if kind in (CreateSandbox,):
                continue
            result = await asyncio.gather(service.perform(_some(kind, made.id), ME), return_exceptions=True)
            assert not isinstance(result[0], (AssertionError, TypeError)), (kind, result)


async def test_files_flow_past_the_door_with_their_digest_in_the_record(rig: Rig) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        writer = await service.perform(WriteFile(sandbox=made.id, path="/a"), ME)
        await writer.write(b"con")
        await writer.write(b"tents")
        info = await writer.aclose()
        assert info is not None
        assert info.size_bytes == 8
        reader = await service.perform(ReadFile(sandbox=made.id, path="/a"), ME)
        assert await reader.read() + await reader.read() == b"contents"
        await reader.aclose()
    content = [
        r["detail"]["content"] for r in records(rig) if r["kind"] == "outcome" and r["action"].startswith("file")
    ]
    assert content[0] == content[1]
    named = {r.get("sandbox") for r in records(rig) if r["kind"] == "outcome"}
    assert named == {made.id}
    assert content[0]["length"] == 8


@pytest.mark.parametrize(
    "action",
    [
        ReadFile(sandbox="x", path=""),
        ReadFile(sandbox="x", path="a\0b"),
        ReadFile(sandbox="x", path="/a", offset=-1),
    ],
)
async def test_a_file_action_that_makes_no_sense_is_refused(rig: Rig, action: ReadFile) -> None:
    async with rig.service() as service:
        with pytest.raises(InvalidArgumentError):
            await service.perform(action, ME)


async def test_the_log_of_a_living_service_verifies(rig: Rig) -> None:
    async with rig.service() as service:
        for _ in range(5):
            await service.perform(ListSandboxes(), ME)
        report = await service.perform(VerifyAudit(), ME)
        assert report.ok
        assert report.segments == 1


async def test_doctor_tells_level_backends_audit_and_state(rig: Rig) -> None:
    async with rig.service() as service:
        diagnosis = await service.perform(Diagnose(), ME)
        assert diagnosis.default_level == "jail"
        assert {c.area for c in diagnosis.checks} >= {"backend", "audit", "state"}
        rig.world.refusal = "no"
    async with rig.service() as service:
        (level,) = (await service.perform(Diagnose(), ME)).levels
        assert (level.level, level.status, level.detail) == ("jail", "missing", "no")


@pytest.mark.parametrize("start", State)
@pytest.mark.parametrize("to", State)
async def test_only_legal_moves_change_a_state(rig: Rig, start: State, to: State) -> None:
    async with rig.service() as service:
        made = await service.perform(CreateSandbox(), ME)
        seen = service.store.get(made.id)  # which is old by the time it is used
        assert seen is not None
        put(service, made.id, start)
        if to in LEGAL[start]:
            moved = service.store.move(seen, to)
            assert moved.state is to
            assert moved == service.store.get(made.id)
            assert (moved.sandbox.ended_at is not None) is (not LEGAL[to])
        else:
            with pytest.raises(InvalidStateError):
                service.store.move(seen, to)


async def test_a_closed_service_says_so(rig: Rig) -> None:
    async with rig.service() as service:
        await service.aclose()
        await service.aclose()
        with pytest.raises(UnrecordedError, match="closed"):
            await service.perform(GetSandbox(sandbox="x"), ME)
        with pytest.raises(InvalidStateError):
            await service.__aenter__()


def _some(kind: Any, sandbox: str = "x") -> Any:
    fills: dict[str, Any] = {
        "sandbox": sandbox,
        "spec": ExecSpec(argv=("true",)),
        "exec": "ex_none",
        "signal": 15,
        "ttl_seconds": 60.0,
        "port": 80,
        "pattern": "x",
        "snapshot": "sn_none",
        "repository": "rp_none",
        "reference": "oci:/nope",
        "image": "sha256:0000000",
        "url": "ext::sh",
        "child": "x",
        "name": "task",
        "workspace": "x",
        "seconds": 0.0,
        "title": "x",
        "value": SecretValue(b"of a test"),
        "approval": "ap_none",
    }
    required = [f for f in kind.__fields__ if f in (*fills, "path", "source", "destination")]
    if kind is CreateSandbox:
        return kind()
    return kind(**{f: fills.get(f, "/nope") for f in required})
