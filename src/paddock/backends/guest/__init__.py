"""What a guest (`docs/design/guest.md`) is asked and told by the host."""

from . import _orders as orders
from ._dialect import NativeDialect as NativeDialect
from ._place import Place as Place
from ._place import variables as variables
from ._program import check as check
from ._program import program as program
from ._requests import Nothing as Nothing
from ._requests import Request as Request
from ._whole import pack_whole as pack_whole
from ._whole import unpack_exact as unpack_exact

__all__ = [
    "NativeDialect",
    "Nothing",
    "Place",
    "Request",
    "check",
    "orders",
    "pack_whole",
    "program",
    "unpack_exact",
    "variables",
]
