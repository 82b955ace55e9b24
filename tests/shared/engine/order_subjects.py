"""Real modules on which words of steps are tried: what is patched in them, and how one sees whether it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from order_world import Subject

from overlay.model.marks import OWNER
from overlay.runtime.sites import current, function_of
from overlay.source.registry import load_patches
from overlay.source.registry import tables as shipped

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Real(Subject):
    added = ""
    aliases = ()

    def __init__(self, *ids: str) -> None:
        known = load_patches()
        super().__init__({name: known[name] for name in ids}, shipped())

    def holders(self, core: Any) -> list[Any]:
        parents = [current(core, site)[0] for site in self.sites]
        return [core, *dict.fromkeys(parent for parent in parents if parent is not core)]

    def unpatched(self, core: Any) -> Iterator[str]:
        yield from self.unpatched_consumer(core)

    def unpatched_consumer(self, consumer: Any) -> Iterator[str]:
        for what, value in self.held(consumer):
            if getattr(function_of(value), OWNER, None) is None:
                yield f"{consumer.__name__}: {what} is the original"


class Balancing(_Real):
    """verl's `seqlen_balancing`, of which one sees the token budget when it is called."""

    module = "verl.utils.seqlen_balancing"
    sites = (
        f"{module}:karmarkar_karp",
        f"{module}:rearrange_micro_batches",
        f"{module}:get_seqlen_balanced_partitions",
    )
    consumer = f"""
from {module} import karmarkar_karp, rearrange_micro_batches, get_seqlen_balanced_partitions
"""

    def __init__(self) -> None:
        super().__init__("verl.fast-partitioner", "verl.strict-token-budget")

    def held(self, consumer: Any) -> list[tuple[str, object]]:
        return [(site, current(consumer, site)[1]) for site in self.sites]

    def unpatched_consumer(self, consumer: Any) -> Iterator[str]:
        import torch
        from tensordict import TensorDict

        yield from super().unpatched_consumer(consumer)
        # Eight samples of 7 tokens, and 8 tokens for a micro-batch: verl makes seven of them, one of 14.
        batch = TensorDict(
            {"input_ids": torch.ones(8, 7, dtype=torch.long), "attention_mask": torch.ones(8, 7)},
            batch_size=[8],
        )
        made, _ = consumer.rearrange_micro_batches(batch, 8)
        if len(made) != 8:
            yield f"{consumer.__name__}: {len(made)} micro-batches"


class Recompute(_Real):
    """Megatron's checkpointing: a static method of a class that the package imports by name."""

    module = "megatron.core.tensor_parallel.random"
    sites = (f"{module}:CheckpointFunction.backward",)
    consumer = f"from {module} import CheckpointFunction\n"

    def __init__(self) -> None:
        super().__init__("megatron.recompute")

    def held(self, consumer: Any) -> list[tuple[str, object]]:
        return [("CheckpointFunction.backward", vars(consumer.CheckpointFunction)["backward"])]
