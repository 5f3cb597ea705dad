"""`pip install` of 30 popular packages: directly, in a first sandbox, whose package cache is empty, and in a second.

The index is the one that pip is configured with. Both sides have the same pip and no cache of its own. What pip
computes (reading all links of all pages, unpacking, compiling) is the same everywhere; what is beyond its processor
time it has waited for: for the network, and on a machine with other work for its turn.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import subprocess
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.contest import Contender, contest
from bench.figures import ratio
from bench.plan import Plan
from bench.report import Row, Section
from bench.worker import TOTAL
from paddock import Sandbox

PACKAGES = (
    *("requests", "urllib3", "certifi", "idna", "charset-normalizer", "python-dateutil", "six", "pyyaml", "packaging"),
    *("typing-extensions", "click", "jinja2", "markupsafe", "attrs", "pytz", "pydantic", "rich", "pygments", "flask"),
    *("werkzeug", "httpx", "tqdm", "cryptography", "cffi", "pytest", "numpy", "pillow", "sqlalchemy"),
    *("beautifulsoup4", "lxml"),
)
_PYTHON = "/usr/bin/python3"
_JSON = "application/vnd.pypi.simple.v1+json"
_MEASURE = (
    "import resource,subprocess,sys,time\n"
    "start = time.perf_counter()\n"
    "subprocess.run(sys.argv[1:], check=True)\n"
    "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
    "print(time.perf_counter() - start, used.ru_utime + used.ru_stime)\n"
)
_QUIET = ("--quiet", "--no-cache-dir", "--disable-pip-version-check", "--no-input")


def pip(place: str, index: str) -> list[str]:
    install = [f"{place}/bin/python", "-m", "pip", "install", *_QUIET, "--index-url", index, *PACKAGES]
    return [f"{place}/bin/python", "-c", _MEASURE, *install]


def index_of_pip() -> str:
    """What its configuration says, else what it has itself."""
    said = subprocess.run([_PYTHON, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True)
    if said.returncode == 0:
        return said.stdout.strip()
    ask = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
    return subprocess.run([_PYTHON, "-c", ask], check=True, capture_output=True, text=True).stdout.strip()


def policy(index: str) -> dict[str, Any]:
    """A judged registry that holds nothing back, and its addresses where they are no public ones."""
    asked = urllib.request.Request(f"{index.rstrip('/')}/{PACKAGES[0]}/", headers={"Accept": _JSON})
    with urllib.request.urlopen(asked) as answer:
        urls: list[str] = [index, *(one["url"] for one in json.load(answer)["files"])]
    hosts = list(dict.fromkeys(name for url in urls if (name := urlsplit(url).hostname)))
    found = {str(one[4][0]) for name in hosts for one in socket.getaddrinfo(name, 443, type=socket.SOCK_STREAM)}
    inner = sorted(address for address in found if not ipaddress.ip_address(address).is_global)
    registry: dict[str, Any] = {"registry": "pypi", "hosts": hosts, "unknown_age": "allow"}
    return {"egress": {"allow": [registry, *({"cidr": address, "ports": [443]} for address in inner)]}}


class Direct:
    """In a virtual environment of the host."""

    def __init__(self) -> None:
        self._index = index_of_pip()
        self._place = tempfile.mkdtemp(prefix="pb-", dir="/var/tmp")

    def once(self) -> dict[str, float]:
        place = f"{self._place}/v"
        subprocess.run([_PYTHON, "-m", "venv", place], check=True, capture_output=True)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
        clean["PIP_CONFIG_FILE"] = os.devnull
        said = subprocess.run(pip(place, self._index), check=True, capture_output=True, text=True, env=clean).stdout
        shutil.rmtree(place)
        wall, computing = map(float, said.split()[-2:])
        return {TOTAL: wall, "computing": computing}

    def close(self) -> None:
        shutil.rmtree(self._place)


class Sandboxes:
    """A first one, whose cache is empty, and a second one."""

    def __init__(self) -> None:
        self._index = index_of_pip()
        self._policy = policy(self._index)
        self._packages = Path(os.environ["PADDOCK_STATE_DIR"], "packages")

    def once(self) -> dict[str, float]:
        for one in self._packages.iterdir() if self._packages.is_dir() else ():
            one.unlink()
        first = Sandbox.create(policy=self._policy, ttl_seconds=1800)
        try:
            once = self._install(first)
            second = Sandbox.create(policy=self._policy, ttl_seconds=1800)
            try:
                again = self._install(second)
            finally:
                second.kill()
        finally:
            first.kill()
        return {
            TOTAL: once[0] + again[0],
            "first": once[0],
            "first, computing": once[1],
            "second": again[0],
            "second, computing": again[1],
        }

    def _install(self, sandbox: Sandbox) -> tuple[float, float]:
        sandbox.exec([_PYTHON, "-m", "venv", "/tmp/v"], check=True)
        said = sandbox.exec(pip("/tmp/v", self._index), check=True, timeout_seconds=1500).stdout
        wall, computing = map(float, said.split()[-2:])
        return wall, computing

    def close(self) -> None: ...


def measure(plan: Plan) -> list[Section]:
    contenders = [
        Contender("direct", "bench.install:Direct"),
        Contender("sandboxes", "bench.install:Sandboxes", state=True),
    ]
    direct, inside = contest(contenders, rounds=plan.rounds(3), block=1, warm_up=0).values()
    section = Section("install", f"pip install of {len(PACKAGES)} popular packages", unit="s")
    section.notes += [f"{one.name}: {one.failure}" for one in (direct, inside) if one.failure]
    if section.notes:
        return [section]
    section.rows.append(Row("direct", direct.seconds()))
    section.rows.append(Row("processor time of pip", direct.seconds("computing"), part=True))
    for which in ("first", "second"):
        computing = f"{which}, computing"
        section.rows.append(Row(f"{which} sandbox", inside.seconds(which)))
        section.rows.append(Row("processor time of pip", inside.seconds(computing), part=True))
        section.ratios[f"{which} sandbox / direct"] = ratio(inside.rounds(which), direct.rounds())
        section.ratios[f"{which} sandbox / direct, pip's processor time"] = ratio(
            inside.rounds(computing), direct.rounds("computing")
        )
    return [section]
