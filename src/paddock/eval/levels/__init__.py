"""Comparison of levels: costs, and the attacks that each stops. See docs/levels.md."""

from ._attacks import ATTACKS as ATTACKS
from ._attacks import Host as Host
from ._attacks import Verdict as Verdict
from ._attacks import attack as attack
from ._attacks import bait as bait
from ._compare import ROUNDS as ROUNDS
from ._compare import Comparison as Comparison
from ._compare import Figure as Figure
from ._compare import LevelResult as LevelResult
from ._compare import as_json as as_json
from ._compare import as_markdown as as_markdown
from ._compare import check_name as check_name
from ._compare import compare as compare
from ._compare import headings as headings
from ._compare import notes as notes
from ._compare import rows as rows
from ._compare import write as write
