"""`verl.sft-balance`: the SFT trainer's data parallel ranks get equal work.

The trainer hands a global batch to its training client, which gives each rank a contiguous share of the rows.
So to balance the ranks is to reorder the rows, in the process of the trainer, before they are handed over.
verl's `fit` runs as it is; for as long as it runs, the client's `train_batch` reorders what it is given, by
the lengths that `fit` has counted.

verl 0.7 reorders nothing. From 0.8 on `fit` does so itself, if the settings say so: it takes each batch apart
to count the lengths again, and partitions a float tensor, many times slower than integers. From the count of
the lengths to the handing over, which is where it asks, it finds settings that say no.
"""

from __future__ import annotations

from contextlib import contextmanager

from overlay.compat.projects import VERL
from overlay.patch import Absent, Known, Patch, Removal, Replacement, Target, Variant

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import ModuleType
    from typing import Any

ID = "verl.sft-balance"


def make_fit(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the training loop of verl 0.7: until it ends, each batch that the client is handed is balanced."""

    def fit(self: Any) -> Any:
        if not _is_on(self.config.trainer):
            return original(self)
        client = self.training_client
        with _attribute(client, "train_batch", _balancing(client)):
            return original(self)

    return fit


def make_fit_that_balances(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the training loop of verl 0.8 and 0.9: as for 0.7, and what it does itself is left out."""

    def fit(self: Any) -> Any:
        if not _is_on(self.config.trainer):
            return original(self)
        client, told = self.training_client, self.config
        untold = _without_balance(told)
        count, send = self._get_batch_seqlens, _balancing(client)

        # The tracker has been given the settings as they are when the first batch is counted.
        def _get_batch_seqlens(data: Any) -> Any:
            lengths = count(data)
            self.config = untold
            return lengths

        def train_batch(data: Any) -> Any:
            self.config = told
            return send(data)

        try:
            with (
                _attribute(client, "train_batch", train_batch),
                _attribute(self, "_get_batch_seqlens", _get_batch_seqlens),
            ):
                return original(self)
        finally:
            self.config = told

    return fit


@contextmanager
def _attribute(holder: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of an instance for as long as the context lasts.

    Of the instance, because the object itself has to stay: checkpoints are taken through the client as well.
    """
    own = vars(holder)
    before = (own[name],) if name in own else ()
    setattr(holder, name, value)
    try:
        yield
    finally:
        if before:
            setattr(holder, name, before[0])
        else:
            delattr(holder, name)


def _balancing(client: Any) -> Callable[[Any], Any]:
    """Return what hands a batch to the client with its rows in balanced order."""
    ranks = max(client._query_dispatch_info("train")) + 1  # noqa: SLF001 -- as verl's trainer asks
    send = client.train_batch

    def train_batch(data: Any) -> Any:
        return send(_balanced(data, ranks))

    return train_batch


def _without_balance(config: Any) -> Any:
    """Return a copy of OmegaConf settings that says `trainer.balance_batch=False`."""
    from copy import deepcopy

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
        log.info(
            f"{ID}: trainer.balance_batch is not set, so batches are balanced over the data parallel ranks "
            "(+trainer.balance_batch=False keeps them as they come)"
        )
        return True
    found = bool(settings.balance_batch)
    log.info(f"{ID}: trainer.balance_batch={found}, so batches are {'' if found else 'not '}balanced")
    return found


def _balanced(data: Any, ranks: int) -> Any:
    """Return a batch with its rows in the order in which `ranks` contiguous shares are equal work.

    Rows that do not divide by the ranks stay as they are: verl refuses them when it splits them.

    Args:
        data: A TensorDict of n rows, with their tokens as the list `global_token_num`.
        ranks: Data parallel ranks.

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

    No share has more work than the one that had most before. Within a share the order is verl 0.8's: the
    least work at both ends, where a pipeline fills and drains.

    Args:
        workloads: Of each sample, in any unit.
        ranks: How many shares; it divides the samples.

    """
    from overlay.patches._partition.equal import equal_shares

    found = equal_shares(workloads, ranks)
    size = len(workloads) // ranks
    given = [list(range(start, start + size)) for start in range(0, len(workloads), size)]
    order: list[int] = []
    for share in min(found, given, key=lambda shares: most_work(workloads, shares)):
        rising = sorted(share, key=lambda index: (workloads[index], index))
        order += rising[::2] + rising[1::2][::-1]
    return order


def most_work(workloads: Sequence[int], shares: Sequence[Sequence[int]]) -> int:
    """Return the most work of any of the shares."""
    return max(sum(workloads[index] for index in share) for share in shares)


# --- the patch ---

_TRAINER = "verl.trainer.sft_trainer_ray"

#: What every release relies on: how rows come to ranks, how work is estimated, how tokens are counted.
_COMMON = {
    f"{_TRAINER}:SFTTrainer._get_batch_seqlens": ("a6edbf99da5a",),
    "verl.utils.seqlen_balancing:calculate_workload": (
        "edbfe6066352",
        "4b08f85620bb",
    ),
    "verl.single_controller.base.decorator:dispatch_lazy_compute_data_proto": ("b8d8f9571ef4",),
    "verl.single_controller.base.decorator:dispatch_nd_compute": ("6e486f2c1f63",),
    "verl.single_controller.base.worker:Worker._query_dispatch_info": ("cb453bbbdd93",),
    "verl.single_controller.ray.base:func_generator": ("c53e27abe759",),
    "verl.utils.tensordict_utils:get": ("c40bfee23153",),
}
_DIGESTS_0_7 = {
    **_COMMON,
    f"{_TRAINER}:SFTTrainer.fit": ("0a1d11e74e6a", "664e9ca905f4", "6d8268d0d265"),
    "verl.single_controller.base.decorator:_split_args_kwargs_data_proto": (
        "bca02a4e055c",
        "b2a6cc67e7d0",
        "0364df30f11b",
        "f2164a700ce1",
    ),
    "verl.utils.tensordict_utils:chunk_tensordict": ("f9fa5401bb5c", "482522ee0930", "b744fc0bd40e"),
    "verl.utils.tensordict_utils:index_select_tensor_dict": ("162cdc6e79f3",),
    "verl.workers.engine_workers:TrainingWorker.train_batch": (
        "d97ab82e36fb",
        "5154d20cc1f1",
        "865e06e6092d",
    ),
}
_DIGESTS_0_8 = {
    **_COMMON,
    f"{_TRAINER}:SFTTrainer.fit": ("4d7940aa28e3",),
    "verl.single_controller.base.decorator:_split_args_kwargs_data_proto": ("f2164a700ce1",),
    "verl.utils.tensordict_utils:chunk_tensordict": (
        "b744fc0bd40e",
        "88e4302ec28d",
        "3bae397f3a9d",
    ),
    "verl.utils.tensordict_utils:index_select_tensor_dict": (
        "162cdc6e79f3",
        "f50964a3c1fd",
        "40a14dbef6f8",
    ),
}

PATCH = Patch(
    id=ID,
    revision=2,
    summary="SFT on Ray: data parallel ranks that get equal work",
    why=(
        "verl 0.7's SFT trainer on Ray gives each data parallel rank whatever samples come next, so that all "
        "wait for the rank that drew the long ones. With the patch the rows of each global batch are "
        "reordered before they are handed out: the same samples, as many for each rank, with work by verl's "
        "own estimate as equal as swaps can make it, unless trainer.balance_batch is false. verl 0.8 and 0.9 "
        "do so, but count the lengths a second time, partition a float tensor, many times slower than "
        "integers, leave the ranks uneven where few samples are far longer than the rest, and take padded "
        "rows for as long as their padding. With the patch they leave that out, and the rows are reordered "
        "by the tokens that the trainer counts. The SPMD trainer (verl.trainer.sft_trainer) is left as it "
        "is: each of its ranks has a sampler and a loader of its own, and no length is known before a sample "
        "is loaded. To balance its ranks would be to send loaded samples, images included, from rank to "
        "rank, or to reshuffle the data behind the state that each loader resumes from."
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
                    versions=">=0.7.0.dev0,<0.11.0.dev0",
                    shape=tuple(Known(site=site, digests=digests) for site, digests in _DIGESTS_0_8.items()),
                    replacements=(
                        Replacement(site=f"{_TRAINER}:SFTTrainer.fit", make=make_fit_that_balances),
                    ),
                ),
                Variant(
                    name="0.7",
                    versions=">=0.6.0.dev0,<0.9.0.dev0",
                    shape=tuple(Known(site=site, digests=digests) for site, digests in _DIGESTS_0_7.items()),
                    replacements=(Replacement(site=f"{_TRAINER}:SFTTrainer.fit", make=make_fit),),
                ),
                Variant(
                    name="0.6",
                    versions="<0.8.0.dev0",
                    verdict="not-affected",
                    shape=(Absent(site=_TRAINER),),
                    reason="the SFT trainer on Ray came with verl 0.7",
                ),
            ),
        ),
    ),
)
