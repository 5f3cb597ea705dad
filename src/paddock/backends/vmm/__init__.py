"""Levels whose wall is a program: it runs in a jail, and a controller beside it speaks with the guest behind it."""

from ._backend import GUEST as GUEST
from ._backend import VmmBackend as VmmBackend
from ._backend import cores as cores
from ._control import Control as Control
from ._instance import Orders as Orders
from ._instance import VmmInstance as VmmInstance
from ._instance import nobodys as nobodys
