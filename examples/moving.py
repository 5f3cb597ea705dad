"""One task behind one wall after the other: the files stay, and the next sandbox goes on with them.

`python examples/moving.py`. What a level needs that is missing here, `paddock doctor` says.
"""

from __future__ import annotations

from paddock import Sandbox, Workspace
from paddock.errors import LevelUnavailableError, UnsupportedError


def main() -> None:
    workspace = Workspace.open("example-moving")
    for level in ("jail", "gvisor", "container", "microvm"):
        try:
            sandbox = Sandbox.create(level=level, workspace=workspace.name)
        except (LevelUnavailableError, UnsupportedError) as refusal:
            print(f"{level}: {refusal}")
            continue
        with sandbox:
            sandbox.exec(["sh", "-c", 'echo "$1" >>been.txt', "sh", level], cwd="/workspace", check=True)
    with Sandbox.create(workspace=workspace.name) as last:
        print("been at:", " ".join(last.exec("cat been.txt", check=True).stdout.split()))
    workspace.delete(discard=True)


if __name__ == "__main__":
    main()
