"""Every action by its tag. To import this takes all of the model."""

from __future__ import annotations

from importlib import import_module

from . import HOMES
from .action import TAGGED

for _home in dict.fromkeys(HOMES.values()):
    import_module(f"{__package__}.{_home}")

BY_TAG = dict(TAGGED)
