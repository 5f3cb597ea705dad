"""`paddock completion SHELL`: completion of verbs, options, ids and names for a shell."""

from __future__ import annotations

import argparse

from . import _render
from ._usage import argument, usage
from ._verbs import VERBS, inner_parsers, option_names, parser, verb_parser

# Each shell calls `paddock completion words` at each Tab. A line of the answer is a word, a tab, and its description.
_SCRIPTS = {
    "bash": """\
# eval "$(paddock completion bash)"
_paddock() {
    mapfile -t COMPREPLY < <(paddock completion words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    COMPREPLY=("${COMPREPLY[@]%%$'\\t'*}")
}
complete -o default -F _paddock paddock
""",
    "zsh": """\
#compdef paddock
# eval "$(paddock completion zsh)"
_paddock() {
    local -a found
    found=(${(f)"$(paddock completion words "${(@)words[2,CURRENT]}" 2>/dev/null)"})
    found=("${(@)found//$'\\t'/:}")
    (( $#found )) && _describe paddock found || _files
}
compdef _paddock paddock
""",
    "fish": """\
complete -c paddock -a '(paddock completion words (commandline -opc)[2..] (commandline -ct) 2>/dev/null)'
""",
}


@usage(
    argument("shell", choices=(*_SCRIPTS, "names", "words")),
    argument("words", nargs=argparse.REMAINDER, metavar="WORD ..."),
    json="of errors; what is printed is for a shell",
)
def verb_completion(options: argparse.Namespace) -> int:
    """Print the start-up code of a shell: `eval "$(paddock completion bash)"` (or zsh) in its start-up file, or
    `paddock completion fish | source`. `names` prints the ids and names of living objects. `words` prints the
    candidates for the last of the words that follow, for those scripts.

    Examples:
        eval "$(paddock completion bash)"
    """
    if options.shell == "words":
        *before, last = options.words or [""]
        found = [word for word in _candidates(before, options=last.startswith("-")) if word.startswith(last)]
    else:
        found = _names() if options.shell == "names" else [_SCRIPTS[options.shell].rstrip()]
    for text in found:
        _render.plain(text)
    return 0


def _candidates(before: list[str], *, options: bool) -> list[str]:
    """Return the candidates after these words."""
    if not before:
        return [*(f"{name}\t{verb.help}" for name, verb in VERBS.items()), "--help", "--version"]
    name, *rest = before
    if name not in VERBS or "--" in rest:  # what follows is the command's own
        return []
    one = verb_parser(parser(name), name)
    inner = inner_parsers(one)
    if options:
        return sorted(option_names(inner.get(rest[0], one) if rest else one))
    if inner and not rest:
        return [*inner]
    return _names() if VERBS[name].names or before[-1] == "--task" else []


_SANDBOXES = "SELECT id, name FROM sandboxes WHERE owner = ? AND ended_at IS NULL ORDER BY id"
_TASKS = "SELECT name FROM workspaces WHERE owner = ? ORDER BY name"


def _names() -> list[str]:
    """Return names and ids, names first, also of workspaces without a living sandbox.

    They come directly from the database, because completion has no time for the daemon. It shows only records that the
    state directory's owner may read, changes nothing, and returns nothing if it can't read them. They may include
    sandboxes whose end isn't recorded yet. A command on one of these reports it.
    """
    import os
    import sqlite3
    from contextlib import closing
    from urllib.parse import quote

    from paddock.supervisor.layout import DATABASE, default_state_dir

    address = f"file:{quote(str(default_state_dir() / DATABASE))}?mode=ro"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=0.2)) as db:
            owner = (f"local:{os.getuid()}",)
            found = db.execute(_SANDBOXES, owner).fetchall()
            tasks = db.execute(_TASKS, owner).fetchall()
    except sqlite3.Error:
        return []
    named = dict.fromkeys((*(name for _, name in found if name), *(name for (name,) in tasks)))
    return [*named, *(id for id, _ in found)]
