"""Every action there is, as a program asks for it: what a test plays that kills processes meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.images.layouts import directory, layer, member, write_layout
from tests.repositories.git_servers import Origin

POLICY = {
    "egress": {"allow": [{"host": "example.com"}]},
    "commands": {"approve": [{"prefix": ["uname"]}]},
}


@dataclass(frozen=True)
class Verb:
    """The expression `act` performs these actions while two processes die. `before` runs first, in the same program.

    `local` is a directory of the test's, into which `prepare` has put what the verb takes.
    """

    actions: str
    act: str
    before: str = ""
    prepare: Callable[[Path], object] | None = None
    acknowledged: str = "true"
    """A command that succeeds in the sandbox once the client has its answer."""
    needs: str = ""
    """A "mount" of `local`, or a "workspace" of that host's repository, with the sandbox's name."""


def _tree(local: Path) -> None:
    (local / "tree").mkdir()
    for number in range(200):
        (local / "tree" / str(number)).write_bytes(bytes(1000))


def _repository(local: Path) -> None:
    Origin(local / "origin").commit({"README": local.name})


def _image(local: Path) -> None:
    write_layout(local / "layout", layer(directory("etc"), member("etc/name", str(local).encode())))


_READS = (
    *("GetSandbox(sandbox=box.id)", "ListSandboxes()", "GetUsage(sandbox=box.id)", "InspectSandbox(sandbox=box.id)"),
    *("ListProcesses(sandbox=box.id)", "ListExecs(sandbox=box.id)", "ListSnapshots()", "GetPolicy(sandbox=box.id)"),
    *("StatFile(sandbox=box.id, path='/etc')", "ListFiles(sandbox=box.id, path='/etc')", "ListTemplates()"),
    *("FindFiles(sandbox=box.id, path='/workspace')", "GrepFiles(sandbox=box.id, path='/workspace', pattern='x')"),
    *("ListWorkspaces()", "ListRepositories()", "ListImages()", "ListSecrets()", "ListApprovals()", "ListArtifacts()"),
    *("ListAudit()", "VerifyAudit()", "GetAuditKey()", "GetAuditStatement(sandbox=box.id)", "Diagnose()"),
)
_SLEEPS = "run = box.start('echo said; sleep 60', background=True)\n"
_ASKED = (
    "from paddock.errors import ApprovalNeededError\n"
    "try:\n    box.exec(['uname'])\nexcept ApprovalNeededError:\n    pass\n"
    "(approval,) = [one for one in ask(ListApprovals()) if one.sandbox == box.id]\n"
)
_SERVES = (
    "serves = 'import socket; s = socket.create_server((\"127.0.0.1\", 5000)); print(flush=True)\\n'\n"
    "serves += 'while True: s.accept()[0].sendall(b\"hi\")'\n"
    "server = box.start(['python3', '-c', serves])\nnext(server.stdout.lines())\n"
)
VERBS = {
    "create": Verb("CreateSandbox", "Sandbox.create(level='jail', ttl_seconds=60).id"),
    "exec": Verb("RunExec", "box.exec('sleep 0.02; echo done').stdout"),
    "background": Verb("StartExec", "box.start('sleep 60', background=True).id"),
    "attach": Verb("AttachExec", "box.attach(run.id).close()", _SLEEPS),
    "output": Verb("ReadOutput", "box.output(run.id).read()", _SLEEPS),
    "signal": Verb("SignalExec", "box.signal(run.id, 9)", _SLEEPS),
    "port": Verb("ConnectPort", "ask(ConnectPort(sandbox=box.id, port=5000)).read()", _SERVES),
    "write": Verb("WriteFile", "box.filesystem.write('written', bytes(1 << 20))", acknowledged="test -s written"),
    "read": Verb("ReadFile", "len(box.filesystem.read('/workspace/big'))"),
    "files": Verb(
        "MakeDirectory CopyFile MoveFile SetFileAttributes RemoveFile",
        "(box.filesystem.make_dir('d'), box.filesystem.copy('kept', 'd/a'), box.filesystem.move('d/a', 'd/b'),"
        " box.filesystem.chmod('d/b', 0o600), box.filesystem.remove('d', recursive=True))",
        acknowledged="test ! -e d",
    ),
    "upload": Verb(
        "UploadTree",
        "box.filesystem.upload(local / 'tree', 'up')",
        prepare=_tree,
        acknowledged="test -e up/0 && test -e up/199",
    ),
    "download": Verb("DownloadTree", "box.filesystem.download('/workspace', local / 'down')"),
    "watch": Verb(
        "WatchFiles WriteFile",
        "(events := box.filesystem.watch('/workspace'), box.filesystem.write('seen', b''), next(iter(events)))",
    ),
    "fork": Verb("ForkSandbox", "[child.id for child in box.fork(2)]"),
    "promote child": Verb(
        "PromoteChild",
        "ask(PromoteChild(sandbox=box.id, child=child.id, path='/workspace/p'))",
        "child = box.fork()\nchild.exec('mkdir p && echo of the child > p/f')\n",
        acknowledged="grep -q child p/f",
    ),
    "snapshot": Verb("CreateSnapshot", "box.snapshot().id"),
    "delete snapshot": Verb("ListSnapshots DeleteSnapshot", "box.delete_snapshot(box.snapshots()[0])"),
    "rollback": Verb("ListSnapshots RollbackSandbox", "box.rollback(box.snapshots()[0])"),
    "pause": Verb("PauseSandbox", "box.pause()"),
    "resume": Verb("PauseSandbox ResumeSandbox", "(box.pause(), box.resume())"),
    "extend": Verb("ExtendSandbox", "box.extend(200)"),
    "policy": Verb("SetPolicy", "box.set_policy(None)"),
    "record": Verb(
        "StartRecording TakeRecording", "(ask(StartRecording(sandbox=box.id)), ask(TakeRecording(sandbox=box.id)))"
    ),
    "grant": Verb("GrantApproval", "ask(GrantApproval(approval=approval.id))", _ASKED),
    "deny": Verb("DenyApproval", "ask(DenyApproval(approval=approval.id))", _ASKED),
    "secrets": Verb(
        "SetSecret RotateVaultKey RemoveSecret",
        "(ask(SetSecret(name='CI', value=SecretValue(b'a secret value'))), ask(RotateVaultKey()),"
        " ask(RemoveSecret(name='CI')))",
    ),
    "mount": Verb(
        "DiffMount PromoteMount",
        "(box.diff_mount(), box.promote_mount())",
        "box.exec('echo new > /mount/file')\n",
        needs="mount",
    ),
    "workspace": Verb(
        "OpenWorkspace GetWorkspace PinWorkspace InspectWorkspace DeleteWorkspace",
        "(other := Workspace.open(box.id + '-other'), other.refresh(), other.pin(60), other.pin(0), other.status(),"
        " other.delete())",
    ),
    "changes": Verb("GetWorkspace DiffWorkspace", "Workspace.get(box.name).diff(patch=True)", needs="workspace"),
    "push": Verb(
        "GetWorkspace PushBranch OpenPullRequest",
        "(work := Workspace.get(box.name), work.push(box.name, message='It'), work.pull_request('It'))",
        needs="workspace",
    ),
    "artifact": Verb(
        "AddArtifact GetArtifact RemoveArtifact",
        "(ask(AddArtifact(workspace=box.name, path='/workspace/kept')),"
        " ask(GetArtifact(workspace=box.name, name='kept')).read(),"
        " ask(RemoveArtifact(workspace=box.name, name='kept')))",
        needs="workspace",
    ),
    "repository": Verb(
        "AcquireRepository DeleteRepository",
        "ask(DeleteRepository(repository=ask(AcquireRepository(url=f'{local}/origin')).repository))",
        prepare=_repository,
    ),
    "image": Verb(
        "PullImage RemoveImage",
        "ask(RemoveImage(image=ask(PullImage(reference=f'oci:{local}/layout')).digest))",
        prepare=_image,
    ),
    "collect": Verb("CollectGarbage CheckStorage", "(ask(CollectGarbage()), ask(CheckStorage()))"),
    "stream of the log": Verb("StreamAudit", "ask(StreamAudit(last=100)).read()"),
    "look": Verb(
        " ".join(read.partition("(")[0] for read in _READS),
        f"[ask(read) for read in random.sample([{', '.join(_READS)}], {len(_READS)})]",
        "import random\n",
    ),
    "kill": Verb("KillSandbox", "box.kill()"),
}
