"""What a training step of an actor does, seen from outside: what it reads, what it computes, what it holds.

Only names are wrapped that slime looks up when it calls, and what is wrapped is called as it stands.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from overlay.compat.cuda_on_cpu import replaced
from overlay.compat.live_bytes import LiveBytes
from slime_actor_on_cpu.reference import Reference
from slime_actor_on_cpu.weights import named, own_part


class Watched:
    """A step of an actor that has been initialised."""

    def __init__(self, actor: Any, expected: Reference | None, data: dict[str, Any]) -> None:
        """Take the actor, what its step has to find if that is looked at, and all samples."""
        self.actor = actor
        self.expected = expected
        self.data = data
        #: Lengths of the samples of each micro-batch that this rank trained on.
        self.micro_batches: list[list[int]] = []
        #: Whether this rank speaks for those that read the same micro-batches.
        self.speaks = False
        #: The largest error of the advantages of this rank's tokens, in parts of the largest of all: 0 on a
        #: stage of the pipeline that is not the last, which has none.
        self.advantages = math.nan
        #: |g - g_ref| / |g_ref| of this rank's parameters.
        self.gradient = math.nan
        #: Bytes of the tensors that were alive at once, without those that outlive a step.
        self.peak = 0

    @contextlib.contextmanager
    def step(self, *, memory: bool = False) -> Iterator[None]:
        """Watch the step that is taken for as long as this lasts.

        `memory`: whether to count bytes, which takes a look at each operation.
        """
        from slime.backends.megatron_utils import actor, model

        optimizer = self.actor.optimizer
        bytes_alive = LiveBytes(*self._kept()) if memory else None
        with (
            replaced(model, "get_batch", self._reading(model.get_batch)),
            replaced(
                actor, "compute_advantages_and_returns", self._judging(actor.compute_advantages_and_returns)
            ),
            replaced(optimizer, "step", self._updating(optimizer.step)),
            bytes_alive or contextlib.nullcontext(),
        ):
            yield
        if bytes_alive is not None:
            self.peak = bytes_alive.peak

    def _reading(self, get_batch: Callable[..., Any]) -> Callable[..., Any]:
        chunks: list[Any] = []

        def reading_get_batch(iterator: Any, keys: Any, *args: Any, **more: Any) -> Any:
            batch = get_batch(iterator, keys, *args, **more)
            if "returns" in keys:  # and not the log-probabilities before
                chunks.append(iterator)
                if iterator is chunks[0]:  # each stage of this rank has an iterator, and reads the same
                    self.micro_batches.append([int(length) for length in batch["total_lengths"]])
            return batch

        return reading_get_batch

    def _judging(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        def judging_compute(args: Any, rollout_data: Any) -> Any:
            found = compute(args, rollout_data)
            if self.expected is not None:
                self._judge(self.expected, rollout_data)
            return found

        return judging_compute

    def _updating(self, step: Callable[..., Any]) -> Callable[..., Any]:
        from megatron.core import mpu

        def updating_step(*args: Any, **more: Any) -> Any:
            # Here and not later: slime may destroy its groups at the end of a step.
            first = not mpu.get_tensor_model_parallel_rank() and not mpu.get_context_parallel_rank()
            self.speaks = first and mpu.is_pipeline_last_stage(ignore_virtual=True)
            self._gather()
            if self.expected is not None:
                self._compare(self.expected)
            return step(*args, **more)

        return updating_step

    def _kept(self) -> list[Any]:
        """Return what outlives a step: parameters and the buffers of their gradients."""
        parameters = [parameter for _, parameter in named(self.actor.args, self.actor.model)]
        return parameters + [parameter.main_grad for parameter in parameters]

    def _gather(self) -> None:
        """Give every rank the whole gradient: of a distributed optimizer, each has its part summed up."""
        for chunk in self.actor.model:
            for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
                group = buffer.data_parallel_group
                ranks, rank = dist.get_world_size(group), dist.get_rank(group)
                for bucket in buffer.buckets:
                    own = bucket.grad_data.view(ranks, -1)[rank].clone()
                    parts = [torch.empty_like(own) for _ in range(ranks)]
                    dist.all_gather(parts, own, group=group)
                    bucket.grad_data.copy_(torch.cat(parts))

    def _judge(self, expected: Reference, rollout_data: Any) -> None:
        from megatron.core import mpu
        from slime.backends.megatron_utils.cp_utils import slice_log_prob_with_cp

        if not mpu.is_pipeline_last_stage(ignore_virtual=True):
            self.advantages = 0.0
            return
        largest = max(each.abs().max().item() for each in expected.advantages)
        wrong = [0.0]
        pairs = zip(rollout_data["sample_indices"], rollout_data["advantages"], strict=True)
        for index, found in pairs:
            total, count = len(self.data["tokens"][index]), self.data["response_lengths"][index]
            own = slice_log_prob_with_cp(expected.advantages[index], total, count)
            if own.numel():
                wrong.append((found.double() - own).abs().max().item() / largest)
        self.advantages = _worst(wrong)

    def _compare(self, expected: Reference) -> None:
        parameters = dict(named(self.actor.args, self.actor.model))
        pairs = [
            (parameter.main_grad.double(), own_part(expected.gradients[name], parameter))
            for name, parameter in parameters.items()
        ]
        got = torch.cat([pair[0].flatten() for pair in pairs])
        want = torch.cat([pair[1].flatten() for pair in pairs])
        self.gradient = ((got - want).norm() / want.norm()).item()


def _worst(errors: list[float]) -> float:
    """Return the largest, or NaN if one of them is."""
    return max(errors, key=lambda error: (math.isnan(error), error))
