"""decide(principal, action) -> Decision. Pure, synchronous, total, closed by default."""

from ._policy import Policy as Policy
from ._policy import Rule as Rule
from ._policy import local_policy as local_policy
