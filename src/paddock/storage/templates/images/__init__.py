"""OCI images as templates: read from a layout, an archive or a registry, verified, and unpacked without trust."""

from ._finish import find_user as find_user
from ._images import Images as Images
from ._images import Record as Record
from .limits import ImageLimits as ImageLimits
