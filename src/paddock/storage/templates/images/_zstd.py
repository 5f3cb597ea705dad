"""Decompress zstd with the libzstd of the system, which dpkg, rpm and systemd need too."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from typing import Any, Protocol

from paddock.errors import NotConfiguredError

_CHUNK = 1 << 18


class ZstdError(Exception):
    """The reason why the data can't be decompressed."""


class _File(Protocol):
    def readinto(self, buffer: Any, /) -> int: ...


class _Buffer(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer, which are alike."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t), ("at", ctypes.c_size_t))


class ZstdReader:
    """The content of all frames of a file, one after the other.

    libzstd refuses a window above 128 MiB, as `zstd -d` does. That bounds the memory.
    """

    def __init__(self, file: _File) -> None:
        self._library, self._file = _library(), file
        self._stream = self._library.ZSTD_createDStream()
        if not self._stream:
            raise MemoryError("libzstd can't get memory for a stream")
        weakref.finalize(self, self._library.ZSTD_freeDStream, self._stream)
        self._stored, self._space = ctypes.create_string_buffer(_CHUNK), ctypes.create_string_buffer(_CHUNK)
        self._input = _Buffer(ctypes.addressof(self._stored), 0, 0)
        self._left = 0  # in the current frame; 0 only between frames

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; none only at the end. Raise ZstdError."""
        out = _Buffer(ctypes.addressof(self._space), min(size, _CHUNK), 0)
        while out.at == 0 < out.size:
            if self._input.at == self._input.size:
                self._input.size, self._input.at = self._file.readinto(self._stored), 0
            ended = self._input.size == 0
            if ended and self._left == 0:
                break
            self._left = self._library.ZSTD_decompressStream(self._stream, ctypes.byref(out), ctypes.byref(self._input))
            if self._library.ZSTD_isError(self._left):
                raise ZstdError(self._library.ZSTD_getErrorName(self._left).decode())
            if ended and out.at == 0:
                raise ZstdError("the data ends inside a frame")
        return ctypes.string_at(self._space, out.at)


@cache
def _library() -> Any:
    try:
        library = ctypes.CDLL("libzstd.so.1")
    except OSError as error:
        raise NotConfiguredError(
            f"the image has a layer compressed by zstd, and this machine has no libzstd: {error}",
            hint="install it: apt-get install libzstd1, dnf install libzstd, or apk add zstd-libs",
        ) from None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    for name, result, arguments in (
        ("ZSTD_createDStream", pointer, ()),
        ("ZSTD_freeDStream", size, (pointer,)),
        ("ZSTD_decompressStream", size, (pointer, ctypes.POINTER(_Buffer), ctypes.POINTER(_Buffer))),
        ("ZSTD_isError", ctypes.c_uint, (size,)),
        ("ZSTD_getErrorName", ctypes.c_char_p, (size,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library
