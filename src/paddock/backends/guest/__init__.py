"""The native guest's protocol (`docs/design/guest.md`), as a dialect of the host's side."""

from ._dialect import NativeDialect as NativeDialect
from ._place import Place as Place
from ._place import variables as variables
from ._program import check as check
from ._program import program as program
