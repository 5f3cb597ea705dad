"""What the machine does: as root, from its second disk; run by `tests.service`, ends with the machine."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

INPUT, RESULTS = Path("/run/input"), Path("/run/results")
PLACES = {"root": Path("/srv/p"), "user": Path("/home/tester/p")}  # short: a socket's path holds 107 bytes
PYTEST = ("-p", "no:cacheprovider", "-o", "timeout=1200", "-n", "0", "-v")
FIGURES = Path("/srv/figures/figures.txt")
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}


def main() -> None:
    with tarfile.open("/dev/vdb") as tar:
        tar.extractall(INPUT)
    RESULTS.mkdir()
    job = json.loads((INPUT / "job.json").read_text())
    if job.get("kvm"):
        subprocess.run(["modprobe", "kvm-amd"], check=True)
        ENVIRONMENT["PADDOCK_TESTS_KVM"] = f"/boot/vmlinuz-{os.uname().release}"
    for mode in job["modes"]:
        perform(mode, job)
    if FIGURES.exists():
        shutil.copy(FIGURES, RESULTS)
    with tarfile.open("/dev/vdc", "w") as tar:
        for path in sorted(RESULTS.iterdir()):
            tar.add(path, path.name)
    os.sync()


def perform(mode: str, job: dict[str, Any]) -> None:
    place = prepare(mode)
    report = place / "report.xml"
    tests = [".venv/bin/python", "-m", "pytest", *PYTEST, f"--junit-xml={report}", *job["pytest"]]
    command = f"cd {place} && {job['shell'] or shlex.join(tests)}"
    if job.get("figures") and not job["shell"]:
        figures = f"{place}/.venv/bin/python {INPUT}/figures.py"
        command = f"{figures}; code=$?; {command} || code=$?; exit $code"
    # An ordinary user comes by a login: with a session, and a service manager of one's own.
    argv = ["bash", "-c", command] if mode == "root" else ["runuser", "-l", "tester", "-c", command]
    with (RESULTS / f"{mode}.log").open("wb") as log, open("/dev/console", "wb", buffering=0) as console:
        console.write(f"== {mode}: {command}\n".encode())
        process = subprocess.Popen(
            argv,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            console.write(line)
        (RESULTS / f"{mode}.code").write_text(str(process.wait()))
    if report.exists():
        shutil.copy(report, RESULTS / f"{mode}.xml")


def prepare(mode: str) -> Path:
    """Return a copy of the checkout with an environment as `make setup` makes it."""
    place = PLACES[mode]
    shutil.copytree(INPUT / "checkout", place)
    subprocess.run(["/usr/bin/python3", "-m", "venv", "--without-pip", place / ".venv"], check=True)
    packages = next((place / ".venv/lib").glob("python3*/site-packages"))
    shutil.copytree(INPUT / "packages", packages, dirs_exist_ok=True)
    (packages / "paddock.pth").write_text(f"{place}/src\n")
    if mode == "user":
        subprocess.run(["chown", "-R", "tester:tester", place], check=True)
    return place


if __name__ == "__main__":
    try:
        main()
    finally:
        subprocess.run(["systemctl", "poweroff", "--force"], check=False)
