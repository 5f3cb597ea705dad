"""Work on a task in two sittings: the sandbox of the first is dead when the second begins, its files are there.

`python examples/task.py [URL]`; without a URL of a repository, the workspace begins empty.
"""

from __future__ import annotations

import sys

from paddock import Sandbox, Workspace


def main() -> None:
    workspace = Workspace.open("example-task", url=sys.argv[1] if sys.argv[1:] else None)
    with Sandbox.create(workspace=workspace.name) as first:
        first.exec("echo 'begun on Monday' >>notes.txt", check=True)
    print("only here:", workspace.status().only_here)

    with Sandbox.create("code-interpreter", workspace=workspace.name) as second:
        second.exec("echo 'done on Tuesday' >>notes.txt", check=True)
        print(second.exec("cat notes.txt").stdout, end="")
    print("sandboxes that had it:", workspace.refresh().epoch)
    workspace.delete(discard=True)


if __name__ == "__main__":
    main()
