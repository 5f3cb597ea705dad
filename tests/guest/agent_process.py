"""Started by tests as `python -I -S agent_process.py SRC SOCKET DIR`: an agent whose imports end it loudly."""

import sys

sys.path.insert(0, sys.argv[1])

import os
import socket

from paddock.guest import AgentConfig, UserEntry, run_agent, seal_imports

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
listener.listen(64)
home = sys.argv[3]
config = AgentConfig(
    user=UserEntry(name="user", uid=os.getuid(), gid=os.getgid(), home=home),
    workdir=home,
    exec_dir=home + "/.execs",
    env={"PATH": "/usr/bin:/bin", "HOME": home},
)
seal_imports(fatal=True)
os.write(1, b"ready\n")
run_agent(listener, config)
