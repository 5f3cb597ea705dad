"""Attacks on other processes: pid 1, the host's, the neighbours'."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from attacking import REFUSALS, Attacker, needs, status_on_host

from paddock import Sandbox
from paddock.errors import SandboxDiedError
from paddock.supervisor.layout import RANGE_STRIDE, RUN_ID_BASE


def test_only_the_own_processes_are_seen(attacker: Attacker) -> None:
    with subprocess.Popen(["sleep", "600"]) as canary:
        try:
            seen = attacker.probe("answer([p for p in map(int, filter(str.isdigit, os.listdir('/proc')))])")
        finally:
            canary.kill()
    assert max(seen) < 1000, "a fresh sandbox has few processes, and counts them from one"
    assert len(seen) < 10


def test_a_signal_to_everybody_reaches_nobody_outside(attacker: Attacker, bystander: Sandbox) -> None:
    with subprocess.Popen(["sleep", "600"]) as canary:
        try:
            with contextlib.suppress(SandboxDiedError):  # the agent that would tell the result is among the killed
                attacker.run("os.kill(-1, signal.SIGKILL)")
            assert canary.poll() is None
        finally:
            canary.kill()
    assert bystander.exec("echo alive").stdout == "alive\n"
    assert attacker.sh("echo alive").stdout == "alive\n", "its own pid 1 lives on, and starts a new agent"


def test_pid_1_cannot_be_signalled(attacker: Attacker) -> None:
    attacker.run(
        "for number in range(1, 65):\n"
        "    attempt(os.kill, 1, number)\n"
        "fd = attempt(os.pidfd_open, 1)\n"
        "if isinstance(fd, int): [attempt(signal.pidfd_send_signal, fd, n) for n in (9, 15, 19)]\n"
    )
    assert attacker.sh("echo alive").stdout == "alive\n"


def test_pid_1_cannot_be_read_traced_or_robbed(attacker: Attacker) -> None:
    answers = attacker.probe(
        "def peek(path, flags=os.O_RDONLY):\n"
        "    try: fd = os.open(path, flags); return 'allowed' if os.read(fd, 1) else 'empty'\n"
        "    except OSError as error: return name(error.errno)\n"
        "found = {p: peek(f'/proc/1/{p}') for p in ('mem', 'environ', 'maps', 'auxv', 'stack', 'syscall')}\n"
        "found |= {p: attempt(os.readlink, f'/proc/1/{p}') for p in ('exe', 'cwd', 'root', 'fd/0', 'fd/3', "
        "'ns/user')}\n"
        "found |= {p + ' dir': attempt(os.listdir, f'/proc/1/{p}') for p in ('fd', 'map_files', 'root', 'cwd')}\n"
        "found['mem write'] = attempt(os.open, '/proc/1/mem', os.O_RDWR)\n"
        "found['ptrace attach'] = call(101, 16, 1, 0, 0)\n"
        "found['ptrace seize'] = call(101, 0x4206, 1, 0, 0)\n"
        "buffer = ctypes.create_string_buffer(16)\n"
        "vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 16)\n"
        "remote = (ctypes.c_void_p * 2)(0x400000, 16)\n"
        "found['process_vm_readv'] = call(310, 1, vector, 1, remote, 1, 0)\n"
        "answer(found)"
    )
    allowed = REFUSALS | {"EIO", "EFAULT", "ESRCH"}
    left = {what: got for what, got in answers.items() if got not in allowed}
    assert left in ({}, {"environ": "empty"}), "what is empty gives nothing away"


def test_the_agents_give_nothing_away(attacker: Attacker) -> None:
    with attacker.marked() as pid:
        agent = int(status_on_host(pid)["PPid"])
        if os.getuid() != 0:  # the one uid of inside and outside: not even that may look at what is not dumpable
            with pytest.raises(PermissionError):
                Path(f"/proc/{agent}/environ").read_bytes()
            return
        environment = Path(f"/proc/{agent}/environ").read_bytes()
        outside: set[str] = set()
        for fd in os.listdir(f"/proc/{agent}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile: it works on
                outside.add(os.readlink(f"/proc/{agent}/fd/{fd}"))
    assert environment.replace(b"\0", b"") == b""
    # Its own score, through a mount that has no path any more, is what it lowers its commands' chances with.
    harmless = re.compile(r"/dev/|/tmp\b|/workspace\b|/[0-9]+/oom_score_adj$")
    assert [target for target in outside if target.startswith("/") and not harmless.match(target)] == []


def test_every_process_has_a_uid_of_the_sandboxs_range_on_the_host(attacker: Attacker) -> None:
    needs("ids")
    pids = attacker.pids_on_host()
    assert len(pids) >= 2, "pid 1 and an agent at least"
    for pid in pids:
        status = status_on_host(pid)
        if "Uid" not in status:
            continue  # the marker's process, which has ended meanwhile
        ids = {int(number) for field in ("Uid", "Gid") for number in status[field].split()}
        assert ids, status
        assert all(number >= RUN_ID_BASE for number in ids)
        assert len({(number - RUN_ID_BASE) // RANGE_STRIDE for number in ids}) == 1


def test_two_sandboxes_have_no_uid_in_common(create: Callable[..., Sandbox]) -> None:
    needs("ids")
    ranges: list[int] = []
    for sandbox in (create(), create()):
        with Attacker(sandbox, None).marked() as pid:
            ranges.append((int(status_on_host(pid)["Uid"].split()[0]) - RUN_ID_BASE) // RANGE_STRIDE)
    assert ranges[0] != ranges[1]


def test_every_workload_is_filtered_and_can_gain_nothing(attacker: Attacker) -> None:
    with attacker.marked() as pid:
        status = status_on_host(pid)
    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
    if attacker.user is None:
        assert {status[field] for field in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {"0" * 16}


def test_pid_1_and_the_agents_have_no_capability_in_the_outer_namespace(attacker: Attacker) -> None:
    with attacker.marked() as pid:
        space = os.readlink(f"/proc/{pid}/ns/user")
        for other in attacker.pids_with(pid):
            if os.readlink(f"/proc/{other}/ns/user") != space:
                assert status_on_host(other)["CapEff"] == "0" * 16


def test_every_namespace_is_its_own(attacker: Attacker) -> None:
    with attacker.marked() as pid:
        kinds = ["ipc", "mnt", "net", "pid", "user", "uts", *(["cgroup"] if os.getuid() == 0 else [])]
        shared = [
            kind for kind in kinds if os.readlink(f"/proc/{pid}/ns/{kind}") == os.readlink(f"/proc/self/ns/{kind}")
        ]
    assert shared == []


def test_no_descriptor_leads_out(attacker: Attacker) -> None:
    links = attacker.probe(
        "answer([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if "
        "os.path.lexists(f'/proc/self/fd/{n}')])"
    )
    assert len(links) <= 3
    assert not [link for link in links if not link.startswith(("pipe:", "/dev/null"))]


def test_set_user_id_programs_gain_nothing(attacker: Attacker) -> None:
    attacker.sh("cp /bin/sh /tmp/sh; cp /usr/bin/id /workspace/id; chmod 6755 /tmp/sh /workspace/id")
    ordinary = Attacker(attacker.sandbox, None)
    before = ordinary.sh("id -u").stdout
    assert ordinary.sh("/tmp/sh -pc 'id -u'").stdout == before
    assert ordinary.sh("/workspace/id -u").stdout == before
    assert ordinary.sh("su -c id root </dev/null").exit_code != 0


def test_file_capabilities_gain_nothing(attacker: Attacker) -> None:
    attacker.run(
        "import shutil\n"
        "shutil.copy('/usr/bin/env', '/workspace/env')\n"
        "attempt(os.setxattr, '/workspace/env', 'security.capability', bytes.fromhex('0100000200000020') + bytes(12))\n"
    )
    result = Attacker(attacker.sandbox, None).sh("/workspace/env grep CapEff /proc/self/status")
    assert set(result.stdout.split()[1:]) <= {"0" * 16}


def test_limits_cannot_be_raised(attacker: Attacker) -> None:
    answers = attacker.probe(
        "import resource as r\n"
        "found = {}\n"
        "for limit in ('NOFILE', 'NPROC', 'CORE', 'MEMLOCK', 'FSIZE'):\n"
        "    soft, hard = r.getrlimit(getattr(r, 'RLIMIT_' + limit))\n"
        "    if hard == r.RLIM_INFINITY: found[limit] = 'unlimited'; continue\n"
        "    try: r.setrlimit(getattr(r, 'RLIMIT_' + limit), (hard, hard + 1)); found[limit] = 'raised'\n"
        "    except (OSError, ValueError): found[limit] = 'refused'\n"
        "answer(found)"
    )
    assert {limit: got for limit, got in answers.items() if got == "raised"} == {}
    assert answers["CORE"] == "refused"
    assert answers["NOFILE"] == "refused"


def test_nobody_makes_himself_more_important(attacker: Attacker) -> None:
    answers = attacker.probe(
        "param = ctypes.byref(ctypes.c_int(1))\n"
        "found = {'fifo': call(144, 0, 1, param), 'nice': attempt(os.setpriority, os.PRIO_PROCESS, 0, -20)}\n"
        "found['ionice'] = call(251, 1, 0, 1 << 13)\n"
        "try:\n"
        "    with open('/proc/self/oom_score_adj', 'w') as file: file.write('-1000')\n"
        "    found['oom'] = 'allowed'\n"
        "except OSError as error: found['oom'] = name(error.errno)\n"
        "answer(found)"
    )
    assert {what: got for what, got in answers.items() if got not in REFUSALS} == {}


def test_a_neighbour_can_be_neither_seen_nor_signalled(attacker: Attacker, bystander: Sandbox) -> None:
    with Attacker(bystander, None).marked() as pid:
        answer = attacker.probe(
            "answer([attempt(os.kill, int(sys.argv[1]), 0), os.path.exists('/proc/' + sys.argv[1])])", str(pid)
        )
        assert answer in (["ESRCH", False], ["EPERM", False])
        os.kill(pid, 0)


def test_orphans_are_reaped_ten_thousand_times(attacker: Attacker) -> None:
    left = attacker.probe(
        "import time\n"
        "for _ in range(2000):\n"
        "    if os.fork() == 0:\n"
        "        os.fork(); os._exit(0)\n"
        "    os.wait()\n"
        "def zombies():\n"
        "    count = 0\n"
        "    for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "        try:\n"
        "            with open(f'/proc/{pid}/stat') as file: count += "
        "file.read().rpartition(')')[2].split()[0] == 'Z'\n"
        "        except OSError: pass\n"
        "    return count\n"
        "end = time.monotonic() + 20\n"
        "while zombies() and time.monotonic() < end: time.sleep(0.05)\n"
        "answer(zombies())"
    )
    assert left == 0


def test_a_process_that_cannot_be_stopped_from_inside_is_stopped_from_outside(attacker: Attacker) -> None:
    with attacker.marked() as pid:
        attacker.sandbox.kill()
        assert not Path(f"/proc/{pid}").exists() or status_on_host(pid).get("State", "Z")[0] == "Z"


def test_the_host_survives_what_pid_1_of_a_sandbox_is_told(attacker: Attacker) -> None:
    """Ctrl-Alt-Del, reboot and the magic keys end nothing, not even the sandbox."""
    answers = attacker.probe(
        "found = [call(169, 0xfee1dead, 672274793, c, 0) for c in (0x01234567, 0x89ABCDEF, 0xCDEF0123, 0x4321FEDC)]\n"
        "try:\n"
        "    with open('/proc/sysrq-trigger', 'w') as file: file.write('b')\n"
        "    found.append('allowed')\n"
        "except OSError as error: found.append(name(error.errno))\n"
        "answer(found)"
    )
    assert set(answers) <= REFUSALS
    assert attacker.sh("true").exit_code == 0


def test_a_timeout_ends_a_tree_in_every_disguise(attacker: Attacker) -> None:
    marker = f"paddock-disguise-{secrets.token_hex(8)}"
    argv = ("python3", "-I", "-S", "-c", _DISGUISES, marker)
    seconds = 2
    # Of one that is slow to put them on it says nothing yet.
    while not (result := attacker.sandbox.exec(argv, user=attacker.user, timeout_seconds=seconds)).stdout:
        assert result.limit == "time"
        assert seconds < 60
        seconds *= 2
    assert (result.limit, result.signal) == ("time", 9)
    assert result.stdout == "ready\n"
    assert attacker.sh("true").exit_code == 0
    assert not _with_argument(marker)


def test_a_timeout_of_a_background_command_is_kept(attacker: Attacker) -> None:
    marker = f"paddock-disguise-{secrets.token_hex(8)}"
    argv = ("python3", "-I", "-S", "-c", _DISGUISES, marker)
    with attacker.sandbox.start(argv, user=attacker.user, timeout_seconds=1, background=True) as process:
        assert process.wait().limit == "time"
    assert not _with_argument(marker)


_DISGUISES = """
import os, signal, time
done, under_way = os.pipe()
for disguise in range(8):
    if os.fork() == 0:
        if disguise & 1: os.setsid()
        if disguise & 2 and os.fork(): os._exit(0)
        if disguise & 4:
            for n in range(1, 32):
                try: signal.signal(n, signal.SIG_IGN)
                except (OSError, ValueError): pass
        for n in (0, 1, 2, under_way): os.close(n)
        while True: time.sleep(600)
os.close(under_way)
os.read(done, 1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('ready', flush=True)
while True: time.sleep(600)
"""


def _with_argument(marker: str) -> list[str]:
    found: list[str] = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if marker.encode() in entry.read_bytes():
                found.append(str(entry))
    return found
