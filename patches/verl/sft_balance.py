"""`verl.sft-balance`: the SFT trainer's data parallel ranks get equal work.

The trainer hands a global batch to its training client, which gives each rank a contiguous share of the rows.
So to balance the ranks is to reorder the rows, in the process of the trainer, before they are handed over.
verl's `fit` runs as it is; for as long as it runs, the client's `train_batch` reorders what it is given.

verl 0.7 reorders nothing. From 0.8 on `fit` does so first, with Karmarkar-Karp on a float tensor. That takes
many times as long as on integers, so here the name by which `fit` estimates workloads gives those; and it
leaves the ranks uneven where few samples are far longer than the rest, so what comes out of it is balanced
again if that gains.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Absent, Known, Patch, Removal, Replacement, Target, Variant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

ID = "verl.sft-balance"


def make_fit(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the training loop: until it ends, each batch that is handed to the client is balanced."""

    def fit(self: Any) -> Any:
        if not _is_on(self.config.trainer):
            return original(self)
        client = self.training_client
        ranks = max(client._query_dispatch_info("train")) + 1  # noqa: SLF001 -- as verl's trainer asks
        send = client.train_batch

        def train_batch(data: Any) -> Any:
            return send(_balanced(data, self._get_batch_seqlens(data), ranks))

        # On the client itself, because checkpoints are taken through the same object.
        client.train_batch = train_batch
        try:
            return original(self)
        finally:
            client.train_batch = send

    return fit


