"""Changes of a sandbox or a workspace: `paddock diff`, `patch` and `promote`. `branch` and `pr` publish them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from paddock import model

from . import _render
from ._answer import answer, ask, perform
from ._usage import argument, exclusive, together, usage
from ._values import SANDBOX, WORKSPACE

_WIDTH = 40
_LETTERS = {"added": "A", "modified": "M", "deleted": "D", "renamed": "R"}
_COLOURS = {"+": "32", "-": "31", "@": "36"}
_MOUNT = argument(
    "--mount",
    nargs="?",
    const="",
    metavar="TARGET",
    help="which mount, by where it is inside; needed where there are several",
)
_COMMIT = together(
    argument("-m", "--message", help="of the commit, if paddock makes one"),
    argument("--author", metavar="NAME <MAIL>", help="of that commit; default: yours, as git knows it"),
    argument("--force", action="store_true", help="take the place of what others have pushed there"),
)
_HEADS = ("diff --git ", "index ", "--- ", "+++ ", "old mode", "new mode", "new file", "deleted file", "rename ")


def _show(options: argparse.Namespace, diff: model.MountDiff | model.WorkspaceDiff) -> None:
    if options.patch:
        show_patch(diff.patch or b"", colour=_coloured(options))
    elif options.stat:
        show_stat(diff.changes, colour=_coloured(options))
    else:
        show_table(diff.changes)


def show_table(changes: Sequence[model.Change]) -> None:
    if not changes:
        return
    rows = [(_LETTERS[c.kind], _lines(c), _mode(c), _name(c), c.obstacle or "") for c in changes]
    marks = ["missing" if c.obstacle else {"A": "ok", "D": "missing"}.get(_LETTERS[c.kind], "weak") for c in changes]
    hindered = any(c.obstacle for c in changes)
    headings = ("", "LINES", "MODE", "PATH", "NOT PROMOTED, BECAUSE")
    _render.table(headings if hindered else headings[:-1], [row if hindered else row[:-1] for row in rows], marks=marks)


def show_stat(changes: Sequence[model.Change], *, colour: bool) -> None:
    files = [c for c in changes if c.file != "directory"]
    names = [_render.escape(_name(c)) for c in files]
    width = max(map(len, names), default=0)
    most = max(((c.insertions or 0) + (c.deletions or 0) for c in files), default=0)
    for change, name in zip(files, names, strict=True):
        if change.insertions is None:
            _render.line(f" {name.ljust(width)} | {_render.size(change.size_bytes)}, not counted in lines")
            continue
        deletions = change.deletions or 0
        scale = min(1.0, _WIDTH / most) if most else 1.0
        plus, minus = "+" * round(change.insertions * scale), "-" * round(deletions * scale)
        bar = f"\x1b[32m{plus}\x1b[31m{minus}\x1b[0m" if colour else plus + minus
        _render.plain(f" {name.ljust(width)} | {change.insertions + deletions:4} {bar}".rstrip())
    if files:
        more, less = (sum(getattr(c, field) or 0 for c in files) for field in ("insertions", "deletions"))
        names = _render.count(len(files), "file"), _render.count(more, "line")
        _render.line(f" {', '.join(names)} added, {less} deleted")


def show_patch(patch: bytes, *, colour: bool) -> None:
    """Print a patch. A file or a program gets it unchanged. On a terminal, it can't control the terminal."""
    if not sys.stdout.isatty() and not colour:
        sys.stdout.flush()
        _render.raw(1, patch)
        return
    for text in patch.decode("utf-8", "backslashreplace").split("\n")[:-1]:
        shown = _render.escape(text.replace("\t", "    "))
        code = "1" if text.startswith(_HEADS) else _COLOURS.get(text[:1])
        _render.plain(f"\x1b[{code}m{shown}\x1b[0m" if colour and code else shown)


def _coloured(options: argparse.Namespace) -> bool:
    if options.color != "auto":
        return options.color == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _name(change: model.Change) -> str:
    end = "/" if change.file == "directory" else ""
    return f"{change.renamed_from} → {change.path}" if change.renamed_from else change.path + end


def _lines(change: model.Change) -> str:
    if change.file != "file":
        return change.file
    if change.insertions is None:
        return _render.size(change.size_bytes)
    return f"+{change.insertions} -{change.deletions}"


def _mode(change: model.Change) -> str:
    if change.old_mode is None or change.mode is None or change.old_mode == change.mode or change.file == "symlink":
        return ""
    return f"{change.old_mode:o} → {change.mode:o}"


def target_and_paths(options: argparse.Namespace) -> tuple[str | None, tuple[str, ...]]:
    """Return target and paths. A target begins with `/`. Any other text after `--mount` is a path."""
    target, paths = options.mount or None, tuple(options.paths)
    if target is not None and not target.startswith("/"):
        return None, (target, *paths)
    return target, paths


