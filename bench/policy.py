"""What a decision costs, and a document of many rules: `python -m bench.policy`. No sandbox, no network."""

from __future__ import annotations

import time
from collections.abc import Callable

from paddock.model import Target
from paddock.policy.network import Snapshot, load

_ROUNDS = 20
_CALLS = 5_000

_DOCUMENT = """
egress:
  allow:
    - {host: api.test, methods: [GET], paths: [/repos/acme/**]}
    - {host: "*.example.org"}
    - {cidr: 10.1.0.0/16, ports: [5432]}
    - {registry: pypi, cooldown_days: 7}
    - {git: "https://git.test/acme/app", push: [refs/heads/agent/*]}
"""


def best(call: Callable[[], object]) -> float:
    """Microseconds a call, of the quickest of many rounds."""
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        rounds.append((time.perf_counter() - start) / _CALLS * 1e6)
    return min(rounds)


def many(number: int) -> str:
    rules = "".join(f"    - {{host: h{n}.d{n % 97}.example.com, ports: [{443 + n % 3}]}}\n" for n in range(number))
    return f"{_DOCUMENT}{rules}"


def main() -> None:
    start = time.perf_counter()
    snapshot = load(many(10_000)).snapshot
    print(f"10,000 rules, text to snapshot   {time.perf_counter() - start:8.2f} s")
    start = time.perf_counter()
    Snapshot.from_bytes(snapshot.to_bytes())
    print(f"10,000 rules, bytes to snapshot  {time.perf_counter() - start:8.2f} s")
    exact, below, literal = Target("api.test", 443), Target("a.b.example.org", 443), Target("10.1.2.3", 5432)
    asked: dict[str, Callable[[], object]] = {
        "name": lambda: snapshot.name("api.test"),
        "connect, exact name": lambda: snapshot.connect(exact),
        "connect, below a wildcard": lambda: snapshot.connect(below),
        "connect, an address": lambda: snapshot.connect(literal),
        "address of a name": lambda: snapshot.address(exact, "93.184.216.34"),
        "request, a path": lambda: snapshot.request(exact, "https", "GET", "/repos/acme/app"),
    }
    for what, call in asked.items():
        print(f"{what:32} {best(call):8.2f} µs")


if __name__ == "__main__":
    main()
