"""Every action there is, performed on real input at level jail: what a test of the daemon as a whole plays."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paddock.errors import ApprovalNeededError
from paddock.model import (
    AcquireRepository,
    Action,
    AddArtifact,
    AttachExec,
    CheckStorage,
    CollectGarbage,
    ConnectPort,
    CopyFile,
    CreateSandbox,
    CreateSnapshot,
    DeleteRepository,
    DeleteSnapshot,
    DeleteWorkspace,
    DenyApproval,
    Diagnose,
    DiffMount,
    DiffWorkspace,
    DownloadTree,
    ExecSpec,
    ExtendSandbox,
    FindFiles,
    ForkSandbox,
    GetArtifact,
    GetAuditKey,
    GetAuditStatement,
    GetPolicy,
    GetSandbox,
    GetUsage,
    GetWorkspace,
    GrantApproval,
    GrepFiles,
    InspectSandbox,
    InspectWorkspace,
    KillSandbox,
    Level,
    ListApprovals,
    ListArtifacts,
    ListAudit,
    ListExecs,
    ListFiles,
    ListImages,
    ListProcesses,
    ListRepositories,
    ListSandboxes,
    ListSecrets,
    ListSnapshots,
    ListTemplates,
    ListWorkspaces,
    MakeDirectory,
    Mount,
    MoveFile,
    OpenPullRequest,
    OpenWorkspace,
    PauseSandbox,
    PinWorkspace,
    PolicyDocument,
    PromoteChild,
    PromoteMount,
    PtySize,
    PullImage,
    PushBranch,
    ReadFile,
    ReadOutput,
    RemoveArtifact,
    RemoveFile,
    RemoveImage,
    RemoveSecret,
    ResumeSandbox,
    RollbackSandbox,
    RotateVaultKey,
    RunExec,
    SandboxSpec,
    SecretValue,
    SetFileAttributes,
    SetPolicy,
    SetSecret,
    SignalExec,
    StartExec,
    StartRecording,
    StatFile,
    StreamAudit,
    TakeRecording,
    UploadTree,
    VerifyAudit,
    WatchFiles,
    WriteFile,
)
from paddock.model.policy import Allow, AuditRules, CommandRule, CommandRules, EgressRules, FileRules
from tests.images.layouts import directory, layer, member, write_layout
from tests.remotes.git_host import Host

Ask = Callable[[Action[Any]], Any]

_SERVER = (
    "import socket; s = socket.create_server(('127.0.0.1', 5000)); print(flush=True); s.accept()[0].sendall(b'hi')"
)
_POLICY = PolicyDocument(
    egress=EgressRules(allow=(Allow(host="example.com"),)),
    commands=CommandRules(approve=(CommandRule(prefix=("uname",)),)),
    files=FileRules(approve=("delete",)),
    audit=AuditRules(files=True),
)


def play(ask: Ask, directory: Path, host: Host) -> None:
    """Once. `directory` is new and empty, `host` has a repository and a forge."""
    docs = directory / "docs"
    docs.mkdir()
    (docs / "a").write_text("a\n")
    mount = Mount(source=str(docs), target="/docs")
    box = _create(ask, mounts=(mount,))
    _ask_about(ask, box)
    _commands(ask, box)
    _files(ask, box)
    _mounts(ask, box)
    assert (docs / "b").read_text() == "b\n"
    _snapshots(ask, box)
    ask(KillSandbox(sandbox=box))
    _policies(ask)
    _workspaces(ask, host, directory.name)
    _images(ask, directory / "layout")
    _node(ask, box)


def _create(ask: Ask, **spec: Any) -> str:
    return ask(CreateSandbox(spec=SandboxSpec(level=Level.JAIL, ttl_seconds=600, **spec))).id


def _run(ask: Ask, box: str, *argv: str) -> None:
    result = ask(RunExec(sandbox=box, spec=ExecSpec(argv=argv)))
    assert result.ok, result


def _read(reader: Any) -> bytes:
    data = b""
    while part := reader.read():
        data += part
    reader.close()
    return data


def _ask_about(ask: Ask, box: str) -> None:
    ask(GetSandbox(sandbox=box))
    ask(ListSandboxes())
    ask(ExtendSandbox(sandbox=box, ttl_seconds=500))
    ask(GetUsage(sandbox=box))
    ask(InspectSandbox(sandbox=box))
    ask(ListProcesses(sandbox=box))


def _commands(ask: Ask, box: str) -> None:
    copies = ExecSpec(argv=("cat",), stdin=True)
    assert ask(RunExec(sandbox=box, spec=copies, input=b"x" * 100_000)).out.total_bytes == 100_000
    started = ask(StartExec(sandbox=box, spec=copies))
    started.stdin.write(b"hello")
    started.stdin.close()
    assert _read(started.stdout) == b"hello"
    started.wait()
    started.close()
    terminal = ask(StartExec(sandbox=box, spec=ExecSpec(argv=("cat",), stdin=True, pty=PtySize())))
    terminal.resize(rows=10, columns=10)
    terminal.kill()
    terminal.wait()
    terminal.close()
    sleeps = ExecSpec(argv=("sh", "-c", "echo out; sleep 1000"))
    background = ask(StartExec(sandbox=box, spec=sleeps, background=True))
    ask(ListExecs(sandbox=box))
    attached = ask(AttachExec(sandbox=box, exec=background.id))
    assert attached.stdout.read(4) == b"out\n"  # it has printed
    assert _read(ask(ReadOutput(sandbox=box, exec=background.id))) == b"out\n"
    ask(SignalExec(sandbox=box, exec=background.id, signal=15))
    attached.wait()
    attached.close()
    background.close()
    server = ask(StartExec(sandbox=box, spec=ExecSpec(argv=("python3", "-c", _SERVER))))
    server.stdout.read(1)
    port = ask(ConnectPort(sandbox=box, port=5000))
    assert port.read() == b"hi"
    port.close()
    server.wait()
    server.close()


def _files(ask: Ask, box: str) -> None:
    writer = ask(WriteFile(sandbox=box, path="/tmp/f"))
    writer.write(b"f" * 200_000)
    writer.close()
    assert len(_read(ask(ReadFile(sandbox=box, path="/tmp/f")))) == 200_000
    ask(StatFile(sandbox=box, path="/tmp/f"))
    ask(ListFiles(sandbox=box, path="/etc"))
    ask(MakeDirectory(sandbox=box, path="/tmp/d"))
    ask(CopyFile(sandbox=box, source="/tmp/f", destination="/tmp/d/g"))
    watch = ask(WatchFiles(sandbox=box, path="/tmp/d"))
    ask(MoveFile(sandbox=box, source="/tmp/d/g", destination="/tmp/d/h"))
    assert next(watch)
    watch.close()
    ask(SetFileAttributes(sandbox=box, path="/tmp/d/h", mode=0o600))
    ask(FindFiles(sandbox=box, path="/etc", name="*.conf"))
    ask(GrepFiles(sandbox=box, path="/etc", pattern="root", limit=100))
    ask(RemoveFile(sandbox=box, path="/tmp/d", recursive=True))
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for number in range(200):
            info = tarfile.TarInfo(str(number))
            info.size = 1000
            tar.addfile(info, io.BytesIO(bytes(1000)))
    tree = ask(UploadTree(sandbox=box, path="/tmp/tree"))
    tree.write(made.getvalue())
    tree.close()
    assert len(_read(ask(DownloadTree(sandbox=box, path="/tmp/tree")))) > 200_000


def _mounts(ask: Ask, box: str) -> None:
    _run(ask, box, "sh", "-c", "echo b > /docs/b; echo c >> /docs/a")
    ask(DiffMount(sandbox=box, target="/docs", patch=True))
    ask(PromoteMount(sandbox=box, target="/docs"))


def _snapshots(ask: Ask, box: str) -> None:
    snapshot = ask(CreateSnapshot(sandbox=box)).id
    ask(ListSnapshots())
    ask(RollbackSandbox(sandbox=box, snapshot=snapshot))
    (child,) = ask(ForkSandbox(sandbox=box))
    _run(ask, child.id, "touch", "/docs/new")
    ask(PromoteChild(sandbox=box, child=child.id, path="/docs"))
    ask(KillSandbox(sandbox=child.id))
    ask(PauseSandbox(sandbox=box))
    ask(ResumeSandbox(sandbox=box))
    ask(DeleteSnapshot(snapshot=snapshot))


def _policies(ask: Ask) -> None:
    ask(SetSecret(name="CI", value=SecretValue(b"a secret value")))
    ask(ListSecrets())
    ask(RotateVaultKey())
    box = _create(ask, policy=_POLICY)
    ask(SetPolicy(sandbox=box, policy=_POLICY))
    ask(GetPolicy(sandbox=box))
    ask(StartRecording(sandbox=box))
    ask(TakeRecording(sandbox=box))
    for answer in (GrantApproval, DenyApproval):
        with pytest.raises(ApprovalNeededError):
            _run(ask, box, "uname", answer.TAG)
        ask(answer(approval=ask(ListApprovals())[-1].id))
    _run(ask, box, "sh", "-c", ": > /tmp/x")
    ask(KillSandbox(sandbox=box))
    ask(RemoveSecret(name="CI"))


def _workspaces(ask: Ask, host: Host, name: str) -> None:
    repository = ask(AcquireRepository(url=host.url)).repository
    ask(ListRepositories())
    ask(OpenWorkspace(name=name, url=host.url))
    ask(GetWorkspace(workspace=name))
    ask(ListWorkspaces())
    box = _create(ask, workspace=name)
    _run(ask, box, "sh", "-c", "cd /workspace; echo new > file; echo a > artifact")
    ask(InspectWorkspace(workspace=name))
    ask(DiffWorkspace(workspace=name, patch=True))
    ask(PinWorkspace(workspace=name, seconds=60))
    ask(AddArtifact(workspace=name, path="artifact"))
    ask(ListArtifacts())
    assert _read(ask(GetArtifact(workspace=name, name="artifact"))) == b"a\n"
    ask(RemoveArtifact(workspace=name, name="artifact"))
    ask(PushBranch(workspace=name, branch=name, message="Mend it"))
    ask(OpenPullRequest(workspace=name, branch=name, title="Mend it"))
    ask(KillSandbox(sandbox=box))
    ask(PinWorkspace(workspace=name, seconds=0))
    ask(DeleteWorkspace(workspace=name, discard=True))
    ask(DeleteRepository(repository=repository))


def _images(ask: Ask, layout: Path) -> None:
    write_layout(layout, layer(directory("etc"), *(member(f"etc/{number}", b"x" * 1000) for number in range(200))))
    image = ask(PullImage(reference=f"oci:{layout}"))
    ask(ListImages())
    ask(ListTemplates())
    ask(RemoveImage(image=image.digest))


def _node(ask: Ask, box: str) -> None:
    ask(ListAudit())
    assert _read(ask(StreamAudit(last=100)))
    ask(VerifyAudit())
    ask(GetAuditKey())
    ask(GetAuditStatement(sandbox=box))
    ask(Diagnose())
    ask(CollectGarbage())
    ask(CheckStorage())
