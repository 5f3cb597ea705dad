"""What was decided, what came of it: append-only, hash-chained, and written before the effect."""

from ._digest import Redact as Redact
from ._digest import describe as describe
from ._digest import redact_secrets as redact_secrets
from ._heads import HeadSigner as HeadSigner
from ._log import HEADS as HEADS
from ._log import SUFFIX as SUFFIX
from ._log import AuditLog as AuditLog
from ._log import Durability as Durability
from ._read import MOST_RECORDS as MOST_RECORDS
from ._read import Eyes as Eyes
from ._read import read_records as read_records
from ._record import Broken as Broken
from ._signing import SigningKey as SigningKey
from ._signing import key_id as key_id
from ._signing import open_key as open_key
from ._signing import public_pem as public_pem
from ._signing import read_public_key as read_public_key
from ._verify import verify as verify
