"""Git: the private repository is worked with as anywhere, and a push is what the policy says it may be. What is refused
is refused before a credential is added, and the record lists each ref with its old and its new object."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import SandboxFactory
from tests.repositories.git_servers import ENVIRONMENT, Origin

from .rig import Internet, Records, Request, Response

if TYPE_CHECKING:
    from paddock import Sandbox

HOST, VALUE = "code.test", "the-value-of-the-token-0123456789"
NONE = "0" * 40
LARGE = b"a large file" * 1000
POINTER = f"""version https://git-lfs.github.com/spec/v1
oid sha256:{hashlib.sha256(LARGE).hexdigest()}
size {len(LARGE)}
"""
CREDENTIAL = "Basic " + base64.b64encode(f"me:{VALUE}".encode()).decode()
# The helper of any program that has a token in its environment.
HELPER = "!f() { echo username=me; echo password=$CODE; }; f"
ENV = {
    "GIT_CONFIG_COUNT": "3",
    "GIT_CONFIG_KEY_0": "credential.helper",
    "GIT_CONFIG_VALUE_0": HELPER,
    "GIT_CONFIG_KEY_1": "user.name",
    "GIT_CONFIG_VALUE_1": "a",
    "GIT_CONFIG_KEY_2": "user.email",
    "GIT_CONFIG_VALUE_2": "a@example.org",
    "GIT_TERMINAL_PROMPT": "0",
}


class Forge:
    """A private host of repositories: git's own server and that of LFS, for who has the token."""

    def __init__(self, root: Path, start: str) -> None:
        self.root, self.start = root, start
        self.asked: list[tuple[str, str, str | None]] = []

    @staticmethod
    def make(root: Path) -> str:
        """The repositories, and the commit that they start with."""
        lib, app = Origin(root / "made" / "lib"), Origin(root / "made" / "app")
        lib.commit({"lib.py": "print('lib')\n"})
        app.commit({"app.py": "print('app')\n", "large.bin": POINTER})
        url = f"https://{HOST}/acme/lib"
        app.commit({".gitmodules": f'[submodule "lib"]\n\tpath = lib\n\turl = {url}\n'})
        app.git("update-index", "--add", "--cacheinfo", f"160000,{lib.head()},lib")
        app.git("commit", "--quiet", "-m", "a submodule")
        app.git("branch", "agent/old")
        app.git("tag", "v1")
        for name, origin in (("lib", lib), ("app", app), ("other", app)):
            origin.git("clone", "--quiet", "--bare", str(origin.path), str(root / "acme" / f"{name}.git"))
        return app.head()

    def answer(self, request: Request) -> Response:
        login = request.field("authorization")
        self.asked.append((request.method, request.target, login))
        if login != CREDENTIAL:
            return Response(401, {"WWW-Authenticate": 'Basic realm="code"'}, b"")
        path, _, query = request.target.partition("?")
        if path.endswith("/info/lfs/objects/batch"):
            return self._batch(json.loads(request.body))
        if "/info/lfs/" in path:
            return Response(200, {"content-type": "application/octet-stream"}, LARGE)
        return self._git(request, path.replace("/acme/app/", "/acme/app.git/").replace("/lib/", "/lib.git/"), query)

    def _batch(self, asked: dict[str, object]) -> Response:
        href = f"https://{HOST}/acme/app.git/info/lfs/objects/{hashlib.sha256(LARGE).hexdigest()}"
        found = {"oid": hashlib.sha256(LARGE).hexdigest(), "size": len(LARGE), "actions": {"download": {"href": href}}}
        assert asked["operation"] == "download"
        fields = {"content-type": "application/vnd.git-lfs+json"}
        return Response(200, fields, json.dumps({"transfer": "basic", "objects": [found]}).encode())

    def _git(self, request: Request, path: str, query: str) -> Response:
        done = subprocess.run(
            ["git", "http-backend"],
            env={
                **ENVIRONMENT,
                "GIT_PROJECT_ROOT": str(self.root),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": request.method,
                "CONTENT_TYPE": request.field("content-type") or "",
                "HTTP_CONTENT_ENCODING": request.field("content-encoding") or "",
                "GIT_PROTOCOL": request.field("git-protocol") or "",
                "REMOTE_USER": "me",
                "REMOTE_ADDR": "127.0.0.1",
            },
            input=request.body,
            capture_output=True,
            check=False,
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        return Response(int(fields.pop("Status", "200")[:3]), fields, content)

    def refs(self, name: str = "app") -> dict[str, str]:
        command = ["git", "--git-dir", str(self.root / "acme" / f"{name}.git"), "for-each-ref"]
        listed = subprocess.run(
            [*command, "--format=%(refname) %(objectname)"], env=ENVIRONMENT, capture_output=True, text=True, check=True
        )
        return dict(line.split(" ") for line in listed.stdout.splitlines())

    def pushes(self) -> list[str | None]:
        """The credentials of what it was asked to take."""
        return [login for method, target, login in self.asked if method == "POST" and "receive-pack" in target]


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    root = tmp_path_factory.mktemp("forge")
    return root, Forge.make(root)


@pytest.fixture
def forge(internet: Internet, repositories: tuple[Path, str], tmp_path: Path) -> Forge:
    root, start = repositories
    shutil.copytree(root / "acme", tmp_path / "forge" / "acme")
    made = Forge(tmp_path / "forge", start)
    internet.site(HOST, made.answer)
    return made


@pytest.fixture
def checkout(sandbox: SandboxFactory, forge: Forge, tmp_path: Path) -> Sandbox:
    """A sandbox with a commit of its own in a clone of the private repository, submodule included."""
    value = tmp_path / "value"
    value.write_text(VALUE)
    made = sandbox(
        policy={
            "egress": {
                "allow": [
                    {"git": f"https://{HOST}/acme/app", "push": ["refs/heads/agent/*"], "secret": "CODE"},
                    {"git": f"https://{HOST}/acme/lib", "secret": "CODE"},
                ]
            },
            "secrets": {"CODE": {"from": {"file": str(value)}, "bind": {"host": HOST, "basic": True}}},
        },
    )
    run(made, f"git clone -q --recurse-submodules https://{HOST}/acme/app /workspace/app", directory="/workspace")
    run(made, "git checkout -q -b agent/one && echo 'print(1)' > app.py && git commit -qam one")
    return made


def run(sandbox: Sandbox, command: str, *, directory: str = "/workspace/app") -> str:
    done = sandbox.exec(command, cwd=directory, env=ENV, timeout_seconds=100)
    assert done.exit_code == 0, (done.stdout, done.stderr)
    return done.stdout.strip()


def head(sandbox: Sandbox) -> str:
    return run(sandbox, "git rev-parse HEAD")


def test_a_private_repository_is_cloned_with_its_submodule_fetched_and_pushed_to_where_the_policy_says(
    checkout: Sandbox, forge: Forge, records: Records, internet: Internet
) -> None:
    assert run(checkout, "cat lib/lib.py large.bin").startswith("print('lib')\nversion https://git-lfs")
    run(checkout, "git fetch -q origin && git push -q origin agent/one")
    first = head(checkout)
    assert forge.refs()["refs/heads/agent/one"] == first
    run(checkout, "git commit -q --allow-empty -m two && git push -q origin HEAD:agent/one")
    second = head(checkout)
    assert forge.refs() == {
        "refs/heads/main": forge.start,
        "refs/heads/agent/old": forge.start,
        "refs/heads/agent/one": second,
        "refs/tags/v1": forge.start,
    }
    pushes = records.of(checkout.id, "egress.push", host=HOST)
    assert [one.detail["refs"] for one in pushes] == [
        [f"refs/heads/agent/one {NONE}..{first}"],
        [f"refs/heads/agent/one {first}..{second}"],
    ]
    assert all(one.allowed and one.rule == "egress.allow[0]" for one in pushes)
    assert {one.detail["revision"] for one in pushes} == {checkout.policy}
    assert forge.pushes() == [CREDENTIAL, CREDENTIAL], "the value; inside is a placeholder"
    assert VALUE not in run(checkout, "env; cat .git/config")
    assert internet.strays() == []


# As git-lfs asks: for a batch, then for what it leads to.
LFS = """
import base64, hashlib, json, os, urllib.request
login = "Basic " + base64.b64encode(("me:" + os.environ["CODE"]).encode()).decode()
oid = open("/workspace/app/large.bin").read().split("sha256:")[1].split()[0]
def ask(url, data=None):
    fields = {"authorization": login, "content-type": "application/vnd.git-lfs+json"}
    return urllib.request.urlopen(urllib.request.Request(url, data, fields), timeout=60).read()
batch = json.dumps({"operation": "download", "transfers": ["basic"], "objects": [{"oid": oid, "size": 1}]}).encode()
answer = json.loads(ask("https://code.test/acme/app.git/info/lfs/objects/batch", batch))
data = ask(answer["objects"][0]["actions"]["download"]["href"])
print(hashlib.sha256(data).hexdigest() == oid)
"""


def test_what_a_pointer_of_lfs_stands_for_is_fetched(checkout: Sandbox, forge: Forge) -> None:
    done = checkout.exec(("python3", "-c", LFS), timeout_seconds=100)
    assert done.stdout.strip() == "True", done
    assert [login for _, target, login in forge.asked if "/info/lfs/" in target] == [CREDENTIAL, CREDENTIAL]


REFUSED = {
    "main": ("agent/one:main", "refs/heads/main"),
    "main, by force": ("--force agent/one:main", "refs/heads/main"),
    "a refspec by force": ("+agent/one:main", "refs/heads/main"),
    "a branch goes": ("--delete agent/old", "refs/heads/agent/old"),
    "a tag": ("agent/one:refs/tags/v2", "refs/tags/v2"),
    "tags that are there": ("--tags --force", "refs/tags/"),
    "everything": ("--mirror", "refs/heads/"),
    "a branch that is named so": ("agent/one:refs/heads/--mirror", "refs/heads/--mirror"),
    "beside what is allowed": ("agent/one agent/one:main", "refs/heads/main"),
    "notes": ("agent/one:refs/notes/x", "refs/notes/x"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_of_any_other_push_nothing_arrives_and_no_credential_is_added(
    what: str, checkout: Sandbox, forge: Forge, records: Records
) -> None:
    arguments, named = REFUSED[what]
    before = forge.refs()
    run(checkout, "git tag v9")
    done = checkout.exec(f"git push https://{HOST}/acme/app {arguments}", cwd="/workspace/app", env=ENV)
    assert done.exit_code != 0
    assert forge.pushes() == [], "nothing was asked, with or without a credential"
    assert forge.refs() == before
    (denied,) = records.denied(checkout.id, "egress.push")
    assert any(one.startswith(named) and ".." in one for one in denied.detail["refs"]), denied
    assert (denied.rule, denied.detail["revision"]) == ("egress.allow[0]", checkout.policy)
    run(checkout, "git push -q origin agent/one")  # the twin
    assert forge.refs()["refs/heads/agent/one"] == head(checkout)


def test_another_repository_is_neither_read_nor_written(checkout: Sandbox, forge: Forge, records: Records) -> None:
    asked = len(forge.asked)
    for command in (f"git push https://{HOST}/acme/other agent/one", f"git ls-remote https://{HOST}/mallory/app"):
        done = checkout.exec(command, cwd="/workspace/app", env=ENV)
        assert done.exit_code != 0
        assert "403" in done.stderr
    assert checkout.exec(f"git push https://{HOST}/acme/lib agent/one", cwd="/workspace/app", env=ENV).exit_code != 0
    assert len(forge.asked) == asked, "not even asked"
    assert len(records.denied(checkout.id, "egress.request", host=HOST)) == 3


# What git never says, and a program that wants to be read differently does.
PUSH = """
import base64, os, sys, urllib.request, urllib.error
login = "Basic " + base64.b64encode(("me:" + os.environ["CODE"]).encode()).decode()
fields = {"authorization": login, "content-type": "application/x-git-receive-pack-request"}
if sys.argv[2]: fields["content-encoding"] = sys.argv[2]
request = urllib.request.Request("https://code.test/acme/app/git-receive-pack", bytes.fromhex(sys.argv[1]), fields)
try: print(urllib.request.urlopen(request, timeout=60).status)
except urllib.error.HTTPError as error: print(error.code)
"""


def _command(line: str, *, capabilities: str = "report-status") -> bytes:
    text = f"{line}\0 {capabilities}".encode()
    return b"%04x%b" % (len(text) + 4, text) + b"0000"


@pytest.mark.parametrize("disguise", ["gzip", "deflate", "short lines", "no end", "options"])
def test_commands_that_could_be_read_in_two_ways_are_refused(disguise: str, checkout: Sandbox, forge: Forge) -> None:
    allowed, main = f"{NONE} {head(checkout)} refs/heads/agent/x", f"{NONE} {head(checkout)} refs/heads/main"
    body = {
        "gzip": gzip.compress(_command(main)),
        "deflate": gzip.compress(_command(allowed)),
        "short lines": b"0003" + _command(allowed),
        "no end": _command(allowed)[:-4] + b"9999",
        "options": _command(allowed, capabilities="push-options") + b"0010ci.skip=1\n0000",
    }[disguise]
    encoding = disguise if disguise in ("gzip", "deflate") else ""
    before = forge.refs()
    done = checkout.exec(("python3", "-c", PUSH, body.hex(), encoding), timeout_seconds=100)
    assert done.stdout.strip() in ("400", "403", "501"), done
    assert forge.pushes() == []
    assert forge.refs() == before
