"""Version-gated runtime patches for an installed Megatron-Core, slime or verl."""

from overlay._version import __version__

__all__ = ["__version__"]
