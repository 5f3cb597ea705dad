"""A guest that serves: what its configuration (`_entry`) says, from its first word to its end."""

from __future__ import annotations

import os
import socket
from typing import Any, NoReturn

from ._agent import run_agent, run_agent_on
from ._config import AgentConfig, InitConfig, UserEntry
from ._faults import report
from ._init import run_init
from ._seal import seal_imports


def serve(config: Any) -> NoReturn:
    seal_imports(fatal=bool(config.get("fatal_imports")))
    if "stream" in config:
        reader, writer = _stream(config["stream"])
        run_agent_on(reader, writer, _agent_config(config["agent"]))
    listeners = {name: _listener(agent["listen"]) for name, agent in config["agents"].items()}
    configs = {name: _agent_config(agent) for name, agent in config["agents"].items()}
    control, host = _listener(config["control"]), int(config.get("host", -1))

    init = os.getpid()

    def start_agent(name: str) -> int:
        pid = os.fork()
        if pid == 0:
            run_agent(listeners[name], configs[name], init=init)
        return pid

    def ready() -> None:
        if host >= 0:
            os.write(host, b"ready\n")

    plan = InitConfig(
        control=control,
        agents=listeners,
        deadline=float(config["deadline"]),
        eager=tuple(config.get("eager", ("user",))),
        grace_seconds=float(config.get("grace_seconds", 1.0)),
        host=host,
    )
    try:
        run_init(plan, start_agent, ready, keep=(host,))
    except BaseException as error:
        report(error)
        os._exit(1)


def _stream(where: Any) -> tuple[int, int]:
    if isinstance(where, str):
        fd = os.open(where, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        return fd, os.dup(fd)
    return int(where[0]), int(where[1])


def _listener(where: Any) -> socket.socket:
    if isinstance(where, int):
        return socket.socket(fileno=where)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(where)
    listener.listen(128)
    return listener


def _user(fields: Any) -> UserEntry:
    groups = tuple(fields.get("groups", ()))
    return UserEntry(
        name=fields["name"], uid=fields["uid"], gid=fields["gid"], groups=groups, home=fields.get("home", "/")
    )


def _agent_config(fields: Any) -> AgentConfig:
    return AgentConfig(
        user=_user(fields["user"]),
        workdir=fields["workdir"],
        exec_dir=fields["exec_dir"],
        env=fields.get("env", {}),
        users=tuple(_user(user) for user in fields.get("users", ())),
        may_switch_user=fields.get("may_switch_user", False),
        root=fields.get("root", ""),
    )
