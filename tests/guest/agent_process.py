"""Started by tests as `python -I -S agent_process.py SRC SOCKET DIR`: an agent whose imports end it loudly."""

import sys

sys.path.insert(0, sys.argv[1])

import os
import socket

from paddock.guest import AgentConfig, UserEntry, run_agent


class Refuse:
    def find_spec(self, name, path=None, target=None):
        os.write(2, f"import of {name} after the start\n".encode())
        os._exit(77)


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
sys.meta_path[:] = [Refuse()]
sys.path_hooks.clear()
sys.path_importer_cache.clear()
os.write(1, b"ready\n")
run_agent(listener, config)
