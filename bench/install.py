"""`pip install` of 30 popular packages: directly, in a first sandbox, whose package cache is empty, and in a second.

The index is the one that pip is configured with. Both sides have the same pip and no cache of its own. What pip
computes (reading all links of all pages, unpacking, compiling) is the same everywhere; what is beyond its processor
time it has waited for: for the network, and on a machine with other work for its turn. So the pages and files that it
asks for are also fetched by a client that does nothing else.
"""

from __future__ import annotations

import ipaddress
import json
import os
import re
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
_FETCH = (
    "import json,sys,time,http.client\n"
    "from urllib.parse import urlsplit\n"
    "start, kept = time.perf_counter(), {}\n"
    "for url in json.loads(sys.argv[1]):\n"
    "    host = urlsplit(url).netloc\n"
    "    kept[host] = kept.get(host) or http.client.HTTPSConnection(host)\n"
    "    kept[host].request('GET', url.split(host, 1)[1], headers={'Accept': sys.argv[2]})\n"
    "    answer = kept[host].getresponse()\n"
    "    answer.read()\n"
    "    assert answer.status == 200, (url, answer.status)\n"
    "print(time.perf_counter() - start)\n"
)
_QUIET = ("--quiet", "--no-cache-dir", "--disable-pip-version-check", "--no-input")


def pip(place: str, index: str) -> list[str]:
    install = [f"{place}/bin/python", "-m", "pip", "install", *_QUIET, "--index-url", index, *PACKAGES]
    return [f"{place}/bin/python", "-c", _MEASURE, *install]


def fetch(python: str, urls: list[str]) -> list[str]:
    return [python, "-c", _FETCH, json.dumps(urls), _JSON]


def urls_of(index: str) -> list[str]:
    """What an install asks for: of each package its page, and its file."""
    with tempfile.NamedTemporaryFile() as report:
        asked = ["install", "--dry-run", "--ignore-installed", "--report", report.name, *_QUIET, "--index-url", index]
        subprocess.run([_PYTHON, "-m", "pip", *asked, *PACKAGES], check=True, capture_output=True, env=clean())
        found = [(one["metadata"]["name"], one["download_info"]["url"]) for one in json.load(report)["install"]]
    pages = [f"{index.rstrip('/')}/{re.sub('[-_.]+', '-', name).lower()}/" for name, _ in found]
    return [*pages, *(url for _, url in found)]


def clean() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON"))}
    return {**kept, "PIP_CONFIG_FILE": os.devnull}


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

    def __init__(self, index: str, urls: list[str]) -> None:
        self._index, self._urls = index, urls
        self._place = tempfile.mkdtemp(prefix="pb-", dir="/var/tmp")

    def once(self) -> dict[str, float]:
        place = f"{self._place}/v"
        subprocess.run([_PYTHON, "-m", "venv", place], check=True, capture_output=True)
        fetched = self._run(fetch(_PYTHON, self._urls))[0]
        wall, computing = self._run(pip(place, self._index))
        shutil.rmtree(place)
        return {TOTAL: wall, "computing": computing, "fetching": fetched}

    def _run(self, command: list[str]) -> list[float]:
        said = subprocess.run(command, check=True, capture_output=True, text=True, env=clean()).stdout
        return [float(word) for word in said.split()]

    def close(self) -> None:
        shutil.rmtree(self._place)


class Sandboxes:
    """A first one, whose cache is empty, and a second one."""

    def __init__(self, index: str, urls: list[str]) -> None:
        self._index, self._urls, self._policy = index, urls, policy(index)
        self._packages = Path(os.environ["PADDOCK_STATE_DIR"], "packages")

    def once(self) -> dict[str, float]:
        both = {name: Sandbox.create(policy=self._policy, ttl=1800) for name in ("first", "second")}
        found: dict[str, float] = {}
        try:
            for sandbox in both.values():
                sandbox.exec([_PYTHON, "-m", "venv", "/tmp/v"], check=True)
            self._empty()
            for name, sandbox in both.items():
                (found[f"{name}, fetching"],) = self._run(sandbox, fetch(_PYTHON, self._urls))
            self._empty()
            for name, sandbox in both.items():
                found[name], found[f"{name}, computing"] = self._run(sandbox, pip("/tmp/v", self._index))
        finally:
            for sandbox in both.values():
                sandbox.kill()
        return {TOTAL: found["first"] + found["second"], **found}

    def _empty(self) -> None:
        for one in self._packages.iterdir() if self._packages.is_dir() else ():
            one.unlink()

    def _run(self, sandbox: Sandbox, command: list[str]) -> list[float]:
        return [float(word) for word in sandbox.exec(command, check=True, timeout=1500).stdout.split()]

    def close(self) -> None: ...


def measure(plan: Plan) -> list[Section]:
    index = index_of_pip()
    given = {"index": index, "urls": urls_of(index)}
    contenders = [
        Contender("direct", "bench.install:Direct", given),
        Contender("sandboxes", "bench.install:Sandboxes", given, state=True),
    ]
    direct, inside = contest(contenders, rounds=plan.rounds(3), block=1, warm_up=0).values()
    section = Section("install", f"pip install of {len(PACKAGES)} popular packages", unit="s")
    section.notes += [f"{one.name}: {one.failure}" for one in (direct, inside) if one.failure]
    if section.notes:
        return [section]
    sides = [("direct", direct, ""), ("first sandbox", inside, "first"), ("second sandbox", inside, "second")]
    for name, record, which in sides:
        prefix = f"{which}, " if which else ""
        section.rows.append(Row(name, record.seconds(which or TOTAL)))
        section.rows.append(Row("processor time of pip", record.seconds(f"{prefix}computing"), part=True))
        section.rows.append(
            Row("its pages and files, by a client that only fetches", record.seconds(f"{prefix}fetching"))
        )
        if which:
            section.ratios[f"{name} / direct"] = ratio(record.rounds(which), direct.rounds())
            fetching = ratio(record.rounds(f"{prefix}fetching"), direct.rounds("fetching"))
            section.ratios[f"{name} / direct, only fetching"] = fetching
    return [section]
