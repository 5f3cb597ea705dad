"""The frames that clients, the daemon and later its other processes exchange. Standard library only."""

from ._connection import Connection as Connection
from ._connection import descriptors_in as descriptors_in
from ._connection import receive_some as receive_some
from ._connection import send_some as send_some
from ._frames import AGAIN as AGAIN
from ._frames import MAX_DESCRIPTORS as MAX_DESCRIPTORS
from ._frames import MAX_REPLY as MAX_REPLY
from ._frames import MAX_REQUEST as MAX_REQUEST
from ._frames import NO_REPLY as NO_REPLY
from ._frames import PROTOCOL as PROTOCOL
from ._frames import Frame as Frame
from ._frames import Inbox as Inbox
from ._frames import Kind as Kind
from ._frames import NotSent as NotSent
from ._frames import WireError as WireError
from ._frames import close_all as close_all
from ._frames import copy_all as copy_all
from ._frames import pack as pack
