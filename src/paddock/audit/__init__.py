"""What was decided, what came of it: append-only, hash-chained, and written before the effect."""

from ._digest import Redact as Redact
from ._digest import describe as describe
from ._digest import redact_secrets as redact_secrets
from ._log import AuditLog as AuditLog
from ._log import Durability as Durability
from ._read import MOST_RECORDS as MOST_RECORDS
from ._read import Eyes as Eyes
from ._read import read_records as read_records
from ._verify import verify as verify
