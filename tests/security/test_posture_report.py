"""What a jail shows of itself, as amicontained would tell it, against what is expected, inside and on the host.

The expectation is written down, here and in `blocked_calls.txt`, so that whatever weakens a jail changes it on purpose.
"""

from __future__ import annotations

import os
import platform
import stat
from pathlib import Path

import pytest
from attacking import Attacker, status_on_host

from paddock.linux import syscall_names

_REPORT = """
numbers = json.loads(sys.argv[1])
def fields():
    with open('/proc/self/status') as file:
        return dict(line.rstrip('\\n').split(':\\t', 1) for line in file if ':\\t' in line)
own = fields()
# Each in a process of its own, with arguments that mean nothing: what is let through fails for that, or does no harm.
skip = set('exit exit_group rt_sigreturn fork vfork clone pause kill tkill tgkill rt_sigsuspend select ppoll poll '
           'restart_syscall pselect6 seccomp prctl close_range'.split())
refused = {}
for call_name, number in numbers.items():
    if call_name in skip: continue
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(3)
        got = call(number, *[-1] * 6)
        os.write(w, got.encode()); os._exit(0)
    os.close(w); got = os.read(r, 64).decode(); os.close(r); os.waitpid(pid, 0)
    refused[call_name] = got
devices = sorted(name for name in os.listdir('/dev'))
table = [line.split() for line in open('/proc/self/mountinfo')]
mounts = [words[4] + ' ' + ('ro' if 'ro' in words[5].split(',') else 'rw') for words in table]
answer({'status': {k: own[k] for k in ('CapInh', 'CapPrm', 'CapEff', 'CapAmb', 'NoNewPrivs', 'Seccomp')},
        'devices': devices, 'mounts': sorted(mounts),
        'blocked': sorted(k for k, v in refused.items() if v in ('EPERM', 'ENOSYS'))})
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the expectation is that of x86_64")
def test_a_jail_shows_what_is_expected_and_nothing_more(attacker: Attacker) -> None:
    import json

    numbers = {name: number for name, number in syscall_names.numbers("x86_64").items() if name != "vhangup"}
    report = attacker.probe(_REPORT, json.dumps(numbers), timeout_seconds=100)
    status = report["status"]
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    # chown, dac_override, fowner, fsetid, kill, setgid, setuid, setfcap: over the sandbox's own ids alone
    root = "00000000800000fb"
    wanted = root if attacker.user == "root" else "0" * 16
    assert {status[kind] for kind in ("CapPrm", "CapEff")} == {wanted}
    assert {status[kind] for kind in ("CapInh", "CapAmb")} == {"0" * 16}
    expected = set((Path(__file__).parent / "blocked_calls.txt").read_text().split())
    assert expected - set(report["blocked"]) == set(), "let through"
    assert set(report["devices"]) == {
        "ca-certificates.jks", "ca-certificates.json", "ca-certificates.pem", "fd", "full", "null", "ptmx", "pts",
        "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero",
    }  # fmt: skip
    writable = {line.split()[0] for line in report["mounts"] if line.endswith(" rw")}
    bound = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty")}  # an ordinary user's
    masks = {line.split()[0] for line in report["mounts"] if line.startswith("/proc/")}
    assert writable - bound - masks == {"/", "/dev/pts", "/dev/shm", "/tmp", "/usr/local"}
    assert {line for line in report["mounts"] if line.split()[0] in ("/usr", "/proc", "/dev")} == {
        "/usr ro", "/proc ro", "/dev ro"
    }  # fmt: skip


def test_the_host_sees_the_same_of_every_process_after_exec_fork_and_threads(attacker: Attacker) -> None:
    with attacker.marked() as pid:
        spawn = (
            "import os, threading\nos.fork()\nfor _ in range(3): threading.Thread(target=input, daemon=True).start()\n"
        )
        spawn += "print('up', flush=True); input()"
        argv = ("python3", "-I", "-S", "-c", spawn)
        with attacker.sandbox.start(argv, stdin=True, user=attacker.user) as process:
            process.stdout.read(100)
            for other in attacker.pids_with(pid) if os.getuid() == 0 else [pid]:
                for task in os.listdir(f"/proc/{other}/task"):
                    status = status_on_host(int(task))
                    if "NSpid" not in status or status["NSpid"].split()[-1] == "1":
                        continue
                    assert (status["Seccomp"], status["NoNewPrivs"]) == ("2", "1")
                    assert status["Seccomp_filters"] >= "1"
                    assert stat.S_ISDIR(os.stat(f"/proc/{other}").st_mode)
            process.kill()
