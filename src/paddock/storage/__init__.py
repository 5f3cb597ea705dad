"""Trees: what sandboxes start from and write to, copied on write by the best driver that this machine has."""

from paddock.storage._base import Pool as Pool
from paddock.storage._base import TreeUsage as TreeUsage
from paddock.storage._config import PoolConfig as PoolConfig
from paddock.storage._config import Reason as Reason
from paddock.storage._prepare import open_pool as open_pool
from paddock.storage._prepare import prepare as prepare
from paddock.storage._templates import Templates as Templates
