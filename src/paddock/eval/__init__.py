"""Would it leak? Prompt injection, played in real sandboxes under a policy: see docs/design/injection.md."""

from ._catalogue import catalogue as catalogue
from ._evaluate import HEADINGS as HEADINGS
from ._evaluate import Report as Report
from ._evaluate import as_json as as_json
from ._evaluate import as_markdown as as_markdown
from ._evaluate import choose as choose
from ._evaluate import evaluate as evaluate
from ._evaluate import rows as rows
from ._evaluate import summary as summary
from ._evaluate import write as write
from ._scenario import HonestTask as HonestTask
from ._scenario import Scenario as Scenario
from ._trial import Leak as Leak
from ._trial import Outcome as Outcome
from ._trial import Stop as Stop
