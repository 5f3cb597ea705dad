"""Filter and cache what package registries answer."""
