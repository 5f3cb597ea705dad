"""What a policy says about commands and files holds at the door: judged, recorded, asked, and only then done."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from service_world import ME, Rig

from paddock.daemon.access.gateways import Gateways
from paddock.daemon.main.service import Service
from paddock.daemon.store.database import Row
from paddock.errors import ApprovalNeededError, PolicyDeniedError
from paddock.model import (
    CreateSandbox,
    DenyApproval,
    ExecSpec,
    GrantApproval,
    ListApprovals,
    MakeDirectory,
    PolicyDocument,
    RemoveFile,
    RunExec,
    Sandbox,
    SandboxSpec,
    SetPolicy,
    StartExec,
)
from paddock.model.policy import Allow, CommandRule, CommandRules, EgressRules, FileRules
from paddock.policy.network import Snapshot, compile

pytestmark = pytest.mark.anyio

RULES = CommandRules(deny=(CommandRule(prefix=("rm",)),), approve=(CommandRule(prefix=("touch",)),))
POLICY = PolicyDocument(commands=RULES, files=FileRules(protect=(".git/hooks",), approve=("delete",)))
REVISION = compile(POLICY).revision


class Open(Gateways):
    async def open(self, row: Row, snapshot: Snapshot) -> None: ...

    async def revise(self, row: Row, snapshot: Snapshot) -> None: ...

    def forget(self, row: Row) -> None: ...


@asynccontextmanager
async def held(rig: Rig, policy: PolicyDocument | None = POLICY) -> AsyncGenerator[tuple[Service, Sandbox]]:
    async with rig.service(gateways=Open) as service:
        yield service, await service.perform(CreateSandbox(spec=SandboxSpec(policy=policy)), ME)


def run(sandbox: Sandbox, *argv: str, **how: Any) -> RunExec:
    return RunExec(sandbox=sandbox.id, spec=ExecSpec(argv=argv, **how))


def records(rig: Rig, action: str) -> list[dict[str, Any]]:
    lines = (
        line for file in sorted((rig.state_dir / "audit").glob("*.jsonl")) for line in file.read_text().splitlines()
    )
    return [one for one in map(json.loads, lines) if one["action"] == action]


async def test_a_command_that_is_denied_is_not_started_and_the_rule_is_named_and_recorded(rig: Rig) -> None:
    async with held(rig) as (service, sandbox):
        for action in (
            run(sandbox, "sh", "-c", "true; rm x"),
            StartExec(sandbox=sandbox.id, spec=ExecSpec(argv=("rm",))),
        ):
            with pytest.raises(PolicyDeniedError, match=r"commands\.deny\[0\] forbids it") as refused:
                await service.perform(action, ME)
            assert refused.value.details["rule"] == "commands.deny[0]"
        assert (await service.perform(run(sandbox, "true"), ME)).exit_code == 0
    judged = [(one["allowed"], one["rule"], one["detail"]["revision"]) for one in records(rig, "policy.command")]
    assert judged == [(False, "commands.deny[0]", REVISION)] * 2 + [(True, "commands.default", REVISION)]
    asked = {
        one["seq"] for one in (*records(rig, "exec.run"), *records(rig, "exec.start")) if one["kind"] == "decision"
    }
    assert {one["detail"]["of"] for one in records(rig, "policy.command")} == asked


async def test_a_command_that_a_person_has_to_allow_is_started_once_as_exactly_that(rig: Rig) -> None:
    async with held(rig) as (service, sandbox):
        asks = run(sandbox, "touch", "x")
        with pytest.raises(ApprovalNeededError):
            await service.perform(asks, ME)
        (waiting,) = await service.perform(ListApprovals(), ME)
        assert (waiting.kind, waiting.revision, waiting.sandbox) == ("command", REVISION, sandbox.id)
        assert "touch x" in waiting.summary
        await service.perform(GrantApproval(approval=waiting.id), ME)
        for other in (
            run(sandbox, "touch", "y"),
            run(sandbox, "touch", "x", env={"A": "b"}),
            run(sandbox, "touch", "x", cwd="/tmp"),
        ):
            with pytest.raises(ApprovalNeededError):
                await service.perform(other, ME)
        # by its name or a prefix it is the same sandbox
        assert (await service.perform(RunExec(sandbox=sandbox.id[:10], spec=asks.spec), ME)).exit_code == 0
        with pytest.raises(ApprovalNeededError):
            await service.perform(asks, ME)
    assert [one["allowed"] for one in records(rig, "policy.command")] == [False, False, False, False, True, False]


async def test_a_no_is_a_no_and_another_revision_asks_anew(rig: Rig) -> None:
    async with held(rig) as (service, sandbox):
        with pytest.raises(ApprovalNeededError):
            await service.perform(run(sandbox, "touch", "x"), ME)
        (waiting,) = await service.perform(ListApprovals(), ME)
        await service.perform(DenyApproval(approval=waiting.id, reason="no"), ME)
        with pytest.raises(PolicyDeniedError, match="somebody said no"):
            await service.perform(run(sandbox, "touch", "x"), ME)
        changed = PolicyDocument(commands=CommandRules(approve=RULES.approve), files=POLICY.files)
        await service.perform(SetPolicy(sandbox=sandbox.id, policy=changed), ME)
        with pytest.raises(ApprovalNeededError):
            await service.perform(run(sandbox, "touch", "x"), ME)


async def test_a_protected_file_is_left_alone_and_a_deletion_is_asked_for(rig: Rig) -> None:
    async with held(rig) as (service, sandbox):
        for action in (
            MakeDirectory(sandbox=sandbox.id, path="src/../.git/hooks/x"),
            RemoveFile(sandbox=sandbox.id, path=".git", recursive=True),
        ):
            with pytest.raises(PolicyDeniedError, match=r"files\.protect\[0\]"):
                await service.perform(action, ME)
        with pytest.raises(ApprovalNeededError):
            await service.perform(RemoveFile(sandbox=sandbox.id, path="x"), ME)
        (waiting,) = await service.perform(ListApprovals(), ME)
        assert (waiting.kind, waiting.instance_id) == ("file", 0)
    assert [one["rule"] for one in records(rig, "policy.file")] == ["files.protect[0]"] * 2 + ["files.approve"]


async def test_without_such_rules_nothing_is_judged(rig: Rig) -> None:
    async with held(rig, PolicyDocument()) as (service, sandbox):
        await service.perform(run(sandbox, "true"), ME)
    assert records(rig, "policy.command") == records(rig, "policy.file") == []


async def test_a_command_is_told_of_the_policy_s_own_index_unless_its_caller_says_else(rig: Rig) -> None:
    policy = PolicyDocument(egress=EgressRules(allow=(Allow(registry="pypi", index="https://pypi.corp.test/simple"),)))
    async with held(rig, policy) as (service, sandbox):
        for env, said in (({}, b"https://pypi.corp.test/simple"), ({"PIP_INDEX_URL": "mine"}, b"mine")):
            result = await service.perform(run(sandbox, "sh", "-c", "printf %s $PIP_INDEX_URL", env=env), ME)
            assert result.out.head + result.out.tail == said
