"""`paddock completion SHELL`: what a shell needs to complete verbs, options, ids and names."""

from __future__ import annotations

import argparse

from . import _render
from ._verbs import VERBS, option_names, parser, verb_parser

_BASH = """\
# eval "$(paddock completion bash)"
_paddock() {
    local cur=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]-} options= names= verbs= word
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W '%(verbs)s --help --version' -- "$cur")
        return
    fi
    for word in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
        [ "$word" != -- ] || return 0 # the command's own
    done
    case $verb in
%(cases)s
    esac
    if [[ $cur == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$options" -- "$cur")
    elif [ "$COMP_CWORD" -eq 2 ] && [ -n "$verbs" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$verbs" -- "$cur")
    elif [ -n "$names" ] || [ "${COMP_WORDS[COMP_CWORD-1]}" = --task ]; then
        mapfile -t COMPREPLY < <(compgen -W "$(paddock completion names 2>/dev/null)" -- "$cur")
    fi
}
complete -o default -F _paddock paddock
"""
_BASH_CASE = "        %(verb)s) options='%(options)s' names=%(names)s verbs='%(verbs)s' ;;"

_ZSH = """\
#compdef paddock
# eval "$(paddock completion zsh)"
_paddock() {
    local -a verbs
    verbs=(
%(described)s
    )
    if (( CURRENT == 2 )); then
        _describe verb verbs
        return
    fi
    (( ${words[(i)--]} < CURRENT )) && { _normal; return }
    local options= names= inner=
    case $words[2] in
%(cases)s
    esac
    if [[ $PREFIX == -* ]]; then
        compadd -- ${=options}
    elif (( CURRENT == 3 )) && [[ -n $inner ]]; then
        compadd -- ${=inner}
    else
        [[ -z $names && $words[CURRENT-1] != --task ]] || compadd -- ${(f)"$(paddock completion names 2>/dev/null)"}
        _files
    fi
}
compdef _paddock paddock
"""
_ZSH_CASE = "        %(verb)s) options='%(options)s' names=%(names)s inner='%(verbs)s' ;;"

_FISH_VERB = "complete -c paddock -n __fish_use_subcommand -f -a %(verb)s -d '%(help)s'"
_FISH_NAMES = (
    "complete -c paddock -n '__fish_seen_subcommand_from %(verb)s' -f -a '(paddock completion names 2>/dev/null)'"
)
_FISH_OPTION = "complete -c paddock -n '__fish_seen_subcommand_from %(verb)s' -l %(option)s"
_FISH_TASK = f"{_FISH_OPTION} -x -a '(paddock completion names 2>/dev/null)'"
_FISH_INNER = "complete -c paddock -n '__fish_seen_subcommand_from %(verb)s' -f -a '%(verbs)s'"


def add_completion(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Prints what a shell has to read: `eval "$(paddock completion bash)"` (or zsh) in its start-up file, or'
        " `paddock completion fish | source`. `names` prints the ids and names of what lives, as those scripts ask."
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish", "names"))
    parser.add_argument("--json", action="store_true", help="of errors; what is printed is for a shell")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    if options.shell == "names":
        from paddock.keeper.layout import default_state_dir
        from paddock.service import names

        for name in names(default_state_dir()):
            _render.line(name)
        return 0
    _render.line({"bash": _bash, "zsh": _zsh, "fish": _fish}[options.shell]().rstrip())
    return 0


def _bash() -> str:
    return _BASH % {"verbs": " ".join(VERBS), "cases": "\n".join(_BASH_CASE % facts for facts in _facts())}


def _zsh() -> str:
    described = "\n".join(f"        '{verb}:{_quoted(VERBS[verb].help)}'" for verb in VERBS)
    return _ZSH % {"described": described, "cases": "\n".join(_ZSH_CASE % facts for facts in _facts())}


def _fish() -> str:
    lines: list[str] = []
    for facts in _facts():
        lines.append(_FISH_VERB % facts)
        lines += [_FISH_NAMES % facts] if facts["names"] else []
        lines += [_FISH_INNER % facts] if facts["verbs"] else []
        long = (option.removeprefix("--") for option in facts["options"].split() if option.startswith("--"))
        lines += [(_FISH_TASK if option == "task" else _FISH_OPTION) % {**facts, "option": option} for option in long]
    return "\n".join(lines)


def _facts() -> list[dict[str, str]]:
    facts: list[dict[str, str]] = []
    root = parser(*VERBS)
    for verb, about in VERBS.items():
        one = verb_parser(root, verb)
        inner = _inner(one)
        options = {name for part in (one, *inner.values()) for name in option_names(part)}
        facts.append(
            {
                "verb": verb,
                "help": _quoted(about.help),
                "options": " ".join(sorted(options)),
                "names": "yes" if about.names else "",
                "verbs": " ".join(inner),
            }
        )
    return facts


def _inner(one: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """What `paddock audit` has for verbs; what `completion` can be asked for is no verb, but completed as one."""
    for action in one._actions:  # pyright: ignore[reportPrivateUsage]
        if isinstance(action, argparse._SubParsersAction):  # pyright: ignore[reportPrivateUsage]
            return dict(action.choices)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return {}


def _quoted(text: str) -> str:
    """Within single quotes, for every shell."""
    return text.replace("'", "").replace("`", "").replace(":", ",")
