"""Levels whose isolation is a program in a jail. A controller beside it talks to the guest behind it."""

from ._backend import GUEST as GUEST
from ._backend import VmmBackend as VmmBackend
from ._backend import cores as cores
from ._control import Control as Control
from ._instance import Orders as Orders
from ._instance import VmmInstance as VmmInstance
from ._instance import nobodys as nobodys
