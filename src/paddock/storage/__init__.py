"""Trees: what sandboxes start from and write to, copied on write by the best driver that this machine has."""

from paddock.keeper.pool import open_pool as keeper_open_pool
from paddock.storage._artifacts import Artifacts as Artifacts
from paddock.storage._base import Pool as Pool
from paddock.storage._base import TreeUsage as TreeUsage
from paddock.storage._basis import keep_promoted as keep_promoted
from paddock.storage._config import PoolConfig as PoolConfig
from paddock.storage._config import Reason as Reason
from paddock.storage._listing import Listing as Listing
from paddock.storage._listing import list_changes as list_changes
from paddock.storage._mount_changes import MountChanges as MountChanges
from paddock.storage._mount_changes import Plan as Plan
from paddock.storage._mount_changes import mount_changes as mount_changes
from paddock.storage._newcomers import is_new as is_new
from paddock.storage._obstacles import Seen as Seen
from paddock.storage._open import open_pool as open_pool
from paddock.storage._prepare import prepare as prepare
from paddock.storage._templates import Templates as Templates

__all__ = [
    "Artifacts",
    "MountChanges",
    "Plan",
    "Pool",
    "PoolConfig",
    "Reason",
    "Seen",
    "Templates",
    "TreeUsage",
    "is_new",
    "keep_promoted",
    "keeper_open_pool",
    "mount_changes",
    "open_pool",
    "prepare",
]
