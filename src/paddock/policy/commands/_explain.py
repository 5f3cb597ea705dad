"""What becomes of a command or a file, and what of that is enforced against whom."""

from __future__ import annotations

from paddock.model import PolicyDocument
from paddock.model.policy import CommandRules, FileRules

from ._commands import Commands, DoorVerdict
from ._files import Files

_WORKDIR, _HOME = "/workspace", "/home/user"  # as in the templates that come with paddock


def explain_command(document: PolicyDocument, line: str) -> tuple[DoorVerdict, dict[str, str]]:
    """Explain the verdict on a shell line, and by whom it is kept up."""
    return Commands(document.commands or CommandRules()).judge_line(line), {
        "enforced": "on what is asked for from outside (exec, run, sh, the SDK)",
        "advisory": "on what a command starts in turn: that is not judged",
    }


def explain_file(document: PolicyDocument, path: str, *, delete: bool) -> tuple[DoorVerdict, dict[str, str]]:
    """Explain the verdict on a path."""
    files = Files(document.files or FileRules(), workdir=_WORKDIR, home=_HOME)
    verdict = files.remove(path) if delete else files.write(path)
    said = {"enforced": "on what is asked for from outside (write, cp, rm, the SDK)"}
    if verdict.verdict == "approve":
        said["advisory"] = "on what programs inside delete: nobody asks them"
    elif verdict.verdict == "deny" and not files.can_mount(verdict):
        said["advisory"] = "on programs inside: a pattern can't be mounted read-only"
    elif verdict.verdict == "deny":
        said["inside"] = "enforced, by a read-only mount, if it is there when the sandbox is made"
    return verdict, said
