"""`paddock policy`: check, explain, schema; no sandbox and no service is needed for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paddock.cli._main import run

POLICY = """\
egress:
  allow:
    - host: api.test
      methods: [GET]
      paths: [/repos/acme/**]
      secret: TOKEN
    - host: b.test
      ports: [8443]
  deny:
    - host: bad.test
secrets:
  TOKEN:
    from: {env: TOKEN}
    bind: {host: api.test, header: authorization}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "paddock.yaml"
    path.write_text(POLICY)
    return str(path)


def test_check_prints_the_revision(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "check", file, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["allow"], said["deny"], said["secrets"], len(said["revision"])) == (2, 1, ["TOKEN"], 64)
    assert run(["policy", "check", file]) == 0
    assert said["revision"] in capsys.readouterr().out


def test_check_says_line_column_and_what_to_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("egress:\n  alow: []\n")
    assert run(["policy", "check", str(path)]) == 125
    assert (
        capsys.readouterr().err
        == f"paddock: {path}:2:3: egress.alow: there is no key `alow` [policy_invalid]\n  try: `allow`?\n"
    )
    assert run(["policy", "check", str(tmp_path / "none.yaml")]) == 125


def test_check_counts_what_is_said_besides_about_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "paddock.yaml"
    path.write_text(
        "approve: [git.push]\ncommands: {deny: [{prefix: [rm]}]}\nfiles: {protect: [.git/hooks, '*.pem']}\n"
    )
    assert run(["policy", "check", str(path), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["approve"], said["commands"], said["files"]) == (1, 1, 2)


def test_explain_names_the_rule_and_its_line(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "explain", file, "get", "https://api.test/repos/acme/%61?q", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["rule"], said["line"], said["secrets"]) == ("egress.allow[0]", 3, ["TOKEN"])
    assert said["path"] == "/repos/acme/a?q"
    assert run(["policy", "explain", file, "GET", "https://bad.test"]) == 1
    assert f"egress.deny[0] denies it ({file}:10)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("method", "url", "near"),
    [
        ("POST", "https://api.test/repos/acme/x", "it is for GET"),
        ("GET", "https://api.test/", "it is for /repos/acme/**"),
        ("GET", "https://b.test/", "it is for port 8443"),
    ],
)
def test_explain_tells_what_came_near(
    method: str, url: str, near: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["policy", "explain", file, method, url]) == 1
    assert near in capsys.readouterr().out


@pytest.mark.parametrize(
    "url", ["https://127.1/", "https://u@api.test/", "https://api.test/..%2fx", "gopher://api.test"]
)
def test_explain_refuses_what_the_gateway_would(url: str, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "explain", file, "GET", url]) == 125
    assert capsys.readouterr().err


def test_diff_tells_what_a_second_file_allows(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "diff", file, file]) == 0
    assert capsys.readouterr().err == "paddock: they allow the same\n"
    other = tmp_path / "other.yaml"
    other.write_text(POLICY.replace("[8443]", "[8443, 9000]"))
    assert run(["policy", "diff", file, str(other)]) == 0
    assert "+ allowed  b.test port 9000" in capsys.readouterr().out
    assert run(["policy", "diff", str(other), file, "--json"]) == 0
    (change,) = json.loads(capsys.readouterr().out)
    assert (change["kind"], change["where"], change["ports"]) == ("denied", "b.test", "9000")


def test_diff_says_what_differs_between_two_rules_of_a_registry(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    one.write_text("egress: {allow: [{registry: pypi}]}")
    other.write_text("egress: {allow: [{registry: pypi, cooldown_days: 7}]}\ncommands: {default: deny}")
    assert run(["policy", "diff", str(one), str(other)]) == 0
    rows = capsys.readouterr().out
    assert "cooldown_days: none → 7.0" in rows
    assert "Allow(" not in rows
    assert "port -" not in rows


def test_the_schema_is_the_published_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["policy", "schema"]) == 0
    published = Path(__file__).parent.parent.parent / "docs/reference/paddock.schema.json"
    assert json.loads(capsys.readouterr().out) == json.loads(published.read_text())


def test_nothing_of_policies_is_loaded_where_none_is_asked_for() -> None:
    heavy = ["yaml", "idna", "publicsuffixlist", "paddock.policy.network"]
    script = (
        "import paddock.daemon.main.start, paddock.daemon.main._compose, paddock.daemon.main.service, sys;"
        f" print([name for name in {heavy} if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout == "[]\n"


def test_explain_says_what_becomes_of_commands_and_files_and_what_of_that_is_enforced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "paddock.yaml"
    file.write_text(
        "commands:\n  deny: [{prefix: [rm, -rf]}]\nfiles:\n  protect: [.git/hooks, '*.pem']\n  approve: [delete]\n"
    )

    def explained(*words: str) -> tuple[int, dict[str, str]]:
        code = run(["policy", "explain", str(file), *words, "--json"])
        return code, json.loads(capsys.readouterr().out)

    code, found = explained("--command", "ls && rm -rf /")
    assert (code, found["verdict"], found["rule"]) == (1, "deny", "commands.deny[0]")
    assert "doesn't check those" in found["advisory"]
    assert explained("--command", "ls")[0] == 0
    code, found = explained("--write", ".git/hooks/x")
    assert (code, found["rule"]) == (1, "files.protect[0]")
    assert "read-only mount" in found["inside"]
    assert "pattern" in explained("--write", "/workspace/a.pem")[1]["advisory"]
    assert explained("--delete", "x")[1]["verdict"] == "approve"
    assert run(["policy", "explain", str(file)]) == 125
    assert "--command LINE" in capsys.readouterr().err
