"""A directory of this machine is worked on without being changed; what came of it is taken out and looked at.

`python examples/repository.py [DIRECTORY]`: without one, a small repository is made.
"""

from __future__ import annotations

import filecmp
import sys
import tempfile
from pathlib import Path

from paddock import Mount, Sandbox

COMMANDS = (
    "git -c safe.directory=* log --oneline 2>/dev/null | head -3",
    "python3 -m compileall -q .",
    "echo '# seen' >> README.md; rm -f obsolete.txt; wc -l *.py > report.txt",
)


def work_on(project: Path, result: Path) -> None:
    with Sandbox.create(template="code-interpreter", ttl=120, mounts=[Mount(source=str(project))]) as sandbox:
        for command in COMMANDS:
            print(sandbox.exec(command, timeout=60).observation(500))
        # It was a stranger's work: links that lead out are left out, and named.
        report = sandbox.files.download("/workspace", result, skip_unsafe=True)
    print("taken out:", report.entries, "entries; left out:", list(report.skipped))


def differences(before: Path, after: Path) -> list[str]:
    found = filecmp.dircmp(before, after)
    changed = [f"changed {name}" for name in found.diff_files]
    return [*changed, *(f"gone {name}" for name in found.left_only), *(f"new {name}" for name in found.right_only)]


def main() -> None:
    with tempfile.TemporaryDirectory() as here:
        project = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else Path(here, "project")
        if len(sys.argv) == 1:
            project.mkdir()
            (project / "README.md").write_text("# A project\n")
            (project / "obsolete.txt").write_text("nobody reads this\n")
            (project / "main.py").write_text("print('hello')\n")
        work_on(project, Path(here, "result"))
        print("\n".join(differences(project, Path(here, "result"))))


if __name__ == "__main__":
    main()
