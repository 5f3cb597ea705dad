"""Several attempts at one task, side by side: each in a sandbox of its own, judged by the same tests; the best is kept.

`python examples/attempts.py`. A model would write the attempts; here they stand below.
"""

from __future__ import annotations

import asyncio

from paddock import AsyncSandbox, Limits

TESTS = """
from task import median

def test_odd(): assert median([3, 1, 2]) == 2
def test_even(): assert median([4, 1, 3, 2]) == 2.5
def test_one(): assert median([7]) == 7
"""

ATTEMPTS = {
    "forgets to sort": "def median(xs):\n    return xs[len(xs) // 2]\n",
    "takes all memory": "def median(xs):\n    return sum(b'x' * 2**30)\n",
    "deletes the tests": "import shutil\nshutil.rmtree('/workspace', ignore_errors=True)\n",
    "is right": "def median(xs):\n    xs, n = sorted(xs), len(xs)\n    return (xs[n // 2] + xs[(n - 1) // 2]) / 2\n",
}


async def attempt(code: str) -> tuple[bool, str]:
    limits = Limits(memory_mib=256, processes=32)
    async with AsyncSandbox.create("code-interpreter", ttl=120, limits=limits) as sandbox:
        await sandbox.files.write("task.py", code)
        await sandbox.files.write("test_task.py", TESTS)
        result = await sandbox.exec("pytest -q --tb=line test_task.py", timeout=60)
        return result.ok, f"limit {result.limit}" if result.limit else result.stdout.strip().splitlines()[-1]


async def main() -> None:
    verdicts = await asyncio.gather(*map(attempt, ATTEMPTS.values()))
    for name, (ok, why) in zip(ATTEMPTS, verdicts, strict=True):
        print(f"{'+' if ok else '-'} {name:18} {why}")
    print("kept:", *(name for name, (ok, _) in zip(ATTEMPTS, verdicts, strict=True) if ok))


if __name__ == "__main__":
    asyncio.run(main())
