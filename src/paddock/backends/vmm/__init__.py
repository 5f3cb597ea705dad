"""Levels whose wall is a program: it runs in a jail, and a pilot beside it speaks with the guest behind it."""

from ._backend import GUEST as GUEST
from ._backend import VesselBackend as VesselBackend
from ._control import Control as Control
from ._instance import Child as Child
from ._instance import Orders as Orders
from ._instance import VesselInstance as VesselInstance
from ._instance import nobodys as nobodys
