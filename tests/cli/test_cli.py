"""The command line, as a process: what it prints, what it returns, whom it kills."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from paddock import model
from paddock.cli import _audit, _doctor, _policy, _render
from paddock.cli._values import command, mebibytes, mount, seconds
from paddock.cli._verbs import VERBS, WrongUsage, option_names, parse, parser, verb_parser
from paddock.errors import InvalidArgumentError
from tests.cli.command_line import Paddock, argv, environment, started
from tests.cli.screen import screen

LEVELS = {"gvisor": "missing", "jail": "ok"}


def performed(directory: Path) -> list[str]:
    return (directory / "performed").read_text().splitlines()


def test_run_passes_streams_stdin_and_the_exit_code(paddock: Paddock, tmp_path: Path) -> None:
    done = paddock("run", "--", "sh", "-c", "cat; echo err >&2; exit 7", input=b"\xff\x00typed")
    assert (done.stdout, done.stderr, done.returncode) == (b"\xff\x00typed", b"err\n", 7)
    assert performed(tmp_path) == ["CreateSandbox", "StartExec", "KillSandbox", "open 0"]


@pytest.mark.parametrize("typed", [None, b""], ids=["a device", "a pipe"])
def test_a_command_reads_the_end_where_stdin_is_at_its_end(paddock: Paddock, typed: bytes | None) -> None:
    assert paddock("run", "--", "sh", "-c", "cat; echo end", input=typed).stdout == b"end\n"


def test_run_needs_no_dashes_and_leaves_the_commands_own_options_alone(paddock: Paddock) -> None:
    assert paddock("run", "--ttl", "5m", "printf", "%s", "--color", "-v").stdout == b"--color-v"
    assert paddock("run", "--", "printf", "%s", "--").stdout == b"--"


def test_a_signal_is_128_and_its_number(paddock: Paddock) -> None:
    assert paddock("run", "--", "sh", "-c", "kill -TERM $$").returncode == 128 + 15


def test_not_found_and_not_executable_are_said_as_the_shell_says_it(paddock: Paddock, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    missing, plain = paddock("run", "--", "/no/such"), paddock("run", "--", str(tmp_path / "plain"))
    assert (missing.returncode, plain.returncode) == (127, 126)
    assert missing.stderr.startswith(b"paddock: ")
    assert b"Traceback" not in missing.stderr + plain.stderr


def test_paddocks_own_failures_are_125_and_one_line_with_a_hint(paddock: Paddock) -> None:
    done = paddock("run", "--level", "strong", "--", "true")
    assert done.returncode == 125
    assert done.stderr.splitlines()[0].startswith(b"paddock: no level 'strong'")
    assert done.stderr.splitlines()[1:] == [b"  try: paddock doctor"]
    refused = paddock("ls", PADDOCK_URL="http://localhost")
    assert refused.returncode == 125
    assert b"unset PADDOCK_URL" in refused.stderr


@pytest.mark.parametrize("arguments", [(), ("walk",), ("run", "--memory", "much", "--", "true"), ("exec",), ("kill",)])
def test_wrong_usage_is_2(paddock: Paddock, arguments: tuple[str, ...]) -> None:
    assert paddock(*arguments).returncode == 2


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        ("run echo hi --policy nope.yaml", "paddock run --policy nope.yaml -- echo hi"),
        ("run echo hi --policy nope.yaml -- true", "paddock run --policy nope.yaml -- echo hi -- true"),
        ("run --ttl 5m ls --level=microvm /", "paddock run --level=microvm --ttl 5m -- ls /"),
        ("run ls --json", "paddock run --json -- ls"),
        ("exec box -it python3 -", "paddock exec -it box -- python3 -"),
        ("exec box --user root id", "paddock exec --user root box -- id"),
        ("run ls 'a b' --cwd", "paddock run --cwd -- ls 'a b'"),
    ],
)
def test_an_option_after_the_command_is_refused_with_the_line_to_type(paddock: Paddock, typed: str, line: str) -> None:
    done = paddock(*shlex.split(typed))
    assert (done.returncode, paddock("ls", "--json").stdout) == (2, b"[]\n")
    said = done.stdout if "--json" in typed.partition(" -- ")[0] else done.stderr
    assert line in said.decode()


@pytest.mark.parametrize(
    ("sandbox", "summary", "is_about"),
    [
        ("sb_1", "the command ls", True),
        ("sb_2", "the command ls", False),
        ("sn_1", "delete the snapshot sn_1 of sb_1", True),
        ("sn_2", "delete the snapshot sn_2 of sb_2", False),
        ("ws_1", "delete the workspace T42", True),
    ],
)
def test_why_shows_the_questions_about_a_sandbox_and_about_workspaces(
    sandbox: str, summary: str, is_about: bool
) -> None:
    question = model.Approval(
        id="ap_1",
        kind="delete",
        sandbox=sandbox,
        instance_id=1,
        revision="",
        digest="",
        summary=summary,
        state=model.ApprovalState.PENDING,
        created_at=0,
        expires_at=1,
    )
    assert _audit._is_about(question, "sb_1") is is_about


def test_an_unknown_option_of_an_inner_verb_is_told_with_both_verbs(paddock: Paddock) -> None:
    assert "try: paddock create --name NAME" in paddock("run", "--name", "box", "--", "true").stderr.decode()
    said = paddock("snapshot", "build", "--fil", "x").stderr.decode()
    assert "`paddock snapshot build` has no option '--fil'" in said
    assert "try: paddock snapshot build --file" in said


def test_stdout_is_not_a_patch_and_a_document(paddock: Paddock) -> None:
    done = paddock("run", "--json", "--mount", ".", "--patch", "-", "--", "true")
    assert (done.returncode, json.loads(done.stdout)["error"]["code"]) == (2, "usage")


@pytest.mark.parametrize("typed", ["-- echo --level --json -i", "echo --help -l --name=x", "-- echo -- --policy x"])
def test_what_comes_after_two_dashes_or_is_no_option_of_ours_is_the_commands(paddock: Paddock, typed: str) -> None:
    done = paddock("run", *typed.split())
    assert done.stdout.decode() == typed.removeprefix("-- ").removeprefix("echo ") + "\n"


def test_run_without_a_command_says_so_and_leaves_nothing(paddock: Paddock) -> None:
    for typed in ("run", "exec box"):
        done = paddock(*typed.split())
        assert (done.returncode, done.stdout) == (2, b"")
        assert f"no command was given\n  try: paddock {typed} -- COMMAND".encode() in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("run", "--json", "--", "sh", "-c", "echo out; exit 3"), 3),
        (("run", "--json", "--level", "strong", "--", "true"), 125),
        (("run", "--json", "--", "/no/such"), 127),
        (("create", "--json"), 0),
        (("ls", "--json"), 0),
        (("doctor", "--json"), 0),
        (("audit", "verify", "--json"), 0),
        (("kill", "--json", "none"), 125),
    ],
)  # fmt: skip
def test_json_is_one_document_whatever_happens(paddock: Paddock, arguments: tuple[str, ...], code: int) -> None:
    done = paddock(*arguments)
    document = json.loads(done.stdout)
    assert done.returncode == code
    assert done.stderr == b""
    if code in (125, 127):
        assert document["error"].keys() == {"code", "message", "hint"}
    if code == 3:
        assert (document["stdout"], document["exit_code"]) == ("out\n", 3)


def test_a_verb_on_several_ids_reports_every_failure(paddock: Paddock) -> None:
    done = paddock("kill", "--json", "none", "nor this", "--", "-x")
    document = json.loads(done.stdout)
    assert done.returncode == 125
    assert document["errors"].keys() == {"none", "nor this", "-x"}
    assert document["errors"]["nor this"].keys() == {"code", "message", "hint"}
    assert (document["error"], document["done"]) == (document["errors"]["none"], [])
    shown = paddock("secret", "rm", "one", "two").stderr.decode()
    assert ("'one'" in shown, "'two'" in shown) == (True, True)


def test_doctor_and_audit_return_1_where_nothing_can_be_relied_on(paddock: Paddock, tmp_path: Path) -> None:
    good = paddock("doctor")
    assert (good.returncode, paddock("audit", "verify").returncode) == (0, 0)
    assert good.stdout.startswith(b"Ready: the default level jail works; 1 of 1 levels are available.\n\n")
    (tmp_path / "useless").touch()
    bad = paddock("doctor")
    assert (bad.returncode, paddock("audit", "verify").returncode) == (1, 1)
    assert bad.stdout.startswith(b"Not ready: the default level jail fails; 0 of 1 levels are available.\n\n")


def test_nothing_that_is_shown_in_a_table_can_steer_a_terminal(paddock: Paddock, tmp_path: Path) -> None:
    (tmp_path / "useless").touch()
    shown = paddock("doctor").stdout + paddock("audit", "verify").stdout
    assert b"\\x1b[31mred\\u202e" in shown
    assert b"\\x1b]0;title\\x07" in shown
    assert not set(shown) & {0x1B, 0x07}


def test_json_drives_no_terminal_and_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    text = '\x1b[31m \x7f \x85 \x9b31m \u202e \ufeff \U000e0001 ü 漢 🙂 \\ " \n'
    _render.document({text: [text]})
    _render.json_line({text: [text]})
    document, line = capsys.readouterr().out.rsplit("\n", 2)[:2]
    for shown in (document, line):
        assert json.loads(shown) == {text: [text]}
        assert all(one.isprintable() or one == "\n" for one in shown)
        assert "ü 漢 🙂" in shown


def test_a_checklist_fits_80_columns_and_a_fix_stays_in_one_piece(capsys: pytest.CaptureFixture[str]) -> None:
    fix = "apt-get install " + "x" * 100
    _render.checklist(
        ("STATUS", "LEVEL", "DETAIL"), [("weak", "jail", "word " * 40, ""), ("missing", "gvisor", "no", fix)]
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "STATUS   LEVEL   DETAIL"
    assert lines[1].startswith("weak     jail    word word")
    assert lines[-2:] == ["missing  gvisor  no", f"  fix: {fix}"]
    assert max(map(len, lines[:-1])) <= 80
    assert " ".join(lines[1:-2]).split()[2:] == ["word"] * 40


_TABLE = """
from paddock.cli._render import live_table, table
rows = [("ok", "word " * 20, "x"), ("missing", "a" * 70, "y")]
table(("STATUS", "DETAIL", "LAST"), rows, marks=("ok", "missing"))
print("--")
live_table(("STATUS", "DETAIL", "LAST"), (rows[:number] for number in (1, 2)))
"""


def test_a_table_fits_the_terminal_and_one_that_changes_is_written_over() -> None:
    with screen(python=("-c", _TABLE), columns=40) as terminal:
        assert terminal.ends() == 0
        still, _, changing = terminal.shown.decode().replace("\r\n", "\n").partition("--\n")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", still)
    assert "ok\n  DETAIL word word" in plain
    assert f"  DETAIL {'a' * 70}\n  LAST y\n" in plain
    assert "\x1b[32mok\x1b[0m" in still
    assert "\x1b[31mmissing\x1b[0m" in still
    first, second = changing.split("\x1b[J")
    rows, back, rest = first.rpartition("\x1b[")
    assert (back, rest) == ("\x1b[", f"{len(rows.splitlines())}F")
    assert second.startswith("STATUS")
    assert f"  DETAIL {'a' * 31}\n  LAST y" in second


def test_a_narrow_table_wraps_between_words_so_that_an_id_stays_whole() -> None:
    id = "sb_0veq4f21tbe0mgm3"
    lines = _render._table(("ID", "USED", "WHY"), [(id, "224 KiB", "killed twice")], 34)
    assert lines == [f"{'ID':19}  USED   WHY", f"{id}  224    killed", f"{'':21}KiB    twice"]


def test_a_column_that_does_not_fit_stands_below_its_row_so_that_a_ref_stays_whole() -> None:
    id, ref = "sb_0veq4f21tbe0mgm3", "01796030563827803824-e9bcbcfa:15"
    rows = [("2026-11-30 09:22:44", "exec.start", id, "exit code 0", "sh -c true", ref), ("", "", "", "ok", "", "x:1")]
    lines = _render._table(("TIME", "ACTION", "SANDBOX", "OUTCOME", "WHAT", "REF"), rows, 80)
    assert lines[1:] == [
        f"2026-11-30 09:22:44  exec.start  {id}  exit code 0  sh -c true",
        f"  REF {ref}",
        f"{'':54}ok",
        "  REF x:1",
    ]


def test_a_span_is_told_to_the_nearest_unit() -> None:
    """A second after its create, a sandbox of five minutes doesn't end in four."""
    assert [_render.span(seconds) for seconds in (-1, 119.4, 299, 7199, 3 * 3600 - 1)] == [
        *("0 s", "119 s", "5 min", "120 min", "3 h")
    ]


