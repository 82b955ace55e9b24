"""What verl's workers and trainers import and do not use on a CPU, where it is not installed.

A web server, an image loader, a cache, and classes of vision models that newer releases of
transformers have dropped.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from overlay.compat.names import Finder, Names

_UNUSED = ("cachetools", "fastapi", "qwen_vl_utils", "uvicorn")

#: By this name a contract has it.
Anything = Names


def stand_in() -> None:
    """Let verl's workers and trainers be imported. Stays for the rest of the process, and is done once."""
    if any(isinstance(finder, Finder) and finder.packages == _UNUSED for finder in sys.meta_path):
        return
    sys.meta_path.append(Finder(*_UNUSED))
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
    sys.meta_path.append(Finder(*packages))


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
