"""The pool of trees, templates and images, repositories, differences, and secrets at rest."""

from .pool import Pool as Pool
from .pool import PoolConfig as PoolConfig
from .pool import open_pool as open_pool
from .pool import prepare as prepare
from .templates import Templates as Templates
