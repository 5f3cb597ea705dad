"""Isolation technologies behind one contract."""

from ._base import Backend as Backend
from ._base import Capabilities as Capabilities
from ._base import Ending as Ending
from ._base import Exits as Exits
from ._base import Instance as Instance
from ._base import SandboxPlan as SandboxPlan
from ._base import TreeMount as TreeMount
from ._registry import OVER_THE_SUPERVISOR as OVER_THE_SUPERVISOR
from ._registry import load as load
from ._registry import names as names
