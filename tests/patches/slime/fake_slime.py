"""A small training side with the seams of slime 0.2: counts, agrees by a maximum, rounds down, splits."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from overlay.patches._partition import karmarkar_karp
from overlay.patches._partition.packing import first_fit


class FakeSlime(ModuleType):
    """The module, on one of several ranks that hold one step each.

    Args:
        ranks: Tokens of each sample, by data parallel rank.
        stages: Virtual pipeline stages.
        group: The group size.
        context: Context parallel size.
        up: Round up, as upstream's cure did.

    """

    get_data_iterator: Any
    get_minimum_num_micro_batch_size: Any
    get_seqlen_balanced_partitions: Any

    def __init__(
        self, ranks: list[list[int]], *, stages: int = 1, group: int = 1, context: int = 1, up: bool = False
    ) -> None:
        super().__init__("fake_slime")
        self.ranks, self.group, self.up = ranks, group, up
        self.mpu = SimpleNamespace(
            get_context_parallel_world_size=lambda: context,
            get_virtual_pipeline_model_parallel_world_size=lambda: stages if stages > 1 else None,
        )
        self.model = [SimpleNamespace(config=SimpleNamespace(microbatch_group_size_per_vp_stage=group))]

        def get_minimum_num_micro_batch_size(total_lengths: list[int], max_tokens_per_gpu: int) -> int:
            return len(first_fit(total_lengths, max_tokens_per_gpu))

        def get_seqlen_balanced_partitions(
            seqlen_list: list[int], k_partitions: int, equal_size: bool
        ) -> list[list[int]]:
            assert len(seqlen_list) >= k_partitions
            return [sorted(part) for part in karmarkar_karp(seqlen_list, k_partitions, equal_size=equal_size)]

        def get_data_iterator(args: Any, model: Any, rollout_data: Any) -> Any:
            lengths = rollout_data["total_lengths"]
            if not args.use_dynamic_batch_size:
                return "static"
            limit = args.max_tokens_per_gpu * context
            number = max(self.get_minimum_num_micro_batch_size(each, limit) for each in self.ranks)
            if stages > 1:
                number = -(-number // group) * group if up else max(number // group * group, 1)
            return self.get_seqlen_balanced_partitions(lengths, number, equal_size=False)

        self.get_minimum_num_micro_batch_size = get_minimum_num_micro_batch_size
        self.get_seqlen_balanced_partitions = get_seqlen_balanced_partitions
        self.get_data_iterator = get_data_iterator

    def put_in(self, **makers: Any) -> FakeSlime:
        """Replace functions by what their factories make of them."""
        for name, make in makers.items():
            setattr(self, name, make(getattr(self, name), self))
        return self

    def run(self, budget: int | None, *, dynamic: bool = True) -> list[Any]:
        """Return what each rank gets, or its error."""
        args = SimpleNamespace(use_dynamic_batch_size=dynamic, max_tokens_per_gpu=budget)
        return [self._run(args, lengths) for lengths in self.ranks]

    def _run(self, args: Any, lengths: list[int]) -> Any:
        try:
            return self.get_data_iterator(args, self.model, {"total_lengths": lengths})
        except (ValueError, AssertionError, TypeError) as error:
            return error
