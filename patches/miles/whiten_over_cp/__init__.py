"""`miles.whiten-over-cp`: advantages are whitened over all ranks that have a part of them.

Under context parallelism a rank has some of the tokens of each sample, and miles asks the data parallel ranks
for statistics, which all have the same part. A rank that has no token at all asks nobody, and those that wait
for it are stuck: it enters the collective when miles is done, which has none behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from overlay.compat.projects import MILES
from overlay.effect import Figure, effect
from overlay.patch import Patch, one_target, replaced, variant

_ADVANTAGES = "miles.backends.training_utils.loss_hub.advantages"
_STATE = "miles.backends.training_utils.parallel:ParallelState"
_GROUPS = "miles.utils.ft_utils.process_group_utils"
EFFECT = effect(
    __name__,
    "normalisation",
    Figure(
        name="mean_off",
        says="distance of a mean that miles takes from that of all tokens, in deviations",
        combine="max",
    ),
    Figure(
        name="deviation_off",
        says="how far a deviation that miles takes is from that of all tokens, as a part of it",
        combine="max",
    ),
    Figure(
        name="empty",
        says="of them, those in which this rank had no token, so that the others would have waited for it",
    ),
    then="without it a mean up to {mean_off} deviations off, a deviation up to {deviation_off} of itself",
)


#: While advantages are normalised: whether this rank has entered the collective.
_entered: ContextVar[bool] = ContextVar("overlay_miles_whitened", default=False)


def make_whiten(_original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Replace the whitening by its name among the advantages: other groups, and sums in float64."""
    from miles.utils.ft_utils.process_group_utils import GeneralPGUtil
    from torch.distributed import ReduceOp

    from overlay.patches._whitening import whitened

    def distributed_masked_whiten(
        values: Any, mask: Any, process_group: Any = None, shift_mean: bool = True, epsilon: float = 1e-8
    ) -> Any:
        """Return the values whitened. The group is ignored: it is the one without context parallelism."""
        _entered.set(True)
        groups = module.get_parallel_state().effective_dp_cp.groups_inner_to_outer

        def all_reduce(sums: Any) -> None:
            # One group; two with replicas that tolerate faults, of which each has all the samples' parts.
            for group in groups:
                GeneralPGUtil.create(group).all_reduce(sums, group, op=ReduceOp.SUM)

        cp = module.get_parallel_state().cp
        place = int(cp.rank), int(cp.size)
        return whitened(values, mask, all_reduce, place, EFFECT, shift_mean=shift_mean, epsilon=epsilon)

    return distributed_masked_whiten


def make_normalize(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Wrap the normalisation: every rank enters the collective, whether or not it has a token."""
    import torch

    def normalize_advantages(
        args: Any,
        advantages: list[Any],
        loss_masks: list[Any],
        total_lengths: list[int],
        response_lengths: list[int],
        max_seq_lens: Sequence[int] | None = None,
    ) -> Any:
        token = _entered.set(False)
        try:
            result = original(
                args, advantages, loss_masks, total_lengths, response_lengths, max_seq_lens=max_seq_lens
            )
            if not _entered.get():
                EFFECT.empty += 1
                none = torch.cat(advantages)
                module.distributed_masked_whiten(none, torch.ones_like(none))
            return result
        finally:
            _entered.reset(token)

    return normalize_advantages


PATCH = Patch(
    id="miles.whiten-over-cp",
    revision=2,
    summary="Advantages normalised with one mean and deviation for all ranks",
    why=(
        "With --normalize-advantages and context parallelism, miles' ranks whiten their slices of a sample "
        "each with the statistics of its own slices over the data parallel ranks: tokens of one sample get "
        "different means and deviations. A rank whose slices have no response token leaves the collective "
        "out, and the others wait for it until they time out. With the patch all ranks that have a part of "
        "the batch are asked together, whether or not they have a token, and sums are taken in float64."
    ),
    changes=("numbers", "hangs"),
    met="--normalize-advantages with a context parallel size above 1.",
    upstream=("THUDM/slime#2235",),
    evidence=(
        "slime's commit dd7f037 (#2235) asks the same group on every rank; the result is that of one "
        "process in float64."
    ),
    targets=one_target(
        MILES,
        variant(
            "0.1",
            replaced(f"{_ADVANTAGES}:normalize_advantages", make_normalize),
            replaced(f"{_ADVANTAGES}:distributed_masked_whiten", make_whiten),
            "miles.utils.distributed_utils:distributed_masked_whiten",
            f"{_STATE}.effective_dp_cp",
            f"{_STATE}._dp_mode",
            f"{_GROUPS}:GroupsInfo",
            _STATE,
            f"{_GROUPS}:GroupInfo",
        ),
    ),
)
