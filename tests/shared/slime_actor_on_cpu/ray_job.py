"""slime's real `train.py` under a real Ray, on CPUs: the stand-ins of this package in all its processes.

    python -m slime_actor_on_cpu.ray_job train.py ...

runs `train.py` as its driver. Workers get theirs by the setup hook in the `runtime_env` of the job
(`WORKERS`). What imports torch is put in place as slime's training side is imported: most workers never do.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

from overlay.compat.slime_on_cpu import TRAINING, StandIns
from overlay.runtime.finder import WatchingFinder
from slime_actor_on_cpu import CONTEXTS, PACKAGES

#: What the `runtime_env` of the job has besides.
WORKERS = {"worker_process_setup_hook": f"{__name__}.stand_in"}

_ARGUMENTS = "slime.utils.arguments"
#: What the `RolloutManager` imports besides, for rollouts that it does not generate.
_OF_ROLLOUTS = ("pybase64",)
_CHECKPOINT = f"{TRAINING}.checkpoint"


def stand_in() -> None:
    """Put the stand-ins in place, each when what it is for is imported."""
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    sys.meta_path.append(StandIns(*PACKAGES, *_OF_ROLLOUTS))
    WatchingFinder(frozenset({TRAINING, _ARGUMENTS, _CHECKPOINT}), _imported).install()


def _imported(name: str, module: Any) -> None:
    if name == TRAINING:
        from overlay.compat.cuda_on_cpu import cuda_on_cpu
        from overlay.compat.no_triton import no_triton

        for context in (no_triton(), cuda_on_cpu()):
            CONTEXTS.enter_context(context)
    elif name == _CHECKPOINT:
        from slime_actor_on_cpu import weights

        weights.replace_checkpoint()
    else:
        module.parse_args = _in_float32(module.parse_args)


def _in_float32(parse_args: Any) -> Any:
    def parse(*args: Any, **kwargs: Any) -> Any:
        import torch

        found = parse_args(*args, **kwargs)
        # slime sets bfloat16 whatever was asked for, which would hide what is looked at here.
        found.bf16, found.params_dtype = False, torch.float32
        return found

    return parse


if __name__ == "__main__":
    # This file runs under another name than workers import it by.
    from slime_actor_on_cpu import ray_job  # noqa: PLW0406 -- see above

    ray_job.stand_in()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
