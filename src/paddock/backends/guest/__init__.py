"""Encode and decode what host and guest say to each other (`docs/design/guest.md`)."""

from . import orders as orders
from ._files import pack_whole as pack_whole
from ._files import perform as perform
from ._files import unpack_exact as unpack_exact
from ._place import GuestDefaults as GuestDefaults
from ._place import place_of as place_of
from ._place import user_of as user_of
from ._program import check as check
from ._program import program as program
from ._requests import PING as PING
from ._requests import EmptyBody as EmptyBody
from ._requests import Request as Request
from ._requests import ask as ask
from ._requests import hand as hand
from ._streams import FileReader as FileReader
from ._streams import FileWriter as FileWriter
from ._streams import accept as accept
