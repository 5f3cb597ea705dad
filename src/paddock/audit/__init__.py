"""What was decided, what came of it: append-only, hash-chained, and written before the effect."""

from ._digest import Redact as Redact
from ._digest import describe as describe
from ._digest import redact_secrets as redact_secrets
from ._log import AuditLog as AuditLog
from ._log import Durability as Durability
from ._verify import verify as verify
