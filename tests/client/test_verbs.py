"""The names of today, the ones of before 1.0, and what a caller is told who gets them wrong."""

from __future__ import annotations

import asyncio
import gc
import pickle
import re
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import paddock.errors
from paddock import AsyncSandbox, Sandbox, _renamed
from paddock.client import _command
from paddock.client._capture import Capture
from paddock.errors import FileError, InvalidArgumentError, as_python_error
from tests.client.door import Rig

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.mark.root  # `as_user("root")` is one of the verbs
def test_a_program_that_uses_every_verb_runs_without_a_warning(module_state: Path) -> None:
    env = {
        "PADDOCK_STATE_DIR": str(module_state),
        "PATH": "/usr/bin:/bin",
        "HOME": str(Path.home()),
        "PYTHONPATH": str(ROOT),
    }
    argv = [sys.executable, "-W", "error", HERE / "verbs.py"]
    run = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if "LevelUnavailableError" in run.stderr:
        pytest.skip(run.stderr.splitlines()[-1])
    assert (run.returncode, run.stderr) == (0, "every verb\n")


def test_that_program_names_every_verb() -> None:
    text = (HERE / "verbs.py").read_text()
    from paddock.client import Filesystem, Process, Workspace

    asked: list[str] = []
    for kind in (Sandbox, Filesystem, Process, Workspace):
        asked += [name for name in vars(kind) if not name.startswith("_") and f".{name}" not in text]
    # What is only an old name, a property that says what is known, or has a remote or a terminal for its partner.
    rest = (
        "filesystem info level pid has_stderr resize kill watch get list refresh diff push pull_request stderr status"
    )
    assert set(asked) <= set(rest.split())


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *((90, 90), (1.5, 1.5), ("90", 90), ("1.5s", 1.5), ("5m", 300), ("2h", 7200), ("1d", 86400), (None, None)),
        (timedelta(minutes=5), 300),
    ],
)
def test_a_duration_is_seconds_a_timedelta_or_a_text(written: Any, meant: float | None) -> None:
    assert _command.seconds(written, "ttl") == meant


def test_what_is_no_duration_is_refused_by_the_name_of_the_argument() -> None:
    with pytest.raises(InvalidArgumentError, match=r"ttl='5 parsecs' isn't a duration \(ttl=90, ttl=\"5m\"\)"):
        _command.seconds("5 parsecs", "ttl")
    for wrong in ([], True, {}):
        with pytest.raises(TypeError, match="ttl is "):
            _command.seconds(wrong, "ttl")  # type: ignore[arg-type]


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "limits": ({"limits": 512}, TypeError, r"limits is the int 512: write Limits\(memory_mib=512\)"),
    "a limit": ({"limits": {"ram": 1}}, TypeError, "limits has no 'ram': there are cpus, memory_mib"),
    "env": ({"env": {"A": 1}}, TypeError, r"env\['A'\] is the int 1: names and values are texts, so write '1'"),
    "mounts": ({"mounts": "."}, TypeError, r"mounts is a str: write \[Mount\(source='\.'\)\]"),
    "workspace": ({"workspace": 3}, TypeError, "workspace is the int 3: write an id, a name or the object"),
    "network": ({"network": True}, InvalidArgumentError, "would let it reach everything"),
    "a network": ({"network": ["https://x.org/a"]}, InvalidArgumentError, "isn't the name of a host"),
    "two": ({"network": ["pypi"], "policy": "p.yaml"}, InvalidArgumentError, "both say what it may reach"),
    "image": ({"image": "python:3.12", "template": "host"}, InvalidArgumentError, "two ways to say the same"),
    "level": ({"level": "docker"}, InvalidArgumentError, r"no level 'docker'.*\(`container`\?\)"),
    "ttl": ({"ttl": None}, TypeError, "ttl is None"),
    "name": ({"name": 3}, TypeError, "name: expected str, got int"),
    "one limit": ({"limits": {"memory_mib": "1g"}}, TypeError, "limits.memory_mib: expected int, got str"),
    "unknown": ({"parsecs": 3}, TypeError, r"create\(\) has no argument 'parsecs'$"),
    "a lifetime of others": ({"timeout": 3}, TypeError, r"create\(\) has no argument 'timeout': write ttl=\"5m\""),
    "memory of others": ({"memory": 512}, TypeError, r"'memory': write limits=\{\"memory_mib\": 512\}"),
    "no host": ({"network": ["all"]}, InvalidArgumentError, "'all', which is neither a registry nor a host name"),
}


