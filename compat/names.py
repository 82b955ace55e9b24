"""Modules for packages that are not installed: what imports them asks for names, and calls few of them."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class Names(ModuleType):
    """A module that has whatever is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.made(name)

    def made(self, name: str) -> Any:
        """Return what stands for a name: an empty class."""
        return type(name, (), {})


class Finder:
    """Finds all modules of some packages. Last on the meta path, it finds those that are not installed."""

    def __init__(self, *packages: str, kind: type[Names] = Names) -> None:
        self.packages, self.kind = packages, kind

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Find a module of one of the packages."""
        if any(f"{name}.".startswith(f"{package}.") for package in self.packages):
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]  # a loader by its methods
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a module of the kind that was given."""
        return self.kind(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it was made."""
