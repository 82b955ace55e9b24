"""slime's real training modules without a GPU, Ray, SGLang or wandb.

`import_slime("data", "loss")` returns modules of `slime.backends.megatron_utils` as they are in the revision
that stands first on the path. What is stood in for:

* packages of others that are not installed and that no tested function calls: importing them gives a module
  whose every attribute is a mock;
* the `__init__` of slime's own packages, which import the Ray actors and with them the rollout side.
"""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

from overlay.compat.names import Finder, Names

#: Top-level packages that slime's modules import. Those that are installed are used as they are.
_OTHERS = (
    "PIL", "datasets", "httpx", "mbridge", "pandas", "pyarrow", "pybase64", "pylatexenc", "ray", "sglang",
    "sglang_router", "tensorboard", "torch_memory_saver", "transformers", "wandb",
)  # fmt: skip

#: Packages that are in Megatron's repository or beside it, and not in its wheel.
_WITHIN = ("megatron.bridge", "megatron.training")

#: Packages of slime whose `__init__` is left out. Of its fork miles, none is.
_BARE = ("slime.utils", "slime.backends.megatron_utils")

#: Where all revisions have their `data` and their `loss`.
TRAINING = "slime.backends.megatron_utils"


class _Mocks(Names):
    """A module of a package that is not installed."""

    def made(self, name: str) -> Any:
        return MagicMock(name=f"{self.__name__}.{name}")


class StandIns(Finder):
    """Finder, asked last, for packages of others that are not installed: their modules have mocks."""

    def __init__(self, *packages: str) -> None:
        super().__init__(*packages, *_WITHIN, kind=_Mocks)


def stand_in(package: str = "slime") -> None:
    """Put the stand-ins in place, once, in a process that runs slime, or its fork, and nothing else."""
    if any(isinstance(finder, StandIns) for finder in sys.meta_path):
        return
    sys.meta_path.append(StandIns(*_OTHERS))
    for name in _BARE if package == "slime" else ():
        parent, _, child = name.rpartition(".")
        outer = importlib.import_module(parent)
        spec = PathFinder.find_spec(name, outer.__path__)
        if spec is None:
            msg = f"{name} is not on the path"
            raise ModuleNotFoundError(msg, name=name)
        module = module_from_spec(spec)
        sys.modules[name] = module
        setattr(outer, child, module)
    if package == "slime":
        _choose_cuda()


def _choose_cuda() -> None:
    """Choose CUDA, which `cuda_on_cpu` stands in for: slime after 0.3.1 asks torch what there is."""
    try:
        accelerator: Any = importlib.import_module("slime.utils.accelerator")
    except ModuleNotFoundError:
        return
    accelerator._register_builtin_backends()
    chosen = accelerator._ACCELERATOR = accelerator._REGISTRY["cuda"].factory()
    chosen.current_device = lambda: chosen._module().current_device()  # no number: the CPU has none


def import_slime(*names: str) -> list[ModuleType]:
    """Import modules of slime's training side by their short names and return them.

    With `SLIME_FORK` in the environment, those of the fork that it names.
    """
    fork = os.environ.get("SLIME_FORK", "")
    stand_in(fork or "slime")
    if fork:
        from overlay.compat.slime_on_cpu.miles import as_slime

        return [as_slime(name) for name in names]
    return [importlib.import_module(f"{TRAINING}.{name}") for name in names]


def imported(name: str) -> Any:
    """Import any module of slime by its full name and return it: of the rollout side, or a utility."""
    stand_in()
    return importlib.import_module(name)
