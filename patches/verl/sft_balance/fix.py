"""The replacements: while `fit` runs, each batch is reordered as it is handed to the training client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
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
    order = balanced_order(workloads, ranks)
    _count(workloads, order, ranks)
    return tu.index_select_tensor_dict(data, order)


def _count(workloads: Sequence[int], order: Sequence[int], ranks: int) -> None:
    """Count a batch, and by how much the rank with most work had more as the batch came."""
    from overlay.patches.verl.sft_balance.effect import EFFECT

    size = len(order) // ranks
    EFFECT.calls += 1
    if not size or list(order) == sorted(order):
        return
    EFFECT.changed += 1
    found, given = (
        most_work(workloads, [rows[start : start + size] for start in range(0, len(order), size)])
        for rows in (order, range(len(order)))
    )
    if found:
        EFFECT.most_work = max(EFFECT.most_work, given / found)


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
