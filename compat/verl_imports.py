"""What verl's workers and trainers import and do not use on a CPU, where it is not installed.

A web server, an image loader, a cache, and classes of vision models that newer releases of
transformers have dropped.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

_UNUSED = ("cachetools", "fastapi", "qwen_vl_utils", "uvicorn")


class Anything(types.ModuleType):
    """A module that has whatever is asked of it: empty classes."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what of some packages is not installed: this comes last on the meta path."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self.packages = packages

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        if any(name == package or name.startswith(f"{package}.") for package in self.packages):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> types.ModuleType:
        return Anything(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def stand_in() -> None:
    """Let verl's workers and trainers be imported. Stays for the rest of the process, and is done once."""
    if any(isinstance(finder, _Finder) and finder.packages == _UNUSED for finder in sys.meta_path):
        return
    sys.meta_path.append(_Finder(_UNUSED))
    # First this, for it puts a new object in the place of the package.
    from transformers.models.qwen2_vl import modeling_qwen2_vl

    for module, name in (
        (sys.modules["transformers"], "AutoModelForVision2Seq"),
        (modeling_qwen2_vl, "Qwen2VLCausalLMOutputWithPast"),
    ):
        if name not in vars(module):
            setattr(module, name, type(name, (), {}))


def stand_in_for(*packages: str) -> None:
    """Let packages be imported that only some jobs have, and of which nothing is called. Stays, as above."""
    sys.meta_path.append(_Finder(packages))


def imported(name: str, *packages: str) -> Any:
    """Import a module of verl or Megatron, and stand in for Triton and `packages` where they are missing."""
    stand_in()
    if packages:
        stand_in_for(*packages)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != "triton":  # which the Megatron of an image imports
            raise
    from overlay.compat.no_triton import no_triton

    with no_triton():
        return importlib.import_module(name)