@usage(
    SANDBOX,
    argument("paths", nargs="*", metavar="PATH", help="of a directory of the host: only these"),
    _MOUNT,
    exclusive(
        argument("-p", "--patch", action="store_true", help="what `git apply` takes"),
        argument("--stat", action="store_true", help="lines by file"),
        argument("--json", action="store_true", help="print one JSON document"),
    ),
    argument("--color", choices=("auto", "always", "never"), default="auto"),
    json=None,
)
def verb_diff(options: argparse.Namespace) -> int:
    """Show the changes of a workspace since its first commit.

    With --mount or without a workspace, show a sandbox's changes in a copy-on-write mount.

    Examples:
        paddock diff T42
    """
    target, paths = target_and_paths(options)
    if options.mount is None and not paths and not _is_mounted(options):
        diff = ask(model.DiffWorkspace, options, workspace=options.sandbox)
    else:
        diff = ask(model.DiffMount, options, target=target, paths=paths)
    return answer(options, diff, show=lambda: _show(options, diff))


def _is_mounted(options: argparse.Namespace) -> bool:
    """Tell whether it is a sandbox without a workspace, and with a directory of the host."""
    from paddock.errors import NotFoundError

    try:
        spec = ask(model.GetSandbox, options).spec
    except NotFoundError:
        return False
    return spec.workspace is None and bool(spec.mounts)


@usage(WORKSPACE)
def verb_patch(options: argparse.Namespace) -> int:
    """Print the changes of a workspace since its first commit, with untracked files, as a patch for `git apply`.

    Example: paddock patch T42 > T42.patch

    Examples:
        paddock patch T42 | git apply
    """
    diff = perform(model.DiffWorkspace(workspace=options.workspace, patch=True))
    return answer(options, diff, show=lambda: show_patch(diff.patch or b"", colour=False))


@usage(
    SANDBOX,
    argument("paths", nargs="*", metavar="PATH", help="relative to the directory: only these"),
    _MOUNT,
    argument("-n", "--dry-run", action="store_true", help="show what would be written, and write nothing"),
    argument("--git", action="store_true", help="commits and refs in .git too; never hooks or configuration"),
    argument("--force", action="store_true", help="also what the host has changed since: its changes go"),
)
def verb_promote(options: argparse.Namespace) -> int:
    """Write a sandbox's changes in a copy-on-write mount into the host's directory, and print them.

    It writes all or nothing. It refuses device nodes, set-id bits, links that lead out, and files that the host has
    changed since. Changes in .git stay in the sandbox.

    Examples:
        paddock promote box --dry-run
    """
    target, paths = target_and_paths(options)
    done = ask(model.PromoteMount, options, target=target, paths=paths)
    would = "would be written" if done.dry_run else "written"
    notes = [f"{_render.count(len(done.applied), 'change')} {would} to {done.source}"]
    if done.left_out:
        left = _render.count(len(done.left_out), "change")
        notes.append(f"not written, since it is in .git: {left}; --git writes commits and refs too")
    return answer(options, done, show=lambda: show_table(done.applied), notes=notes)


@usage(
    WORKSPACE,
    argument("name", nargs="?", metavar="NAME", help="the branch; default: the last one, or paddock/TASK"),
    _COMMIT,
)
def verb_branch(options: argparse.Namespace) -> int:
    """Push a workspace to its repository, with the credentials of your git.

    Uncommitted changes become a commit. The workspace doesn't change. Prints the commit.

    Examples:
        paddock branch T42 fix -m Fix
    """
    pushed = ask(model.PushBranch, options, branch=options.name, author=options.author or _author())
    note = f"{pushed.branch} of {pushed.repository} {'is' if pushed.pushed else 'was already'} at {pushed.commit}"
    return answer(options, pushed, pushed.commit, notes=(note,))


def _author() -> str | None:
    """Return the user's name and address in git's global configuration."""
    import subprocess

    values: list[str] = []
    for name in ("user.name", "user.email"):
        try:
            asked = subprocess.run(
                ["git", "config", "--global", "--get", name], capture_output=True, text=True, check=False, cwd="/"
            )
        except OSError:
            return None
        values.append(asked.stdout.strip())
    return f"{values[0]} <{values[1]}>" if all(values) else None


@usage(
    WORKSPACE,
    argument("--title", required=True),
    argument("--body", default="", help="what it says below its title"),
    argument("--branch", metavar="NAME", help="default: the one pushed last, or paddock/TASK"),
    argument("--base", metavar="NAME", help="default: the branch that the workspace was opened on"),
    argument("--draft", action="store_true"),
    argument("--forge", choices=("github", "gitea"), help="default: it is asked; Forgejo speaks gitea"),
    _COMMIT,
)
def verb_pr(options: argparse.Namespace) -> int:
    """Push a workspace, as `paddock branch` does, and open a pull request for that branch: GitHub, Gitea or Forgejo.

    If there is an open one, use it. Prints its address.

    Examples:
        paddock pr T42 --title Fix
    """
    message, author = options.message or options.title, options.author or _author()
    pushed = ask(model.PushBranch, options, message=message, author=author)
    request = ask(model.OpenPullRequest, options, branch=pushed.branch)
    what = "opened" if request.created else "was open already"
    note = f"pull request {request.number} of {request.branch} into {request.base} {what}"
    return answer(options, request, request.url, notes=(note,))
