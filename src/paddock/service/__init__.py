"""The one door: everything that can be asked of paddock passes `Service.perform`."""

from ._clock import Clock as Clock
from ._providers import Templates as Templates
from ._service import Service as Service