def test_a_table_that_goes_into_a_file_is_neither_wrapped_nor_coloured(capsys: pytest.CaptureFixture[str]) -> None:
    _render.table(("STATUS", "DETAIL"), [("ok", "word  " * 40)], marks=("ok",))
    assert capsys.readouterr().out == f"STATUS  DETAIL\nok      {('word  ' * 40).rstrip()}\n"


def test_doctor_shows_no_level_that_is_for_tests_alone(paddock: Paddock) -> None:
    assert b"for tests only" in paddock("doctor", "--json").stdout
    assert b"for tests only" not in paddock("doctor").stdout


def test_doctor_says_the_fix_of_several_lines_once(capsys: pytest.CaptureFixture[str]) -> None:
    fixes = {"cpus": "be root", "disk": "be root", "ids": "ask for ids"}
    checks = (model.Check(status="weak", area="limits", name=name, detail="d", fix=fix) for name, fix in fixes.items())
    _doctor._tell(model.Diagnosis(checks=tuple(checks), default_level="jail", state_dir="/s"), [])
    out = capsys.readouterr().out
    assert (out.count("be root"), out.count("fix: ask for ids")) == (1, 1)
    assert "\nfix of cpus, disk:\n  be root\n" in out


@pytest.mark.parametrize(
    ("asked", "verdict"),
    [
        ([], "Ready: the default level jail works; 1 of 2 levels are available."),
        (["jail"], "Ready: jail works; 1 of 2 levels are available."),
        (["jail", "gvisor"], "Not ready: gvisor fails; 1 of 2 levels are available."),
    ],
)
def test_doctors_verdict_is_about_the_levels_that_were_named(
    capsys: pytest.CaptureFixture[str], asked: list[str], verdict: str
) -> None:
    levels = [
        model.LevelReport(level=level, backend=level, status=status, detail="") for level, status in LEVELS.items()
    ]
    _doctor._tell(model.Diagnosis(checks=(), default_level="jail", state_dir="/s", levels=tuple(levels)), asked)
    assert capsys.readouterr().out.splitlines()[0] == verdict


