"""The host's side of the guest protocol (`docs/design/guest.md`): what a backend with a guest inside needs."""

from ._guest_connection import GuestConnection as GuestConnection
from ._guest_exec import GuestExecHandle as GuestExecHandle
from ._guest_instance import GuestInstance as GuestInstance
