"""Repositories: bare copies of remote ones. Only the host's git writes them."""

from . import pins as pins
from ._ambient import Login as Login
from ._ambient import ambient as ambient
from ._git import HostGit as HostGit
from ._git import Listing as Listing
from ._git import Proof as Proof
from ._process import Bounds as Bounds
from ._process import Progress as Progress
from ._process import RemoteRefused as RemoteRefused
from ._remote import SSH as SSH
from ._remote import Credential as Credential
from ._remote import Remote as Remote
from ._remote import check_ref as check_ref
from ._remote import is_commit as is_commit
from ._remote import is_loopback as is_loopback
from ._remote import located as located
from ._remote import parse as parse
from ._remote import web as web
