"""What a policy has a person asked for leaves through the door after a yes, as exactly that, and once."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from test_workspace_results import git, remote

from paddock import Sandbox, local
from paddock.errors import ApprovalNeededError, PolicyDeniedError
from paddock.model import (
    CreateSandbox,
    CreateSnapshot,
    DeleteSnapshot,
    DeleteWorkspace,
    DenyApproval,
    GrantApproval,
    ListApprovals,
    ListAudit,
    OpenPullRequest,
    OpenWorkspace,
    PushBranch,
    SandboxSpec,
)
from paddock.policy.egress import load
from tests.conftest import SandboxFactory

__all__ = ["remote"]
POLICY = load({"approve": ["git.push", "publish", "delete"]}).document
WIDE = load({"egress": {"allow": [{"host": "a.test"}]}}).document


@pytest.fixture
def asked(sandbox: SandboxFactory, remote: Path) -> Generator[Sandbox]:
    """Over a workspace of its name, under a policy that has a person asked for everything."""
    sandbox()
    local().perform(OpenWorkspace(name="asked", url=str(remote)))
    spec = SandboxSpec(workspace="asked", policy=POLICY)
    box = Sandbox(local().perform(CreateSandbox(spec=spec)), local())
    yield box
    box.kill()
    while True:
        try:
            return local().perform(DeleteWorkspace(workspace="asked", discard=True))
        except ApprovalNeededError as needed:
            local().perform(GrantApproval(approval=needed.details["approval"]))


def refused(action: PushBranch | DeleteWorkspace | DeleteSnapshot | OpenPullRequest) -> str:
    with pytest.raises(ApprovalNeededError) as needed:
        local().perform(action)
    return needed.value.details["approval"]


def test_a_branch_is_pushed_after_a_yes_to_what_is_there_and_once(asked: Sandbox, remote: Path) -> None:
    asked.exec("echo one > file", check=True)
    push = PushBranch(workspace="asked", branch="topic")
    id = refused(push)
    assert refused(push) == id, "one question, however often it is tried"
    (question,) = local().perform(ListApprovals(approval=id))
    assert (question.kind, question.summary) == ("git.push", f"push asked to refs/heads/topic of {remote.as_uri()}")
    local().perform(GrantApproval(approval=id))
    asked.exec("echo two > file", check=True)
    assert refused(push) != id, "it was said to something else"
    assert "topic" not in git(remote, "branch")
    asked.exec("echo one > file", check=True)
    assert local().perform(push).pushed
    assert git(remote, "show", "topic:file") == "one"
    assert not local().perform(push).pushed, "there is nothing to ask for"
    asked.exec("echo three > file", check=True)
    refused(push)
    used = [record for record in local().perform(ListAudit(tag="approval.used")) if record.detail["approval"] == id]
    assert [(record.detail["what"]["kind"], record.detail["what"]["revision"]) for record in used] == [
        ("git.push", asked.policy)
    ]


def test_a_no_is_a_no_with_its_reason(asked: Sandbox) -> None:
    asked.exec("echo one > file", check=True)
    push = PushBranch(workspace="asked", branch="topic")
    local().perform(DenyApproval(approval=refused(push), reason="not on a Friday"))
    with pytest.raises(PolicyDeniedError, match="not on a Friday"):
        local().perform(push)


def test_who_comes_later_with_a_wider_policy_takes_nothing_out_unasked(asked: Sandbox) -> None:
    asked.exec("echo one > file", check=True)
    asked.kill()
    push = PushBranch(workspace="asked", branch="topic")
    refused(push)
    other = Sandbox(local().perform(CreateSandbox(spec=SandboxSpec(workspace="asked", policy=WIDE))), local())
    with other:
        refused(push)


def test_a_pull_request_and_deletions_are_asked_for(asked: Sandbox) -> None:
    asked.exec("echo one > file", check=True)
    push = PushBranch(workspace="asked", branch="topic")
    local().perform(GrantApproval(approval=refused(push)))
    local().perform(push)
    (question,) = local().perform(ListApprovals(approval=refused(OpenPullRequest(workspace="asked", title="Mine"))))
    assert question.kind == "publish"
    assert "topic: Mine" in question.summary
    snapshot = local().perform(CreateSnapshot(sandbox=asked.id))
    delete = DeleteSnapshot(snapshot=snapshot.id)
    local().perform(GrantApproval(approval=refused(delete)))
    local().perform(delete)
    asked.kill()
    assert local().perform(ListApprovals(approval=refused(DeleteWorkspace(workspace="asked"))))[0].kind == "delete"
