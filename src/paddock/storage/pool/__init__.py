"""The pool: trees that sandboxes start from and write to, copied on write by the best driver of this machine."""

from ._prepare import open_pool as open_pool
from ._prepare import prepare as prepare
from .base import Pool as Pool
from .config import PoolConfig as PoolConfig
