"""miles' real loss, under the names by which the cases of this folder call slime's.

`SLIME_FORK=miles` lets `import_slime` return these: the same cases run on the fork.
"""

from __future__ import annotations

import importlib
import inspect
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from megatron.core import parallel_state as mpu

_TRAINING = "miles.backends.training_utils"

#: What miles asks of its arguments beyond what slime does.
ARGUMENTS: dict[str, Any] = {
    "observe_training_entropy": True,
    "skip_actor_forward_only": False,
    "true_on_policy_mode": False,
    "use_dynamic_global_batch_size": False,
    "use_opd": False,
}


def _module(name: str) -> Any:
    return importlib.import_module(f"{_TRAINING}.{name}")


def _logits() -> Any:
    """Return miles' module of log-probabilities: of 0.0.2, the one that has the losses too."""
    apart = find_spec(f"{_TRAINING}.loss_hub")
    return _module("loss_hub.logit_processors" if apart else "loss")


def _know_ranks() -> None:
    """Tell miles of Megatron's groups as they are now."""
    parallel = _module("parallel")
    # What survives faults came with groups of its own.
    tolerant = "indep_dp" in inspect.signature(parallel.ParallelState).parameters
    groups = importlib.import_module("miles.utils.ft_utils.process_group_utils") if tolerant else parallel

    def group(kind: str, **options: Any) -> Any:
        handle = getattr(mpu, f"get_{kind}_parallel_group")(**options)
        return groups.GroupInfo(rank=handle.rank(), size=handle.size(), group=handle)

    alone = groups.GroupInfo(rank=0, size=1, group=None)
    parallel.set_parallel_state(
        parallel.ParallelState(
            intra_dp=group("data", with_context_parallel=False),
            intra_dp_cp=group("data", with_context_parallel=True),
            cp=group("context"),
            tp=group("tensor_model"),
            pp=alone,
            ep=alone,
            etp=alone,
            **({"indep_dp": alone} if tolerant else {}),
        )
    )


def _given(args: Any) -> Any:
    """Add to slime's arguments, in place: what is asked is also whether they are changed."""
    for name, value in ARGUMENTS.items():
        if not hasattr(args, name):
            setattr(args, name, value)
    return args


class _Loss(ModuleType):
    """slime's `loss`, made of miles' modules. Names are looked up there when they are asked for."""

    @property
    def get_log_probs_and_entropy(self) -> Any:
        _know_ranks()
        function = _logits().get_log_probs_and_entropy

        def get_log_probs_and_entropy(
            logits: Any, *, args: Any, max_seq_lens: Any = None, **given: Any
        ) -> Any:
            return function(logits, args=_given(args), max_seq_lens=max_seq_lens, **given)

        return get_log_probs_and_entropy

    @staticmethod
    def loss_function(args: Any, batch: Any, count: int, step_global_batch_size: int, logits: Any) -> Any:
        _know_ranks()
        function = _module("loss").loss_function
        given = (_given(args), batch, count, logits, True, step_global_batch_size)
        return function(*given[: len(inspect.signature(function).parameters)])

    @staticmethod
    def compute_advantages_and_returns(args: Any, rollout_data: Any) -> None:
        _know_ranks()
        _module("loss").compute_advantages_and_returns(_given(args), rollout_data)


class _Slices(ModuleType):
    """slime's `cp_utils`, of miles."""

    def __getattr__(self, name: str) -> Any:
        _know_ranks()
        return getattr(_module("cp_utils"), name)


def as_slime(name: str) -> ModuleType:
    """Return miles' equivalent of a module of slime's training side."""
    made: ModuleType = {"loss": _Loss, "cp_utils": _Slices}[name](f"miles_as_{name}")
    # Where it says which features it has.
    made.__file__ = _logits().__file__
    _module("loss")
    return made
