"""Pid 1 of a container: what it is to be, and the sockets on which it serves, come from the host through one socket.

The host made that socket in a directory that is seen inside, read-only. Who calls there first is pid 1: nothing else
runs yet. So nothing of the host can be called by anybody in the container, and what the guest serves cannot either.

`{"init": 0, "agents": {"user": {"listen": 1, ...}}}`: numbers of the descriptors that come with it, in their order;
`limits`: resource limits by their number (getrlimit(2)); `idle`: seconds after which it is paused if nobody uses it, or
0; `filter` of an agent: a program for seccomp(2), in hexadecimal digits, which holds for it and all that it starts.
"""

from __future__ import annotations

import os
import resource
import socket
import sys
from typing import Any, NoReturn

from ._agent import run_agent
from ._config import AgentConfig, InitConfig, UserEntry
from ._faults import report
from ._frames import parse_json
from ._init import run_init
from ._kernel import install_filter, set_dumpable
from ._rest import Rest

_LARGEST = 16 << 20
_MOST_DESCRIPTORS = 8
READY = b"ready\n"


def run_born(path: str) -> NoReturn:
    """Serves until its deadline. What keeps it from that is said to the host, or on stderr if that is gone."""
    try:
        set_dumpable(False)  # its memory and descriptors are no command's, whoever runs it
        voice = socket.socket(socket.AF_UNIX)
        voice.connect(path)
    except OSError as error:
        sys.stderr.write(f"paddock: the host cannot be called at {path}: {error}\n")
        os._exit(1)
    try:
        _live(voice)
    except BaseException as error:
        report(error)
        try:
            voice.sendall(f"{type(error).__name__}: {error}\n"[:512].encode("ascii", "replace"))
        except OSError:
            pass
        os._exit(1)


def _live(voice: socket.socket) -> NoReturn:
    config, listeners = _receive(voice)
    for name, value in config["limits"].items():  # an engine without root may pass over what it was asked for
        _limit(int(name), int(value))
    fields: dict[str, Any] = config["agents"]
    agents = {name: listeners[int(entry["listen"])] for name, entry in fields.items()}

    def start_agent(name: str) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                _become(agents[name], fields[name])
            except BaseException as error:
                report(error)
            finally:
                os._exit(1)
        return pid

    def ready() -> None:
        voice.sendall(READY)
        voice.close()

    plan = InitConfig(
        control=listeners[int(config["init"])],
        agents=agents,
        deadline=float(config["deadline"]),
        grace_seconds=0.0,
        attending=("carrier",),
    )
    run_init(
        plan, start_agent, ready, keep=(voice.fileno(),), rest=Rest(float(config["idle"]), float(config["retention"]))
    )


def _receive(voice: socket.socket) -> tuple[Any, list[socket.socket]]:
    """A length of four bytes, an object in JSON; the descriptors come with the first byte."""
    data, descriptors, flags, _ = socket.recv_fds(voice, 4, _MOST_DESCRIPTORS)
    if flags & socket.MSG_CTRUNC or len(data) != 4:
        raise ConnectionError("the host has said nothing that can be understood")
    left = int.from_bytes(data, "big")
    if left > _LARGEST:
        raise ConnectionError(f"the host announces {left} bytes")
    text = bytearray()
    while left:
        part = voice.recv(min(left, 1 << 16))
        if not part:
            raise ConnectionError("the host went away")
        text += part
        left -= len(part)
    return parse_json(bytes(text)), [socket.socket(fileno=fd) for fd in descriptors]


def _limit(number: int, value: int) -> None:
    hard = resource.getrlimit(number)[1]
    least = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (least, least))


def _become(listener: socket.socket, fields: Any) -> NoReturn:
    # The files of a process that may not be looked into are root's (proc(5)): opened while it may.
    set_dumpable(True)
    oom_score = os.open(b"/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    user = _user(fields["user"])
    if os.getuid() == 0:
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)  # without uid 0 no capability is left
    set_dumpable(False)
    config = AgentConfig(
        user=user,
        workdir=fields["workdir"],
        exec_dir=fields["exec_dir"],
        env=fields["env"],
        users=tuple(_user(entry) for entry in fields["users"]),
        may_switch_user=fields["may_switch_user"],
        oom_score=oom_score,
    )
    install_filter(bytes.fromhex(fields["filter"]))  # beside the engine's, which lets more through
    run_agent(listener, config)


def _user(fields: Any) -> UserEntry:
    return UserEntry(
        name=fields["name"],
        uid=fields["uid"],
        gid=fields["gid"],
        groups=tuple(fields.get("groups", ())),
        home=fields["home"],
    )