def test_escaping_keeps_what_is_readable() -> None:
    assert _render.escape("grüße 漢字 🙂") == "grüße 漢字 🙂"
    assert _render.escape("a\nb\t\x9b\u200b\ud800\U000e0001") == "a\\x0ab\\x09\\x9b\\u200b\\ud800\\U000e0001"


def test_output_is_passed_on_while_the_command_runs(tmp_path: Path) -> None:
    with started(
        tmp_path, "run", "--", "sh", "-c", "echo first; read answer; echo $answer", stdin=subprocess.PIPE
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == b"first\n"
        process.stdin.write(b"second\n")
        process.stdin.close()
        assert process.stdout.read() == b"second\n"
    assert process.returncode == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_kills_the_sandbox_on_the_way_out(tmp_path: Path, number: int, code: int) -> None:
    with started(tmp_path, "run", "--", "sh", "-c", "echo ready; sleep 60") as process:
        assert process.stdout
        assert process.stderr
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.stderr.read() == b""
    assert process.returncode == code
    assert performed(tmp_path)[-2:] == ["KillSandbox", "open 0"]


def test_a_reader_that_leaves_ends_the_command(tmp_path: Path) -> None:
    with started(tmp_path, "run", "--", "sh", "-c", "while :; do echo again; done") as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 128 + signal.SIGPIPE
    assert performed(tmp_path)[-2:] == ["KillSandbox", "open 0"]


def on_terminal(directory: Path, *arguments: str, typed: bytes = b"", **environ: str) -> tuple[str, int]:
    """All three streams are a terminal."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        argv(directory, *arguments),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env=environment(directory) | {"TERM": "xterm-256color", "COLUMNS": "100"} | environ,
    )
    os.close(theirs)
    os.write(ours, typed)
    shown = bytearray()
    timer = threading.Timer(60, process.kill)
    timer.start()
    try:
        while data := os.read(ours, 4096):
            shown += data
    except OSError:  # EIO: the last descriptor of the other side is closed
        pass
    timer.cancel()
    os.close(ours)
    return shown.decode(), process.wait()


def test_a_terminal_gets_colours_unless_it_wants_none(tmp_path: Path) -> None:
    shown, code = on_terminal(tmp_path, "doctor")
    assert code == 0
    assert "\x1b[33mweak" in shown
    assert "\\x1b[31mred\\u202e" in shown.replace("\r\n", "")
    plain, _ = on_terminal(tmp_path, "doctor", NO_COLOR="1")
    assert "\x1b[33m" not in plain


def test_a_terminal_is_not_read_unless_that_is_asked_for(tmp_path: Path) -> None:
    shown, code = on_terminal(tmp_path, "run", "--", "sh", "-c", "cat; echo done")
    assert (shown, code) == ("done\r\n", 0)
    shown, code = on_terminal(tmp_path, "run", "-i", "--", "sh", "-c", "read x; echo got $x", typed=b"it\n")
    assert (shown.splitlines()[-1], code) == ("got it", 0)


def test_help_imports_nothing_heavy() -> None:
    names = (
        "msgspec asyncio rich sqlalchemy alembic pytest subprocess sqlite3 paddock.client paddock.model paddock.daemon"
    )
    script = (
        "import sys, contextlib\nfrom paddock.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['--help'])\n"
        f"print(sorted(set({names.split()!r}) & set(sys.modules)), file=sys.stderr)\n"
        "print(len(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, check=True, text=True)
    imported, count = done.stderr.splitlines()
    assert imported == "[]"
    assert int(count) < 130
    bare = subprocess.run([sys.executable, "-I", "-c", "import paddock, sys; print(*sys.modules)"], capture_output=True)
    assert b"paddock.client" not in bare.stdout


def test_no_tick_is_left_when_the_interpreter_is_taken_down() -> None:
    """It answers no signal by then, so a SIGALRM would kill it in place of the exit code."""
    program = (
        "import atexit, signal, sys; from paddock.cli import script; sys.argv = ['paddock', 'run', '--help'];"
        "atexit.register(lambda: print(signal.getitimer(signal.ITIMER_REAL), file=sys.stderr)); script()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stderr, done.returncode) == ("(0.0, 0.0)\n", 0)


def test_called_by_another_program_it_changes_nothing_of_that_process() -> None:
    script = (
        "import gc, sys\nfrom paddock.cli import main\nmain(['ls', '--bogus'])\n"
        "print(gc.get_threshold()[0], gc.get_freeze_count(), 'msgspec' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert done.stdout.split() == ["700", "0", "False"]


def test_every_verb_explains_itself_and_speaks_json() -> None:
    for verb in VERBS:
        with pytest.raises(SystemExit) as ended:
            parse([verb, "--help"])
        assert ended.value.code == 0
    for verb in VERBS:
        for part in parts(verb_parser(parser(verb), verb)):
            assert "--json" in option_names(part), part.prog


def parts(one: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    """A verb, or what it has for verbs of its own."""
    for action in one._actions:
        if isinstance(action, argparse._SubParsersAction):
            return list(action.choices.values())
    return [one]


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("lss",), "paddock ls"),
        (("rnu",), "paddock run"),
        (("run", "-m", "1g", "--", "true"), "paddock run --memory"),
        (("zzz",), "paddock --help"),
        (("run", "--memroy", "5", "--", "true"), "paddock run --memory"),
        (("kill",), "paddock kill --help"),
        ((), "paddock --help"),
        (("frobnicate",), "paddock --help"),
        (("run", "-v", "/a:/b", "--", "true"), "paddock run --mount DIR:TARGET"),
        (("run", "-p", "80:80", "--", "true"), "paddock forward ID PORT"),
        (("run", "--net", "host", "--", "true"), "paddock run --network"),
        (("run", "--rm", "--", "true"), "leave it out: `paddock run` deletes its sandbox"),
        (("--bogus", "ls"), "paddock ls --help"),
        (("run", "--diff", "--", "true"), "paddock run --mount . --diff"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(paddock: Paddock, words: tuple[str, ...], hint: str) -> None:
    done = paddock(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.splitlines()[-1].decode() == f"  try: {hint}"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("rm box", "kill box"),
        ("stop box", "kill box"),
        ("ssh box", "sh box"),
        ("list --all", "ls --all"),
        ("snapshot box --name n", "snapshot create box --name n"),
        ("snapshots", "snapshot ls"),
        ("workspaces", "workspace ls"),
        ("images --json", "image ls --json"),
        ("artifacts", "artifact list"),
        ("secrets rm A", "secret rm A"),
        ("exec box -i --env A=1 -- python3 -", "exec -i --env A=1 box -- python3 -"),
        ("exec box --json -- true --json", "exec --json box -- true --json"),
    ],
)
def test_what_people_type_is_what_they_mean(typed: str, meant: str) -> None:
    assert vars(parse(typed.split())) == vars(parse(meant.split()))


def test_attempts_take_what_sandboxes_may_reach() -> None:
    for verb in (["try", "p.patch"], ["agent", "task", "--model", "script:x"]):
        options = parse([*verb, "--test", "true", "--network", "pypi,a.org", "--policy", "p.yaml"])
        assert (options.network, options.policy) == (("pypi", "a.org"), "p.yaml")


def test_help_and_version_are_words_too(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    for words in ("help", "--help", "help rm", "kill --help", "version", "--version"):
        with pytest.raises(SystemExit) as ended:
            parse(words.split())
        assert ended.value.code == 0
        shown.append(capsys.readouterr().out)
    assert (shown[0], shown[2], shown[4]) == (shown[1], shown[3], shown[5])
    assert all(f"\n  {verb} " in shown[0] for verb in VERBS)
    assert "examples:\n  paddock kill box" in shown[2]
    assert max(map(len, shown[0].splitlines())) <= 80


def test_wrong_usage_speaks_json_too(paddock: Paddock) -> None:
    done = paddock("exec", "--json")
    assert (done.returncode, done.stderr) == (2, b"")
    assert json.loads(done.stdout)["error"]["code"] == "usage"
    assert paddock("runn", "--", "x", "--json").stdout == b""


@pytest.mark.parametrize(("text", "value"), [("512", 512), ("512m", 512), ("2g", 2048), ("1GiB", 1024)])
def test_sizes(text: str, value: int) -> None:
    assert mebibytes(text) == value


@pytest.mark.parametrize(("text", "value"), [("90", 90), ("1.5s", 1.5), ("5m", 300), ("2h", 7200)])
def test_times(text: str, value: float) -> None:
    assert seconds(text) == value


@pytest.mark.parametrize(
    ("text", "source", "target", "mode"),
    [
        (".", ".", "/workspace", "cow"),
        ("/a:ro", "/a", "/workspace", "ro"),
        ("/a:/b", "/a", "/b", "cow"),
        ("./ro:/b:rw", "./ro", "/b", "rw"),
    ],
)
def test_mounts(text: str, source: str, target: str, mode: str) -> None:
    made = mount(text)
    assert (made.source, made.target, made.mode) == (source, target, mode)


@pytest.mark.parametrize("text", ["", ":/a", "/a:/b:/c", "/a:/b:c:ro"])
def test_what_is_no_mount_says_how_one_is_written(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="not a mount"):
        mount(text)


def test_only_the_first_dashes_go() -> None:
    assert command(["--", "a", "--", "b"]) == ["a", "--", "b"]
    assert command(["a", "--"]) == ["a", "--"]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("run", "--mount", ".", "--patch", "/no/such/x.patch", "--", "true"), "there is no directory '/no/such'"),
        (("run", "--mount", ".", "--patch", "", "--", "true"), "it has no name"),
        (("eval", "injection", "-o", "/"), "it is a directory"),
        (("bench", "--levels", "-o", "/no/such/x.md"), "there is no directory '/no/such'"),
    ],
)
def test_a_file_for_a_result_is_checked_before_the_work(paddock: Paddock, command: tuple[str, ...], why: str) -> None:
    done = paddock(*command)
    assert (done.returncode, done.stdout) == (2, b"")
    assert f"can't be written: {why}\n".encode() in done.stderr


def test_a_secrets_name_is_checked_before_its_value_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(InvalidArgumentError, match="is not a valid name of a secret"):
        _policy._set_secret.run(argparse.Namespace(name="bad name"))


@pytest.mark.parametrize(
    ("word", "line"),
    [
        ("attach", "paddock logs -f ID"),
        ("pull", "paddock image pull docker://IMAGE"),
        ("start", "paddock create, or paddock resume ID"),
        ("get", "paddock --help"),
        ("rnu", "paddock run"),
    ],
)
def test_a_verb_of_another_program_leads_to_our_line(word: str, line: str) -> None:
    with pytest.raises(WrongUsage) as wrong:
        parse([word, "x"])
    assert wrong.value.hint == line


def test_a_file_as_state_directory_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "paddock", "ls"],
        env={**os.environ, "PADDOCK_STATE_DIR": "/etc/passwd"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the state directory /etc/passwd cannot be used: Not a directory" in done.stderr
