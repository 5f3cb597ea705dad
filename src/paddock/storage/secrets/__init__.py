"""The sources of secrets: this machine, a HashiCorp Vault, and tokens on demand."""

from ._sources import LEAST_BYTES as LEAST_BYTES
from ._sources import MOST_BYTES as MOST_BYTES
from ._sources import FetchedValue as FetchedValue
from ._sources import Fetcher as Fetcher
from ._sources import is_kept as is_kept
