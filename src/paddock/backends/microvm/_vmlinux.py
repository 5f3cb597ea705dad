"""The kernel itself out of a bzImage: an ELF image, for those who unpack nothing.

Format: Linux, Documentation/arch/x86/boot.rst (the setup header), and what scripts/Makefile.lib makes of a payload.
"""

from __future__ import annotations

import lzma
import subprocess
import zlib
from pathlib import Path
from struct import unpack_from

from paddock.errors import NotConfigured
from paddock.storage._probe import find_tool

_SIGNATURE, _SETUP_SECTORS, _PAYLOAD = 0x202, 0x1F1, 0x248
_ELF = b"\x7fELF"
_LZ4 = b"\x02\x21\x4c\x18"  # the legacy format: blocks, each with its length before it
_SECONDS = 120
_REMEDY = "a kernel that is packed with LZ4, gzip or xz, as Debian's are; or apt-get install zstd"


def extract(image: Path) -> bytes:
    """NotConfigured: it is no such image, or packed in a way that nothing here unpacks."""
    data = image.read_bytes()
    if data[:4] == _ELF:
        return data
    if data[_SIGNATURE : _SIGNATURE + 4] != b"HdrS":
        raise NotConfigured(f"{image} is no kernel for x86", hint=_REMEDY)
    start, length = unpack_from("<II", data, _PAYLOAD)
    start += (data[_SETUP_SECTORS] + 1) * 512
    try:
        kernel = _unpack(data[start : start + length])
    except (ValueError, IndexError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise NotConfigured(f"the kernel in {image} cannot be unpacked: {error}", hint=_REMEDY) from None
    if kernel[:4] != _ELF:
        raise NotConfigured(f"what is in {image} is no kernel", hint=_REMEDY)
    return kernel


def _unpack(payload: bytes) -> bytes:
    """The length that the build appends is behind what the formats themselves call their end."""
    if payload[:4] == _LZ4:
        kernel = _unpack_lz4(payload[4:-4])
    elif payload[:2] == b"\x1f\x8b":
        return zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(payload)
    elif payload[:6] == b"\xfd7zXZ\0":
        kernel = lzma.LZMADecompressor(lzma.FORMAT_XZ).decompress(payload)
    elif payload[:4] == b"\x28\xb5\x2f\xfd":
        kernel = _unpack_zstd(payload[:-4])
    else:
        raise ValueError(f"it begins with {payload[:4].hex()}")
    (length,) = unpack_from("<I", payload, len(payload) - 4)
    if len(kernel) != length:
        raise ValueError(f"it has {len(kernel)} bytes, and should have {length}")
    return kernel


def _unpack_zstd(payload: bytes) -> bytes:
    program = find_tool("zstd")
    if program is None:
        raise ValueError("it is packed with Zstandard, and there is no zstd here")
    done = subprocess.run([program, "-dc"], input=payload, capture_output=True, timeout=_SECONDS, check=False)
    if done.returncode != 0:
        raise ValueError(done.stderr.decode(errors="replace").strip()[:200])
    return done.stdout


def _unpack_lz4(blocks: bytes) -> bytes:
    """The standard library has no LZ4. https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md"""
    out = bytearray()
    at = 0
    while at < len(blocks):
        (size,) = unpack_from("<I", blocks, at)
        at += 4
        if len(blocks) - at < size:
            raise ValueError("it is cut short")
        _unpack_block(blocks[at : at + size], out)
        at += size
    return bytes(out)


def _unpack_block(block: bytes, out: bytearray) -> None:
    at, end = 0, len(block)
    while True:
        token = block[at]
        at += 1
        length = token >> 4
        if length == 15:
            length, at = _longer(block, at)
        out += block[at : at + length]
        at += length
        if at >= end:
            return
        distance = block[at] | block[at + 1] << 8
        at += 2
        length = token & 15
        if length == 15:
            length, at = _longer(block, at)
        length += 4
        start = len(out) - distance
        if distance == 0 or start < 0:
            raise ValueError("it refers to what is not there")
        if distance >= length:
            out += out[start : start + length]
        else:  # what is copied begins with what is just being written
            out += (out[start:] * (length // distance + 1))[:length]


def _longer(block: bytes, at: int) -> tuple[int, int]:
    length = 15
    while True:
        more = block[at]
        at += 1
        length += more
        if more != 255:
            return length, at
