"""The cases of `megatron.mtp-loss-scale` with verl's own `_postprocess` in the place of the model's.

The folder of verl is in `VERL_FOLDER`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from overlay.patches.megatron.mtp_loss_scale import contract as own

_build = own._model


def cases(world: int) -> list[tuple[str, dict[str, int], Callable[[], dict[str, float]]]]:
    """Return them, but those that verl's function has no argument for."""
    own._model = _model
    left = (own.UNLABELLED, own.PACKED)
    return [case for case in own.cases(world) if not any(name in case[0] for name in left)]


def _model(*args: Any, **kwargs: Any) -> Any:
    model = _build(*args, **kwargs)
    file = Path(os.environ["VERL_FOLDER"], "verl/models/mcore/mtp_patch.py")
    name = "mtp_patch_of_verl"
    if name not in sys.modules:  # without verl's packages, which import far more
        spec = spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    postprocess = sys.modules[name]._megatron_gptmodel_postprocess
    model._postprocess = postprocess.__get__(model, type(model))
    return model