@pytest.mark.parametrize(("arguments", "kind", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_argument_is_named_with_what_to_write(
    rig: Rig, arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        Sandbox.create(transport=rig.transport, **arguments)
    assert rig.door.performed == []


@pytest.mark.parametrize(
    ("name", "ours"),
    [("commands", "exec(…), start(…)"), ("get_host", "forward(port)"), ("set_timeout", "extend(ttl)")],
)
def test_a_method_of_another_library_is_named_by_ours(rig: Rig, name: str, ours: str) -> None:
    with Sandbox.create(transport=rig.transport) as sandbox:
        with pytest.raises(
            AttributeError, match=re.escape(f"'Sandbox' object has no attribute {name!r}: write .{ours}")
        ):
            getattr(sandbox, name)
        with pytest.raises(AttributeError, match=r"no attribute 'mkdir': write \.make_dir\(path\)"):
            _ = sandbox.files.mkdir  # type: ignore[attr-defined]
        with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
            _ = sandbox.nothing  # type: ignore[attr-defined]
        assert not hasattr(sandbox, "__nothing__")


def test_what_takes_no_arguments_by_position_says_the_names() -> None:
    with pytest.raises(TypeError, match=r"Mount\(\) takes its arguments by name: write Mount\(source=…, target=…\)"):
        paddock.Mount("/tmp", "/a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"write Sandbox\.create\(\)"):
        Sandbox()


@pytest.mark.parametrize(
    ("port", "kind"), [(0, InvalidArgumentError), (99999, InvalidArgumentError), ("80", TypeError)]
)
def test_what_is_no_port_is_refused_before_anything_listens(rig: Rig, port: Any, kind: type[Exception]) -> None:
    with Sandbox.create(transport=rig.transport) as sandbox, pytest.raises(kind, match="port"):
        sandbox.forward(port)


def test_content_that_is_none_is_named(rig: Rig) -> None:
    with Sandbox.create(transport=rig.transport) as sandbox:
        with pytest.raises(TypeError, match="data is a dict: write a text"):
            sandbox.files.write("a", {"a": 1})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="data is the int 5: write a text, bytes, a file or an iterable of bytes"):
            sandbox.files.write("a", 5)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="'/no/such' does not exist"):
            sandbox.files.upload("/no/such", "x")


def test_an_argument_of_a_wrong_type_is_a_type_error_of_the_daemon_s_too(rig: Rig) -> None:
    wrong: Any = "TERM"
    with Sandbox.create(transport=rig.transport) as sandbox:
        with pytest.raises(TypeError, match="signal: expected int, got str") as found:
            sandbox.signal("ex_1", wrong)
        assert isinstance(found.value, InvalidArgumentError)
        copy = pickle.loads(pickle.dumps(found.value))
        assert (type(copy), str(copy)) == (type(found.value), str(found.value))
        with pytest.raises(TypeError, match=r"pty is the bool True: write PtySize\(rows=24, columns=80\)"):
            sandbox.start("sh", pty=True)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="code is None: write the text of a program"):
            sandbox.run_code(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("command", [123, b"ls", [1], None])
def test_what_is_no_command_is_a_type_error(rig: Rig, command: Any) -> None:
    with Sandbox.create(transport=rig.transport) as sandbox, pytest.raises(TypeError, match="command"):
        sandbox.exec(command)


def test_limits_and_mounts_may_be_plain_values(rig: Rig, tmp_path: Path) -> None:
    mounts: Any = [str(tmp_path), paddock.Mount(source=str(tmp_path), target="/a", mode="ro")]  # type: ignore[arg-type]
    with Sandbox.create(limits={"memory_mib": 64}, mounts=mounts, transport=rig.transport) as sandbox:
        spec = sandbox.info.spec
    assert spec.limits.memory_mib == 64
    assert [(one.source, one.target, one.mode) for one in spec.mounts] == [
        (str(tmp_path), "/workspace", paddock.MountMode.COPY_ON_WRITE),
        (str(tmp_path), "/a", paddock.MountMode.READ_ONLY),
    ]
    with Sandbox.create(image="python:3.12", transport=rig.transport) as sandbox:
        assert sandbox.info.spec.template == "docker://python:3.12"


def test_the_names_of_the_published_programs_say_nothing(rig: Rig) -> None:
    with Sandbox.create(ttl_seconds=60, transport=rig.transport) as sandbox:
        assert sandbox.info.spec.ttl_seconds == 60
        sandbox.exec("true", timeout_seconds=30)
        assert sandbox.filesystem is not None


def test_other_old_names_warn_where_they_are_used_and_work(rig: Rig) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Sandbox.create(idle_seconds=60, nested=1, transport=rig.transport) as sandbox:
            assert (sandbox.info.spec.idle_seconds, sandbox.info.spec.nested) == (60, 1)
            path = str(rig.door.root / "f")
            with sandbox.files.open_write(path) as writer:  # type: ignore[attr-defined]
                writer.write("x")
            with sandbox.files.open_read(path) as reader:  # type: ignore[attr-defined]
                assert reader.read() == b"x"
    told = [(str(one.message), one.filename) for one in caught if one.category is DeprecationWarning]
    assert [words for words, _ in told] == [
        "create(idle_seconds=…) is called idle_timeout= now",
        "create(nested=…) is called max_children= now",
        "files.open_write(…) is called files.open(…, 'wb') now",
        "files.open_read(…) is called files.open(…, 'rb') now",
    ]
    assert {name for _, name in told} == {__file__}
    with pytest.raises(TypeError, match="got both 'ttl' and its old name 'ttl_seconds'"):
        Sandbox.create(ttl=1, ttl_seconds=2, transport=rig.transport)
    assert len(Path(_renamed.__file__).read_text().splitlines()) <= 150


def test_errors_have_one_suffix_and_their_old_names_warn() -> None:
    kinds = {
        name for name, value in vars(paddock.errors).items() if isinstance(value, type) and not name.startswith("_")
    }
    assert {name for name in kinds if not name.endswith("Error")} == set()
    with pytest.warns(DeprecationWarning, match=r"paddock\.errors\.NotFound is called NotFoundError now") as caught:
        from paddock.errors import NotFound  # type: ignore[attr-defined]
    assert NotFound is paddock.errors.NotFoundError
    assert caught[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="CommandFailedError"):
        assert paddock.CommandFailed is paddock.CommandFailedError  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        paddock.errors.Nothing  # type: ignore[attr-defined]  # noqa: B018


def test_callbacks_get_each_line_and_an_exception_of_one_ends_the_command(rig: Rig) -> None:
    async def scenario() -> list[str]:
        lines: list[str] = []
        async with await AsyncSandbox.create(transport=rig.async_transport) as sandbox:
            result = await sandbox.exec("echo a; echo b; printf c; echo d >&2; exit 3", on_stdout=lines.append)
            assert (result.exit_code, result.stdout, result.stderr) == (3, "a\nb\nc", "d\n")
            with pytest.raises(ZeroDivisionError):
                await sandbox.exec("echo; sleep 300", on_stdout=lambda line: 1 // 0)
        return lines

    assert asyncio.run(scenario()) == ["a", "b", "c"]
    with Sandbox.create(transport=rig.transport) as sandbox, pytest.raises(ZeroDivisionError):
        sandbox.exec("echo >&2; sleep 300", on_stderr=lambda line: 1 // 0)


def test_a_capture_keeps_both_ends_and_counts_the_rest() -> None:
    capture = Capture(8, None)
    for byte in b"0123456789abcdefghij":
        capture.feed(bytes([byte]))
    kept = capture.output()
    assert (kept.head, kept.tail, kept.total_bytes, kept.omitted_bytes) == (b"0123", b"ghij", 20, 12)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ENOENT", FileNotFoundError),
        ("EACCES", PermissionError),
        ("EISDIR", IsADirectoryError),
        ("EEXIST", FileExistsError),
    ],
)
def test_a_refused_file_is_also_python_s_own_error(name: str, kind: type[OSError]) -> None:
    import errno

    error = as_python_error(FileError("it broke", hint="look", errno=name, path="/x"))
    assert isinstance(error, FileError)
    assert isinstance(error, kind)
    assert (error.code, error.errno, str(error)) == ("file", getattr(errno, name), "it broke (look)")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.details) == (type(error), str(error), error.details)


def test_a_handle_says_that_it_is_no_value_and_that_it_was_dropped(rig: Rig) -> None:
    sandbox = Sandbox.create(transport=rig.transport)
    with pytest.raises(TypeError, match=f"can't be pickled: send '{sandbox.id}'"):
        pickle.dumps(sandbox)
    with pytest.warns(ResourceWarning, match=f"sandbox {sandbox.id} was never killed"):
        del sandbox
    persistent = Sandbox.create(persistent=True, transport=rig.transport)
    again = Sandbox.connect(persistent.id, transport=rig.transport)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del persistent, again
        gc.collect()
