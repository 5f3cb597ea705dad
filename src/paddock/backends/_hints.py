"""Variables by which programs make more of what they have than by what /proc shows them."""

from __future__ import annotations

from paddock.model import Limits


def hints(limits: Limits) -> dict[str, str]:
    """Return what a sandbox of these limits has in its environment, unless its template or its caller says else.

    By itself V8 takes half of the memory for its heap. A quarter is enough for what isn't its heap.
    """
    return {"NODE_OPTIONS": f"--max-old-space-size={limits.memory_mib * 3 // 4}"}
