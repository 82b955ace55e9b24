"""`megatron.known-defects`: rank 0 says which known defects affect this very job."""

import sys
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_VARS = "megatron.training.global_vars"
EFFECT = effect(__name__, "job", did="looked up the settings of", always=True)


@around
def set_args(original: Any, args: Any) -> None:
    """Look up the arguments, which Megatron, slime or miles has parsed and validated by now."""
    original(args)
    from overlay.compat.dialects import FLAGS
    from overlay.runtime.met import meet
    from overlay.runtime.process import here

    # slime and miles, which share Megatron's options, may be installed without being of this job.
    ours = [name for name in FLAGS.projects if name == MEGATRON.name or name in sys.modules]
    meet(here(), FLAGS.replace(projects=tuple(ours)), [getattr(args, "__dict__", {})])
    EFFECT.changed += 1


PATCH = Patch(
    id="megatron.known-defects",
    summary="Log which known defects affect this job, going by its parsed arguments",
    why="An audit before the job can only read its scripts. Once Megatron, slime or miles has parsed and "
    "validated the arguments, rank 0 looks up which known defects they hit. It logs in a line how many are "
    "patched here, and what to do about the others.",
    evidence="It changes nothing that computes: it adds a line to the log, and to the ledger.",
    changes=("safety",),
    met="Any job that Megatron's training arguments start. It changes no number.",
    upstream=(),
    companion=True,
    without="the log does not say which known defects affect this job",
    targets=one_target(MEGATRON, variant("0.12", replaced(f"{_VARS}:set_args", set_args)), tells=(_VARS,)),
)
