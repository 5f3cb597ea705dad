"""What a btrfs pool can say of its health: asked of the kernel, not of its tools."""

from __future__ import annotations

import errno
import os

from paddock.linux import btrfs, loop
from paddock.linux.descriptors import closing
from paddock.model import Check
from paddock.storage._image import Image
from paddock.storage._room import MIB

_QUICK_BYTES = 2048 * MIB
_READ_ONLY = os.ST_RDONLY


def device_checks(pool: int, image: Image | None, where: str) -> tuple[Check, ...]:
    """Errors that the device below had, and whether the file system has given up for one."""
    checks: list[Check] = []
    if os.fstatvfs(pool).f_flag & _READ_ONLY:
        checks.append(
            _check(
                "writable",
                "missing",
                f"{where} takes no writes any more: the disk below failed or was full",
                "make room on the disk, then kill all sandboxes: the next keeper opens it anew",
            )
        )
    try:
        errors = btrfs.device_errors(pool)
    except PermissionError:
        return (*checks, _check("device", "weak", "only root may read the error counters of btrfs", None))
    if errors:
        found = ", ".join(f"{count} {kind}" for kind, count in errors.items())
        fix = "copy what you need out of it; then use another state directory"
        checks.append(_check("device", "missing", f"{where} has had {found}", fix))
    else:
        checks.append(_check("device", "ok", f"{where} has had no errors", None))
    if image is not None:
        checks.extend(_image_checks(image))
    return tuple(checks)


def scrub_check(pool: int, used_bytes: int, where: str, asked: bool | None) -> Check:
    """Reads everything, if that was asked for or is quick."""
    if asked is False or (asked is None and used_bytes > _QUICK_BYTES):
        detail = f"the {used_bytes // MIB} MiB in {where} were not read"
        return _check("checksums", "ok", detail, "paddock doctor --storage --scrub")
    try:
        found = btrfs.scrub(pool)
    except OSError as error:
        if error.errno == errno.EPERM:
            return _check("checksums", "weak", "only root may compare them all", None)
        if error.errno == errno.EROFS:
            return _check("checksums", "weak", f"what is in {where} was not read: it takes no writes", None)
        if error.errno == errno.EINPROGRESS:
            return _check("checksums", "ok", "they are being compared by somebody else", None)
        return _check("checksums", "missing", f"{where} cannot be read through: {error}", "dmesg")
    if not found:
        return _check("checksums", "ok", f"all that is in {where} agrees with them", None)
    words = ", ".join(f"{count} {kind}" for kind, count in found.items())
    return _check(
        "checksums",
        "missing",
        f"{where} is damaged: {words}",
        "`dmesg` names the files; copy what you need out of it, then use another state directory",
    )


def _image_checks(image: Image) -> tuple[Check, ...]:
    checks: list[Check] = []
    with closing(os.open(image.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)) as file:
        devices = [os.fsdecode(device) for device in loop.find(file)]
    if len(devices) > 1:
        detail = f"{image.path} is below {' and '.join(devices)}: what one writes, the other overwrites"
        checks.append(_check("loop device", "missing", detail, "end all sandboxes, then losetup -d what is left"))
    else:
        checks.append(_check("loop device", "ok", f"{', '.join(devices) or 'none'} over {image.path}", None))
    checks.extend(
        _check("leftover", "weak", f"{device} holds {path}, which nobody can open any more", f"losetup -d {device}")
        for device, path in loop.deleted()
        if os.path.basename(path) == os.path.basename(image.path)
    )
    length, taken = image.size()
    detail = f"{image.path} offers {length // MIB} MiB and takes {taken // MIB} MiB of the disk"
    if missing := image.too_large():
        fix = "make room on the disk, or give space back: paddock gc"
        checks.append(_check("image", "weak", f"{detail}, which has {missing // MIB} MiB too few for it", fix))
    else:
        checks.append(_check("image", "ok", detail, None))
    return tuple(checks)


def _check(name: str, status: str, detail: str, fix: str | None) -> Check:
    return Check(area="storage", name=name, status=status, detail=detail, fix=fix)
