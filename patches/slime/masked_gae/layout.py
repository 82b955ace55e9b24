"""Which of a sample's response tokens a context parallel rank has, and all of them from all ranks."""

from collections.abc import Iterable, Sequence
from typing import Any


class Layout:
    """How slime splits the samples of a rollout over the context parallel ranks."""

    def __init__(
        self, total_lengths: Sequence[int], response_lengths: Sequence[int], padded: Sequence[int] | None
    ) -> None:
        """Take the tokens of each sample and those of its response.

        `padded` is what slime pads each to before it splits that (`--qkv-format bshd`, 0.2.2 to 0.3.0), none
        if it splits the sample. Tokens that `--allgather-cp` has split otherwise come back in this layout.
        """
        from megatron.core import mpu

        self._split = mpu.get_context_parallel_world_size() > 1
        self._counts = list(response_lengths)
        padding = [("bshd", length) for length in padded] if padded else [()] * len(self._counts)
        self._samples = [
            (*size, *more) for *size, more in zip(total_lengths, response_lengths, padding, strict=True)
        ]

    def mine(self, full: Iterable[Any]) -> list[Any]:
        """Return this rank's part of each sample, given tensors of all response tokens."""
        if not self._split:
            return list(full)
        from slime.backends.megatron_utils.cp_utils import slice_log_prob_with_cp

        pairs = zip(full, self._samples, strict=True)
        return [slice_log_prob_with_cp(one, *sample) for one, sample in pairs]

    def whole(self, parts: Sequence[Any]) -> list[Any]:
        """Return tensors of all response tokens, given this rank's part of each sample, or nothing."""
        import torch
        import torch.distributed as dist
        from megatron.core import mpu

        if not self._split or not parts:
            return list(parts)
        full = [part.new_zeros(count) for part, count in zip(parts, self._counts, strict=True)]
        places = self.mine(torch.arange(len(one), device=one.device) for one in full)
        for one, place, part in zip(full, places, parts, strict=True):
            one[place] = part
        # Each token is on one rank, and 0 on the others.
        found = torch.cat(full)
        dist.all_reduce(found, group=mpu.get_context_parallel_group())
        return list(found.split(self._counts))
