"""Policy rules about commands and files in requests from outside the sandbox.

See docs/design/commands-and-files.md.
"""

from ._commands import MOST_RULES as MOST_RULES
from ._commands import Commands as Commands
from ._commands import Judgement as Judgement
from ._commands import command_faults as command_faults
from ._commands import strictest as strictest
from ._files import Files as Files
from ._files import explain_command as explain_command
from ._files import explain_file as explain_file
from ._files import file_faults as file_faults
