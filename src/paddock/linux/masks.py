"""The files of /proc about the machine or other sandboxes, and the file over each at `jail` and `container`.

Virtual machines and gVisor have a /proc of their kernel. `docs/levels.md` lists these files.
"""

from __future__ import annotations

import os

from paddock.linux import kernel_files, sizes

NOTHING = "nothing"
"""An empty directory."""
EMPTY = "empty"
"""An empty file."""
MASKS = {
    "asound": NOTHING,
    "buddyinfo": EMPTY,
    "bus": NOTHING,
    "cgroups": "cgroups",
    "cmdline": EMPTY,
    "config.gz": EMPTY,
    "diskstats": EMPTY,
    "fs": NOTHING,
    "interrupts": EMPTY,
    "iomem": EMPTY,
    "ioports": EMPTY,
    "irq": NOTHING,
    "kallsyms": EMPTY,
    "key-users": EMPTY,
    "keys": EMPTY,
    "loadavg": "loadavg",
    "locks": EMPTY,  # with neighbours' files and ranges
    "modules": EMPTY,
    "partitions": EMPTY,
    "pressure": NOTHING,
    "schedstat": EMPTY,
    "scsi": NOTHING,
    "softirqs": EMPTY,
    "swaps": EMPTY,
    "sys/kernel/random/boot_id": "boot_id",
    "vmstat": "vmstat",
    "zoneinfo": EMPTY,
}
"""Names below /proc, and the name of the file over each: `NOTHING`, `EMPTY` or a file of `contents`."""
OF_ROOT = ("kcore", "kmsg", "latency_stats", "sched_debug", "slabinfo", "timer_list", "vmallocinfo")
"""Files that only the machine's root may read. Root of a jail is another user. Root of a container may be that one."""
_COUNTERS = ("pgpgin", "pgpgout", "pswpin", "pswpout", "pgfault", "pgmajfault")


def there(*, of_root: bool) -> dict[str, str]:
    """Return the masks of the files that this kernel has."""
    masks = MASKS | (dict.fromkeys(OF_ROOT, EMPTY) if of_root else {})
    return {name: instead for name, instead in masks.items() if os.path.lexists(f"/proc/{name}")}


def contents() -> dict[str, str]:
    """Return files with a sandbox's own values: no load, no swapping, one group, and a separate boot id."""
    groups = ""
    if os.path.exists("/proc/cgroups"):  # a JVM takes from it which version there is
        head, *rows = kernel_files.read("/proc/cgroups").decode().splitlines()
        groups = "\n".join((head, *("\t".join((*row[:2], "1", row[3])) for row in map(str.split, rows)), ""))
    return {
        EMPTY: "",
        "boot_id": kernel_files.read("/proc/sys/kernel/random/uuid").decode(),
        "cgroups": groups,
        "loadavg": sizes.LOADAVG,
        "vmstat": "".join(f"{name} 0\n" for name in _COUNTERS),
    }
