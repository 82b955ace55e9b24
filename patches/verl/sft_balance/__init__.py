"""`verl.sft-balance`: the SFT trainer's data parallel ranks get equal work.

The trainer hands a global batch to its training client, which gives each rank a contiguous share of the rows.
While verl's `fit` runs, the client's `train_batch` reorders the rows by the lengths that `fit` has counted.
From 0.8 on `fit` balances by itself if the settings say so. It asks them between the count and the hand-over,
and there it finds settings that say no.
"""

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import Figure, effect
from overlay.patch import Patch, around, one_target, replaced, variant

ID = "verl.sft-balance"
EFFECT = effect(
    __name__,
    "batch",
    Figure(
        name="most_work",
        says="most work of a rank as the batch came, over the same as it was balanced",
        combine="max",
    ),
    did="reordered",
    then="as they came, the rank with most work had up to {most_work} times as much",
)


@around
def fit(original: Any, self: Any) -> Any:
    """Balance each batch that the client is handed, and let verl balance nothing itself."""
    from unittest.mock import patch

    if not _is_on(self.config.trainer):
        return original(self)
    client, told = self.training_client, self.config
    untold = _without_balance(told)
    count, send = self._get_batch_seqlens, client.train_batch
    ranks = max(client._query_dispatch_info("train")) + 1  # noqa: SLF001 -- as verl's trainer asks

    # The tracker has been given the settings as they are when the first batch is counted.
    def _get_batch_seqlens(data: Any) -> Any:
        lengths = count(data)
        self.config = untold
        return lengths

    def train_batch(data: Any) -> Any:
        self.config = told
        return send(_balanced(data, ranks))

    try:
        with (
            patch.object(client, "train_batch", train_batch),
            patch.object(self, "_get_batch_seqlens", _get_batch_seqlens),
        ):
            return original(self)
    finally:
        self.config = told


def _without_balance(config: Any) -> Any:
    """Return a copy of OmegaConf settings that says `trainer.balance_batch=False`."""
    from omegaconf import OmegaConf

    changed = deepcopy(config)
    OmegaConf.set_readonly(changed.trainer, value=False)
    OmegaConf.set_struct(changed.trainer, value=False)
    changed.trainer.balance_batch = False
    return changed


def _is_on(settings: Any) -> bool:
    """Return what `trainer.balance_batch` says, and say in the log what it means here."""
    from overlay import log

    if "balance_batch" not in settings:
        log.of_job(
            f"{ID}: trainer.balance_batch is not set, so batches are balanced over the data parallel ranks "
            "(+trainer.balance_batch=False keeps them as they come)"
        )
        return True
    found = bool(settings.balance_batch)
    log.of_job(f"{ID}: trainer.balance_batch={found}, so batches are {'' if found else 'not '}balanced")
    return found


def _balanced(data: Any, ranks: int) -> Any:
    """Return a TensorDict in balanced order, or as it is if the ranks do not divide its rows."""
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.utils.seqlen_balancing import calculate_workload

    lengths = tu.get(data, "global_token_num")
    if len(lengths) % ranks:
        return data
    workloads = calculate_workload(torch.tensor(lengths)).tolist()
    order = balanced_order(workloads, ranks)
    _count(workloads, order, ranks)
    return tu.index_select_tensor_dict(data, order)


def _count(workloads: Sequence[int], order: Sequence[int], ranks: int) -> None:
    """Count a batch, and by how much the rank with most work had more as the batch came."""
    EFFECT.calls += 1
    if list(order) != sorted(order):
        EFFECT.changed += 1
        found, given = (most_work(workloads, _shares(rows, ranks)) for rows in (order, range(len(order))))
        if found:
            EFFECT.most_work = max(EFFECT.most_work, given / found)


def balanced_order(workloads: Sequence[int], ranks: int) -> list[int]:
    """Return indices such that each rank's share has as many samples as any other, and about the same work.

    No share has more work than the one that had most before. Within a share the order is verl 0.8's: the
    least work at both ends, where a pipeline fills and drains.

    `workloads` has that of each sample, in any unit; `ranks` divides their number.
    """
    from overlay.patches._partition.equal import equal_shares

    found, given = equal_shares(workloads, ranks), _shares(range(len(workloads)), ranks)
    better = most_work(workloads, found) <= most_work(workloads, given)
    order: list[int] = []
    for share in found if better else given:
        rising = sorted(share, key=lambda index: (workloads[index], index))
        order += rising[::2] + rising[1::2][::-1]
    return order


def _shares(rows: Sequence[int], ranks: int) -> list[Sequence[int]]:
    size = len(rows) // ranks
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def most_work(workloads: Sequence[int], shares: Sequence[Sequence[int]]) -> int:
    """Return the most work of any of the shares."""
    return max(sum(workloads[index] for index in share) for share in shares)


_TRAINER = "verl.trainer.sft_trainer_ray"
_DECORATOR = "verl.single_controller.base.decorator"

#: What is replaced, and what that relies on: how rows come to ranks, how work is estimated, what is counted.
_COMMON = (
    replaced(f"{_TRAINER}:SFTTrainer.fit", fit),
    f"{_TRAINER}:SFTTrainer._get_batch_seqlens",
    "verl.utils.seqlen_balancing:calculate_workload",
    f"{_DECORATOR}:dispatch_lazy_compute_data_proto",
    f"{_DECORATOR}:dispatch_nd_compute",
    "verl.single_controller.base.worker:Worker._query_dispatch_info",
    "verl.single_controller.ray.base:func_generator",
    f"{_DECORATOR}:_split_args_kwargs_data_proto",
    "verl.utils.tensordict_utils:get",
    "verl.utils.tensordict_utils:chunk_tensordict",
    "verl.utils.tensordict_utils:index_select_tensor_dict",
)

PATCH = Patch(
    id=ID,
    summary="SFT on Ray: data parallel ranks get equal work",
    why="verl 0.7's SFT trainer on Ray gives each data parallel rank whatever samples come next, so that all "
    "wait for the rank that drew the long ones. With the patch the rows of each global batch are reordered "
    "before they are handed out: as many samples for each rank, with work by verl's own estimate as equal as "
    "swaps can make it, unless trainer.balance_batch is false. verl 0.8 and 0.9 do so themselves, but slowly "
    "(they count the lengths twice and partition a float tensor), unevenly where few samples are far longer "
    "than the rest, and by the padding of padded rows; the patch replaces that. In the SPMD trainer "
    "(verl.trainer.sft_trainer), which is left alone, each rank has a loader of its own.",
    evidence="verl 0.8.0 balances the ranks of SFT by default (#5679). The contract runs verl's trainer with "
    "the patch and without, and compares samples, gradients and losses.",
    changes=("speed", "numbers"),
    met="SFT on Ray, unless trainer.balance_batch is false. Each step sees the same samples, on other ranks.",
    upstream=("verl-project/verl#5679",),
    targets=one_target(
        VERL,
        variant("0.8", *_COMMON),
        variant("0.7", *_COMMON, "verl.workers.engine_workers:TrainingWorker.train_batch"),
        tells=(_TRAINER,),
    ),
)
