"""Isolation technologies behind one contract."""

from ._registry import OVER_THE_SUPERVISOR as OVER_THE_SUPERVISOR
from ._registry import load as load
from ._registry import names as names
from .base import Backend as Backend
from .base import Capabilities as Capabilities
from .base import Ending as Ending
from .base import Exits as Exits
from .base import Instance as Instance
from .base import SandboxPlan as SandboxPlan
from .base import TreeMount as TreeMount
