"""Started by tests as `python -I -S agent_process.py SRC SOCKET DIR ROOT`: an agent whose imports end it loudly.

ROOT is empty, or the directory below which file paths are taken.
"""

import sys

sys.path.insert(0, sys.argv[1])

import os
import socket

from paddock.guest._agent import run_agent
from paddock.guest._config import AgentConfig, UserEntry
from paddock.guest._seal import seal_imports

listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[2])
listener.listen(64)
home, root = sys.argv[3:]
config = AgentConfig(
    user=UserEntry(name="user", uid=os.getuid(), gid=os.getgid(), home=home),
    workdir="/" if root else home,
    exec_dir="/.execs" if root else home + "/.execs",
    root=root,
    env={"PATH": "/usr/bin:/bin", "HOME": home},
)
seal_imports(fatal=True)
os.write(1, b"ready\n")
run_agent(listener, config)
