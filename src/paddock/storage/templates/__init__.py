"""Templates: root file systems from a recipe or an image. paddock builds each once and copies it for each sandbox."""

from ._templates import Templates as Templates
