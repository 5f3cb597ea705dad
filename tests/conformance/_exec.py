"""Commands: what is executed, as whom, where, with what around it, and how its end is told."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from paddock.errors import InvalidArgumentError, NotFoundError, RequestError

from ._box import Box, Finished
from ._lab import Bench, Lab, guarantee


class ExecConformance(Bench):
    """Starting, identity, surroundings, ending."""

    @guarantee()
    async def test_every_exit_code_is_reported_as_it_was(self, lab: Lab) -> None:
        box = await lab.box()
        for code in range(256):
            status = (await box.sh(f"exit {code}")).status
            assert (status.code, status.signal, status.exit_code) == (code, None, code)

    @guarantee()
    async def test_death_by_signal_is_reported_as_the_signal(self, lab: Lab) -> None:
        box = await lab.box()
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGUSR1):
            status = (await box.sh(f"kill -{int(number)} $$")).status
            assert (status.code, status.signal, status.exit_code) == (None, number, 128 + number)

    @guarantee()
    async def test_an_exit_code_above_128_is_not_taken_for_a_signal(self, lab: Lab) -> None:
        status = (await (await lab.box()).sh("exit 137")).status
        assert (status.code, status.signal) == (137, None)

    @guarantee()
    async def test_duration_is_that_of_the_command(self, lab: Lab) -> None:
        box = await lab.box()
        status = (await box.python("import time; time.sleep(0.3)")).status
        assert 0.3 <= status.duration_seconds < 60

    @guarantee()
    async def test_waiting_again_and_from_many_tasks_gives_the_same_status(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("sh", "-c", "exit 3")
        statuses = await asyncio.gather(*(handle.wait() for _ in range(5)))
        assert {status.code for status in (*statuses, await handle.wait())} == {3}
        await handle.aclose()

    @guarantee()
    async def test_arguments_arrive_byte_for_byte(self, lab: Lab) -> None:
        box = await lab.box()
        arguments = [
            "",
            " ",
            "a b",
            "*",
            "$HOME",
            "`id`",
            "it's",
            '"',
            "\\",
            "\n",
            "-n",
            "--",
            "ü€𝄞",
            "\x1b[31m",
            "x" * 100_000,
        ]
        finished = await box.python(
            "import sys, os; sys.stdout.buffer.write(b'\\0'.join(map(os.fsencode, sys.argv[1:])))", *arguments
        )
        assert finished.out.split(b"\0") == [argument.encode() for argument in arguments]

    @guarantee()
    async def test_argv_zero_is_the_first_argument(self, lab: Lab) -> None:
        finished = await (await lab.box()).run("sh", "-c", "tr '\\0' '\\n' </proc/$$/cmdline | head -n 1")
        assert finished.text == "sh"

    @guarantee()
    async def test_a_program_is_found_through_the_path_of_its_environment(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("tools/paddock-conformance-tool", b"#!/bin/sh\necho found\n", mode=0o755)
        path = f"{await box.pwd()}/tools:/usr/local/bin:/usr/bin:/bin"
        assert (await box.run("paddock-conformance-tool", env={"PATH": path})).text == "found"

    @guarantee()
    async def test_a_program_with_a_slash_is_taken_from_the_working_directory(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("here/tool", b"#!/bin/sh\necho here\n", mode=0o755)
        assert (await box.run("./tool", cwd=f"{box.workdir}/here")).text == "here"

    @guarantee()
    async def test_an_unknown_program_is_not_found(self, lab: Lab) -> None:
        box = await lab.box()
        for program in ("paddock-no-such-program", "/no/such/program", "./nothing"):
            with pytest.raises(NotFoundError):
                await box.run(program)

    @guarantee()
    async def test_a_file_that_is_not_executable_is_an_invalid_argument(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("plain", b"#!/bin/sh\n", mode=0o644)
        with pytest.raises(InvalidArgumentError):
            await box.run("./plain")

    @guarantee()
    async def test_a_directory_is_not_a_program(self, lab: Lab) -> None:
        box = await lab.box()
        with pytest.raises(RequestError):
            await box.run(await box.pwd())

    @guarantee()
    async def test_a_file_of_no_known_format_is_an_invalid_argument(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("garbage", b"\x00\x01\x02 not a program", mode=0o755)
        with pytest.raises(InvalidArgumentError):
            await box.run("./garbage")

    @guarantee()
    async def test_an_unknown_working_directory_is_not_found(self, lab: Lab) -> None:
        with pytest.raises(NotFoundError):
            await (await lab.box()).run("true", cwd="/no/such/directory")

    @guarantee()
    async def test_a_file_is_not_a_working_directory(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("file", b"")
        with pytest.raises(RequestError):
            await box.run("true", cwd=f"{box.workdir}/file")

    @guarantee()
    async def test_an_unknown_user_is_not_found(self, lab: Lab) -> None:
        with pytest.raises(NotFoundError):
            await (await lab.box()).run("true", user="paddock-nobody-here")

    @guarantee()
    async def test_what_the_kernel_cannot_take_as_an_argument_is_refused(self, lab: Lab) -> None:
        box = await lab.box()
        refused: list[dict[str, Any]] = [
            {"argv": ()},
            {"argv": ("",)},
            {"argv": ("true", "a\0b")},
            {"argv": ("true",), "env": {"A\0": "b"}},
            {"argv": ("true",), "env": {"A": "b\0"}},
            {"argv": ("true",), "env": {"A=B": "c"}},
            {"argv": ("true",), "env": {"": "c"}},
            {"argv": ("true",), "cwd": "a\0b"},
        ]
        for fields in refused:
            with pytest.raises(RequestError):
                await box.run(*fields.pop("argv"), **fields)
        assert (await box.run("true")).status.code == 0

    @guarantee()
    async def test_an_argument_longer_than_the_kernel_takes_is_an_invalid_argument(self, lab: Lab) -> None:
        box = await lab.box()
        with pytest.raises(InvalidArgumentError):
            await box.run("true", "x" * (1 << 18))  # MAX_ARG_STRLEN is 128 KiB
        assert (await box.run("true")).status.code == 0

    @guarantee()
    async def test_a_command_that_could_not_start_leaves_nothing(self, lab: Lab) -> None:
        box = await lab.box()
        for _ in range(20):
            with pytest.raises(NotFoundError):
                await box.run("paddock-no-such-program")
        assert await box.instance.execs() == ()

    @guarantee()
    async def test_commands_start_in_the_working_directory_of_the_template(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("proof", b"")
        assert "proof" in (await box.run("ls")).text.split()

    @guarantee()
    async def test_a_working_directory_can_be_named(self, lab: Lab) -> None:
        box = await lab.box()
        await box.write("a dir/ü/file", b"")
        for directory in (f"{box.workdir}/a dir/ü", "a dir/ü"):
            assert (await box.run("pwd", cwd=directory)).text == f"{await box.pwd()}/a dir/ü"

    @guarantee()
    async def test_variables_arrive_exactly_and_are_added_to_the_templates(self, lab: Lab) -> None:
        box = await lab.box(env={"FROM_SPEC": "spec", "BOTH": "spec"})
        wanted = {"PLAIN": "1", "EMPTY": "", "LINES": "a\nb", "EQUALS": "a=b=c", "UNICODE": "ü€", "BOTH": "exec"}
        seen = await _environment(box, env=wanted)
        assert {name: seen.get(name) for name in wanted} == wanted
        assert seen.get("FROM_SPEC") == "spec"
        assert "PATH" in seen

    @guarantee()
    async def test_the_environment_of_one_command_is_not_seen_by_the_next(self, lab: Lab) -> None:
        box = await lab.box()
        await box.run("true", env={"ONLY_ONCE": "1"})
        assert "ONLY_ONCE" not in await _environment(box)

    @guarantee()
    async def test_a_command_has_no_descriptor_but_its_three_streams(self, lab: Lab) -> None:
        finished = await (await lab.box()).python(
            "import os\n"
            "for n in range(3, 1024):\n"
            "    try: print(n, os.readlink(f'/proc/self/fd/{n}'))\n"
            "    except OSError: pass\n"
        )
        assert finished.out == b""

    @guarantee()
    async def test_signals_are_neither_blocked_nor_ignored_at_the_start(self, lab: Lab) -> None:
        # Each is tried: not every kernel tells of them in /proc/self/status.
        script = 'for s in 1 2 3 10 12 13 14 15 24 25 29; do sh -c "kill -$s \\$\\$"; echo $s $?; done'
        finished = await (await lab.box()).sh(script)
        ends = [tuple(map(int, line.split())) for line in finished.text.splitlines()]
        assert len(ends) == 11
        assert all(code == 128 + number for number, code in ends), ends

    @guarantee()
    async def test_a_command_leads_its_own_process_group(self, lab: Lab) -> None:
        finished = await (await lab.box()).python("import os; print(os.getpid() == os.getpgid(0))")
        assert finished.text == "True"

    @guarantee()
    async def test_the_pid_is_the_one_inside(self, lab: Lab) -> None:
        box = await lab.box()
        handle = await box.start("sh", "-c", "echo $$; read _", stdin=True)
        assert handle.stdout is not None
        assert int(await handle.stdout.read()) == handle.pid
        await handle.aclose()

    @guarantee()
    async def test_files_made_by_a_command_have_ordinary_modes(self, lab: Lab) -> None:
        box = await lab.box()
        await box.sh(": >file; mkdir directory")
        assert ((await box.stat("file")).mode, (await box.stat("directory")).mode) == (0o644, 0o755)

    @guarantee()
    async def test_the_user_is_the_templates_when_none_is_named(self, lab: Lab) -> None:
        box = await lab.box()
        if not lab.capabilities.isolation:
            pytest.skip(f"backend {lab.backend.name!r} does not claim 'isolation': it has no users of its own")
        user = box.plan.template.user(None)
        assert user is not None
        assert (await box.sh("echo $(id -u):$(id -g)")).text == f"{user.uid}:{user.gid}"

    @guarantee("root_user")
    async def test_root_is_root_inside(self, lab: Lab) -> None:
        assert (await (await lab.box()).sh("id -u", user="root")).text == "0"

    @guarantee("root_user")
    async def test_a_user_can_be_named_by_number(self, lab: Lab) -> None:
        assert (await (await lab.box()).sh("id -u", user="0")).text == "0"

    @guarantee("root_user")
    async def test_root_can_change_what_belongs_to_root_and_the_user_cannot(self, lab: Lab) -> None:
        box = await lab.box()
        assert (await box.sh("echo secret >/root/proof && chmod 600 /root/proof", user="root")).status.code == 0
        assert (await box.sh("cat /root/proof")).status.code != 0
        assert (await box.sh("cat /root/proof", user="root")).text == "secret"

    @guarantee()
    async def test_root_is_refused_where_it_is_not_offered(self, lab: Lab) -> None:
        if lab.capabilities.root_user:
            pytest.skip("this backend offers root")
        with pytest.raises(RequestError):
            await (await lab.box()).run("id", user="root")

    @guarantee("isolation")
    async def test_the_environment_of_the_host_is_nowhere_inside(self, lab: Lab) -> None:
        box = await lab.box()
        assert not await _canary_visible(box, user=None)

    @guarantee("isolation", "root_user")
    async def test_the_environment_of_the_host_is_nowhere_inside_for_root_either(self, lab: Lab) -> None:
        box = await lab.box()
        assert not await _canary_visible(box, user="root")

    @guarantee()
    async def test_the_environment_of_the_host_is_not_inherited_by_commands(self, lab: Lab) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PADDOCK_CANARY", lab.marker)
            box = await lab.box()
            assert lab.marker not in (await _environment(box)).values()


async def _environment(box: Box, **spec: Any) -> dict[str, str]:
    finished: Finished = await box.run("cat", "/proc/self/environ", **spec)
    pairs = (item.decode().partition("=") for item in finished.out.split(b"\0") if item)
    return {name: value for name, _, value in pairs}


async def _canary_visible(box: Box, *, user: str | None) -> bool:
    """Whether a variable that every process of a host has (PWD of the tests) shows in any readable environ inside."""
    canary = os.getcwd().encode()
    finished = await box.python(
        "import glob, sys\n"
        "found = b''\n"
        "for name in glob.glob('/proc/[0-9]*/environ'):\n"
        "    try: found += open(name, 'rb').read()\n"
        "    except OSError: pass\n"
        "sys.stdout.buffer.write(found)\n",
        user=user,
    )
    return canary in finished.out