def make_calculate_workload(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the estimate of work by its name in the trainer: a list of integers comes out."""

    def calculate_workload(seqlen_list: Any) -> Any:
        return original(seqlen_list.long()).tolist()

    return calculate_workload


def _is_on(settings: Any) -> bool:
    """Return what `trainer.balance_batch` says, and say in the log what it means here."""
    from overlay import _log

    if "balance_batch" not in settings:
        _log.info(
            f"{ID}: trainer.balance_batch is not set, so batches are balanced over the data parallel ranks "
            "(+trainer.balance_batch=False keeps them as they come)"
        )
        return True
    found = bool(settings.balance_batch)
    _log.info(f"{ID}: trainer.balance_batch={found}, so batches are {'' if found else 'not '}balanced")
    return found


def _balanced(data: Any, lengths: Any, ranks: int) -> Any:
    """Return a batch with its rows in the order in which `ranks` contiguous shares are equal work.

    Rows that are in such an order already, as from verl 0.8 on they often are, stay as they are. So do rows
    that do not divide by the ranks: verl refuses them when it splits them.

    Args:
        data: A TensorDict of n rows.
        lengths: Tokens of each row, [n].
        ranks: Data parallel ranks.

    """
    from verl.utils import tensordict_utils as tu
    from verl.utils.seqlen_balancing import calculate_workload

    from overlay.patches._partition.equal import is_even

    if len(lengths) % ranks:
        return data
    workloads = calculate_workload(lengths.long()).tolist()
    before = most_work(workloads, ranks)
    if is_even(before, sum(workloads), ranks):
        return data
    order = balanced_order(workloads, ranks)
    if most_work([workloads[index] for index in order], ranks) >= before:
        return data
    return tu.index_select_tensor_dict(data, order)


def balanced_order(workloads: Sequence[int], ranks: int) -> list[int]:
    """Return indices such that each rank's share has as many samples as any other, and about the same work.

    Within a share the order is verl 0.8's: the least work at both ends, where a pipeline fills and drains.

    Args:
        workloads: Of each sample, in any unit.
        ranks: How many shares; it divides the samples.

    """
    from overlay.patches._partition.equal import equal_shares

    order: list[int] = []
    for share in equal_shares(workloads, ranks):
        rising = sorted(share, key=lambda index: (workloads[index], index))
        order += rising[::2] + rising[1::2][::-1]
    return order


def most_work(workloads: Sequence[int], ranks: int) -> int:
    """Return the most work of any of `ranks` contiguous shares."""
    share = len(workloads) // ranks
    return max(sum(workloads[start : start + share]) for start in range(0, len(workloads), share))


# --- the patch ---

_TRAINER = "verl.trainer.sft_trainer_ray"

#: What every release relies on: how rows come to ranks, how work is estimated, how tokens are counted.
_COMMON = {
    f"{_TRAINER}:SFTTrainer._get_batch_seqlens": ("a6edbf99da5a",),
    "verl.utils.seqlen_balancing:calculate_workload": ("4b08f85620bb",),
    "verl.single_controller.base.decorator:dispatch_lazy_compute_data_proto": ("b8d8f9571ef4",),
    "verl.single_controller.base.decorator:dispatch_nd_compute": ("6e486f2c1f63",),
    "verl.single_controller.base.worker:Worker._query_dispatch_info": ("cb453bbbdd93",),
    "verl.single_controller.ray.base:func_generator": ("c53e27abe759",),
}
_DIGESTS_0_7 = {
    **_COMMON,
    f"{_TRAINER}:SFTTrainer.fit": ("664e9ca905f4", "6d8268d0d265"),
    "verl.single_controller.base.decorator:_split_args_kwargs_data_proto": ("bca02a4e055c", "f2164a700ce1"),
    "verl.utils.tensordict_utils:chunk_tensordict": ("f9fa5401bb5c", "b744fc0bd40e"),
    "verl.utils.tensordict_utils:index_select_tensor_dict": ("162cdc6e79f3",),
    "verl.workers.engine_workers:TrainingWorker.train_batch": ("5154d20cc1f1", "865e06e6092d"),
}
_DIGESTS_0_8 = {
    **_COMMON,
    f"{_TRAINER}:SFTTrainer.fit": ("4d7940aa28e3",),
    f"{_TRAINER}:calculate_workload": ("bc39cb61366e",),
    "verl.single_controller.base.decorator:_split_args_kwargs_data_proto": ("f2164a700ce1",),
    "verl.utils.seqlen_balancing:get_seqlen_balanced_partitions": ("d0c76e9f70df",),
    "verl.utils.tensordict_utils:chunk_tensordict": ("3bae397f3a9d",),
    "verl.utils.tensordict_utils:index_select_tensor_dict": ("40a14dbef6f8",),
}

PATCH = Patch(
    id=ID,
    revision=1,
    summary="SFT on Ray: data parallel ranks that get equal work",
    why=(
        "verl 0.7's SFT trainer on Ray gives each data parallel rank whatever samples come next, so that all "
        "wait for the rank that drew the long ones. With the patch the rows of each global batch are "
        "reordered before they are handed out: the same samples, as many for each rank, with work by verl's "
        "own estimate as equal as swaps can make it, unless trainer.balance_batch is false. verl 0.8 and 0.9 "
        "do so, but partition a float tensor, many times slower than a list of integers, leave the "
        "ranks uneven where few samples are far longer than the rest, and take padded rows for as long as "
        "their padding. With the patch they partition integers, and what is still uneven is balanced by the "
        "tokens that the trainer counts. The SPMD trainer (verl.trainer.sft_trainer) is left as it is: each "
        "of its ranks has a sampler and a loader of its own, and no length is known before a sample is "
        "loaded. To balance its ranks would be to send loaded samples, images included, from rank to rank, "
        "or to reshuffle the data behind the state that each loader resumes from."
    ),
    upstream=("verl-project/verl#5679",),
    remove=Removal(
        version=None,
        when="a release partitions a list of integers, and into shares that are equal",
        test="tests/real/test_sft_balance_ray.py::test_upstream_alone_balances",
    ),
    targets=(
        Target(
            project=VERL,
            variants=(
                Variant(
                    name="0.8",
                    versions=">=0.8.0.dev0,<0.10.0.dev0",
                    shape=tuple(Known(site=site, digests=digests) for site, digests in _DIGESTS_0_8.items()),
                    replacements=(
                        Replacement(site=f"{_TRAINER}:SFTTrainer.fit", make=make_fit),
                        Replacement(site=f"{_TRAINER}:calculate_workload", make=make_calculate_workload),
                    ),
                ),
                Variant(
                    name="0.7",
                    versions=">=0.7.0.dev0,<0.8.0.dev0",
                    shape=tuple(Known(site=site, digests=digests) for site, digests in _DIGESTS_0_7.items()),
                    replacements=(Replacement(site=f"{_TRAINER}:SFTTrainer.fit", make=make_fit),),
                ),
                Variant(
                    name="0.6",
                    versions="<0.7.0.dev0",
                    verdict="not-affected",
                    shape=(Absent(site=_TRAINER),),
                    reason="the SFT trainer on Ray came with verl 0.7",
                ),
            ),
        ),
    ),
)
