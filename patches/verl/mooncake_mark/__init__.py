"""`verl.mooncake-mark`: no mark of completion is handed to the inference engine as part of a weight.

With several rollout workers each reads a bucket out of the memory of the one before it, and says that it has
done so by writing four bytes there: the first of the bucket, which the owner may not have read yet. An
engine that has a worker behind it copies what these bytes belong to, before it tells that worker of the
bucket, and hands on the copy. What is sent to and fro stays as it is, so a worker needs no patched neighbour.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.verl.mooncake_mark.fix import make_init_process_group

_MODULE = "verl.checkpoint_engine.mooncake_checkpoint_engine"
_ENGINE = f"{_MODULE}:MooncakeCheckpointEngine"

PATCH = Patch(
    id="verl.mooncake-mark",
    revision=2,
    summary="Rollout workers read no mark of completion in the place of weights",
    why=(
        "With verl's checkpoint engine mooncake a rollout worker reads each bucket of weights out of the "
        "memory of the worker before it, and marks it as read with four bytes at its beginning. The other "
        "one may still be loading the bucket: then the first elements of a weight are the mark, with no "
        "error. Nothing makes either of them wait. With the patch a worker copies the weights that lie in "
        "these bytes, mostly one for each bucket, before the next worker can write there, and loads the "
        "copy. The last worker, and a single one, have nobody behind them and copy nothing. verl 0.9 gives "
        "the mark a place of its own."
    ),
    evidence=(
        "verl 0.9.0 gives the mark a place outside the weights (#6813). The contract compares what each "
        "worker loads with what was sent, to the bit."
    ),
    changes=("numbers",),
    met="Weights that are sent to two or more separate rollout workers by the checkpoint engine `mooncake`.",
    upstream=("verl-project/verl#6813",),
    targets=one_target(
        VERL,
        variant(
            "0.7.1 and 0.8",
            replaced(f"{_ENGINE}.init_process_group", make_init_process_group),
            f"{_ENGINE}.receive_weights",
        ),
        tells=(_ENGINE,),
    ),
)
