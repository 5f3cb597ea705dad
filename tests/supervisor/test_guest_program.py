"""What is executed as an agent: a sealed file that nobody inside can read or write."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import paddock
from paddock.backends.guest import program
from paddock.model import replace
from paddock.supervisor import _spawner
from tests.supervisor.conftest import Play, Yard, run

_LOOKS = (("cat", "exe"), ("cat", "maps"), ("cat", "environ"), ("ls", "fd"), ("readlink", "exe"), ("cat", "mem"))


def test_nobody_inside_reads_what_an_agent_executes_or_holds(play: Play[None]) -> None:
    async def scene(yard: Yard) -> None:
        instance = await yard.create()
        for user in (None, "root") if yard.backend.root_user else (None,):
            for word, name in _LOOKS:
                status, said = await run(instance, word, f"/proc/2/{name}", user=user)
                assert status.code, (user, word, name, said)
        assert (await run(instance, "head", "-c7", "/proc/2/cmdline"))[1] == b"paddock"
        await instance.kill()

    play(scene)


def test_whoever_adopts_a_sandbox_knows_its_environment(play: Play[None]) -> None:
    async def scene(yard: Yard) -> None:
        plan = yard.plan()
        await yard.backend.create(replace(plan, spec=replace(plan.spec, env={"GIVEN": "at the create"})))
        adopted = await yard.backend.adopt(plan.id)
        assert adopted is not None
        assert (await run(adopted, "printenv", "GIVEN"))[1] == b"at the create\n"
        await adopted.kill()

    play(scene)


def test_what_cannot_be_executed_here_is_refused_before_there_is_a_sandbox(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    other = tmp_path / "guest"
    other.write_bytes(b"\x7fELF of another machine")
    with pytest.raises(OSError, match="cannot be executed"):
        _spawner.open_program(str(other))
    fd = _spawner.open_program(str(program()))
    with pytest.raises(OSError):
        os.write(fd, b"x")
    os.close(fd)
    assert os.listdir("/proc/self/fd") == before


_FORBIDDEN = """
import os, sys
from paddock.supervisor import _spawner
program = _spawner.open_program(sys.argv[1])  # which executes it once
assert not _spawner.is_in_memory(program)
try:
    os.open(f"/proc/self/fd/{program}", os.O_WRONLY)
except OSError:
    sys.exit(0)
sys.exit("it can be written")
"""


@pytest.mark.root
def test_where_memory_may_not_be_executed_it_is_a_file_that_is_mounted_nowhere() -> None:
    # memfd_noexec is a setting of the pid namespace (sysctl/vm.rst).
    own = ["unshare", "--fork", "--pid", "--mount-proc"]
    forbid = ["sh", "-c", 'echo 2 >/proc/sys/vm/memfd_noexec && exec "$@"', "sh"]
    ordinary = ["setpriv", "--reuid", "65534", "--clear-groups"]  # it makes a user namespace for it
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o755)
        copy = Path(place, "guest")
        copy.write_bytes(program().read_bytes())
        copy.chmod(0o644)
        for whose in ([], ordinary):
            subprocess.run(
                [*own, *forbid, *whose, sys.executable, "-c", _FORBIDDEN, copy],
                env={"PYTHONPATH": str(Path(paddock.__file__).parents[1]), "PATH": os.environ["PATH"]},
                cwd="/",
                check=True,
                timeout=60,
            )
