"""Templates: root file systems that are built once, by recipe or from an image, and copied for each sandbox."""

from ._templates import Templates as Templates
