"""The table of a view (`_view`): a head, then extents by their first block, then paths. Who reads from a view needs no
more of how one is made.
"""

from __future__ import annotations

import struct

BLOCK = 4096
HEAD = struct.Struct("<8sIIQ")
EXTENT = struct.Struct("<IIQQQ")  # first block, place of the path, bytes, mtime (ns), inode
TABLE_MAGIC = b"pdkview1"
