"""`verl.sft-balance`: the SFT trainer's data parallel ranks get equal work.

The trainer hands a global batch to its training client, which gives each rank a contiguous share of the rows.
So to balance the ranks is to reorder the rows, in the process of the trainer, before they are handed over.

verl 0.7 does not. Here its `fit` runs as it is, and for as long as it runs the client's `train_batch` reorders
what it is given. From 0.8 on `fit` reorders by itself, with workloads in float32 that are taken from the
shapes of the rows. Here the name by which it estimates workloads gives integers, of the lengths that the
trainer itself has counted.
"""

from __future__ import annotations

from contextvars import ContextVar

from overlay.compat.projects import VERL
from overlay.patch import Absent, Known, Patch, Removal, Replacement, Target, Variant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

ID = "verl.sft-balance"

#: Tokens of each sample of the batch that `fit` is about to balance (0.8 on), as a tensor.
_lengths: ContextVar[Any] = ContextVar("overlay_sft_lengths", default=None)


# --- verl 0.7: the feature ---


def make_fit(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the training loop: until it ends, each batch that is handed to the client is balanced."""

    def fit(self: Any) -> Any:
        if not _is_on(self.config.trainer):
            return original(self)
        client = self.training_client
        ranks = max(client._query_dispatch_info("train")) + 1
        send = client.train_batch
        # On the client itself, because checkpoints are taken through the same object.
        client.train_batch = lambda data: send(_balanced(data, ranks))
        try:
            return original(self)
        finally:
            client.train_batch = send

    return fit


def _is_on(settings: Any) -> bool:
    """Return what `trainer.balance_batch` says, and say in the log what it means here."""
    from overlay import _log

    found = settings.get("balance_batch", None)
    if found is None:
        _log.info(
            f"{ID}: trainer.balance_batch is not set, so batches are balanced over the data parallel ranks "
            "(+trainer.balance_batch=False keeps them as they come)"
        )
        return True
    _log.info(f"{ID}: trainer.balance_batch={found}: batches are {'' if found else 'not '}balanced")
    return bool(found)


def _balanced(data: Any, ranks: int) -> Any:
    """Return a batch with its rows in the order in which `ranks` contiguous shares are equal work.

    Rows that do not divide by the ranks stay as they are: verl refuses them when it splits them.
    """
    import torch
    from verl.utils import tensordict_utils as tu
    from verl.utils.seqlen_balancing import calculate_workload

    lengths = tu.get(data, "global_token_num")
    if len(lengths) % ranks:
        return data
    workloads = calculate_workload(torch.tensor(lengths)).tolist()
    return tu.index_select_tensor_dict(data, balanced_order(workloads, ranks))


def balanced_order(workloads: Sequence[int], ranks: int) -> list[int]:
    """Return indices such that each rank's share has as many samples as any other, and about the same work.

    The shares are those of verl's own Karmarkar-Karp, and within a share the order is verl 0.8's: the least
    work at both ends, where a pipeline fills and drains.

    Args:
        workloads: Of each sample, in any unit.
        ranks: How many shares; it divides the samples.

    """
    from overlay.patches._partition import karmarkar_karp

    order: list[int] = []
    for share in karmarkar_karp(workloads, ranks, equal_size=True):
        rising = sorted(share, key=lambda index: (workloads[index], index))
        order += rising[::2] + rising[1::2][::-1]
    return order


# --- verl 0.8 on: the same with integers, of the right lengths ---


def make_get_batch_seqlens(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the trainer's count of tokens: the estimate of workloads that follows gets it too."""

    def _get_batch_seqlens(self: Any, data: Any) -> Any:
        lengths = original(self, data)
        _lengths.set(lengths)
        return lengths

    return _get_batch_seqlens


def make_calculate_workload(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the estimate by its name in the trainer: integers come out, in a list, of the trainer's lengths."""

    def calculate_workload(seqlen_list: Any) -> Any:
        lengths = _lengths.get()
        _lengths.set(None)
        if lengths is None or lengths.shape != seqlen_list.shape:
            lengths = seqlen_list  # a trainer of somebody's own, which counts in another way
        return original(lengths.long()).tolist()

    return calculate_workload


# --- the patch ---

_TRAINER = "verl.trainer.sft_trainer_ray"

#: What every release relies on: how rows come to ranks, how work is estimated, how tokens are counted.
_COMMON = {
    f"{_TRAINER}:SFTTrainer._get_batch_seqlens": ("a6edbf99da5a",),
    "verl.utils.seqlen_balancing:calculate_workload": ("4b08f85620bb",),
    "verl.single_controller.base.decorator:dispatch_lazy_compute_data_proto": ("b8d8f9571ef4",),
    "verl.single_controller.base.decorator:dispatch_nd_compute": ("6e486f2c1f63",),
    "verl.single_controller.base.worker:Worker._query_dispatch_info": ("cb453bbbdd93",),
}
_DIGESTS_0_7 = {
    **_COMMON,
    f"{_TRAINER}:SFTTrainer.fit": ("664e9ca905f4", "6d8268d0d265"),
    "verl.single_controller.base.decorator:_split_args_kwargs_data_proto": ("bca02a4e055c", "f2164a700ce1"),
    "verl.single_controller.ray.base:func_generator": ("c53e27abe759",),
    "verl.utils.tensordict_utils:chunk_tensordict": ("f9fa5401bb5c", "b744fc0bd40e"),
    "verl.utils.tensordict_utils:index_select_tensor_dict": ("162cdc6e79f3",),
    "verl.utils.tensordict_utils:get": ("c40bfee23153",),
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
    summary="SFT: data parallel ranks get equal work, and integers to be balanced by",
    why=(
        "verl 0.7's SFT trainer on Ray gives each data parallel rank whatever samples come next, so that all "
        "wait for the rank that drew the long ones. With the patch the rows of each global batch are "
        "reordered before they are handed out: the same samples, as many for each rank, with work by verl's "
        "own estimate as equal as Karmarkar-Karp makes it, unless trainer.balance_batch is false. verl 0.8 "
        "and 0.9 do so themselves, but partition a float tensor element by element, for seconds per "
        "thousand samples, and take the padded length of padded rows for their length. With the patch they "
        "partition a list of integers, of the tokens that the trainer has counted. The SPMD trainer "
        "(verl.trainer.sft_trainer) is left as it is: each of its ranks has a sampler and a loader of its own "
        "and learns the lengths of the others when its own samples are loaded, so that to balance them would "
        "be to send loaded samples, images included, from rank to rank, or to reshuffle the data behind the "
        "state that the loader resumes from."
    ),
    upstream=("verl-project/verl#5679",),
    remove=Removal(
        version=None,
        when="a release balances lists of integers, of the tokens that its trainer has counted",
        test="tests/real/test_sft_balance.py::test_upstream_alone_partitions_integers",
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
                        Replacement(
                            site=f"{_TRAINER}:SFTTrainer._get_batch_seqlens", make=make_get_batch_seqlens
                        ),
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
