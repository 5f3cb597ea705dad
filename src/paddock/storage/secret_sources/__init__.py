"""Where the values of secrets come from: this machine, a HashiCorp Vault, tokens that are made on demand."""

from ._fetch import Fetched as Fetched
from ._fetch import Fetcher as Fetcher
from ._fetch import is_kept as is_kept
