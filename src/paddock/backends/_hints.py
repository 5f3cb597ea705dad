"""Variables by which programs learn how much they have where /proc shows them the host's processors and memory."""

from __future__ import annotations

import math
import os

from paddock.model import Limits


def hints(limits: Limits) -> dict[str, str]:
    """Return what a sandbox of these limits has in its environment, unless its template or its caller says else.

    `nproc` and OpenMP read the first, Python from 3.13 on the second, then Go, Rust and Cargo. V8 leaves a quarter of
    the memory to what isn't its heap, and collects in place of being killed.
    """
    processors = str(max(1, min(math.ceil(limits.cpus), os.cpu_count() or 1)))
    names = ("OMP_NUM_THREADS", "PYTHON_CPU_COUNT", "GOMAXPROCS", "RAYON_NUM_THREADS", "CARGO_BUILD_JOBS")
    return {**dict.fromkeys(names, processors), "NODE_OPTIONS": f"--max-old-space-size={limits.memory_mib * 3 // 4}"}
