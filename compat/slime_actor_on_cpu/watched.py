"""What a training step of an actor does, seen from outside: what it reads, what it computes, what it holds.

Only names are wrapped that slime looks up when it calls, and what is wrapped is called as it stands.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from overlay.compat.cuda_on_cpu import replaced
from overlay.compat.live_bytes import LiveBytes
from overlay.compat.slime_actor_on_cpu.weights import named, own_part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overlay.compat.slime_actor_on_cpu.reference import Reference


class Watched:
    """A step of an actor that has been initialised."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        #: Lengths of the samples of each micro-batch that this rank trained on.
        self.micro_batches: list[list[int]] = []
        #: Of this rank's tokens of each sample; none on a stage of the pipeline that is not the last.
        self.advantages: list[Any] = []
        #: Which of all samples this rank has.
        self.samples: list[int] = []
        #: By weight, of this rank's parameters.
        self.gradients: dict[str, Any] = {}
        #: Bytes of the tensors that were alive at once, without those that outlive a step.
        self.peak = 0

    @contextlib.contextmanager
    def step(self, *, memory: bool = False) -> Iterator[None]:
        """Watch the step that is taken for as long as this lasts.

        Args:
            memory: Whether to count bytes, which takes a look at each operation.

        """
        from slime.backends.megatron_utils import actor, model

        optimizer = self.actor.optimizer
        # Also what Megatron keeps through a step: parameters, the gradient's buffers, the optimizer's state.
        kept = [tensor for name, tensor in named(self.actor.args, self.actor.model)]
        kept += [tensor.main_grad for tensor in kept]
        bytes_alive = LiveBytes(*kept) if memory else None
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
            self.samples = [int(index) for index in rollout_data["sample_indices"]]
            self.advantages = [each.detach().clone() for each in rollout_data.get("advantages") or []]
            return found

        return judging_compute

    def _updating(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def updating_step(*args: Any, **more: Any) -> Any:
            self._gather()
            for name, parameter in named(self.actor.args, self.actor.model):
                self.gradients[name] = parameter.main_grad.detach().double().clone()
            return step(*args, **more)

        return updating_step

    def _gather(self) -> None:
        """Give every rank the whole gradient: of a distributed optimizer, each has its part summed up."""
        for chunk in self.actor.model:
            for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers):
                ranks, rank = dist.get_world_size(buffer.data_parallel_group), dist.get_rank(
                    buffer.data_parallel_group
                )
                for bucket in buffer.buckets:
                    own = bucket.grad_data.view(ranks, -1)[rank].clone()
                    parts = [torch.empty_like(own) for _ in range(ranks)]
                    dist.all_gather(parts, own, group=buffer.data_parallel_group)
                    bucket.grad_data.copy_(torch.cat(parts))

    def compared(self, expected: Reference, data: dict[str, Any]) -> dict[str, float]:
        """Return the largest error of this rank's advantages, and the relative error of its gradient.

        Args:
            expected: What the step had to find.
            data: All samples.

        """
        from slime.backends.megatron_utils.cp_utils import slice_log_prob_with_cp

        largest = max(each.abs().max().item() for each in expected.advantages)
        wrong = [0.0]
        for index, found in zip(self.samples, self.advantages, strict=False):
            total, count = len(data["tokens"][index]), data["response_lengths"][index]
            own = slice_log_prob_with_cp(expected.advantages[index], total, count)
            if own.numel():
                wrong.append(_worst((found.double() - own).abs()) / largest)
        parameters = dict(named(self.actor.args, self.actor.model))
        if parameters.keys() != self.gradients.keys() or parameters.keys() - expected.gradients.keys():
            raise ValueError(f"gradients of other parameters: {sorted(self.gradients)}")
        want = torch.cat([
            own_part(expected.gradients[name], parameter).flatten() for name, parameter in parameters.items()
        ])
        got = torch.cat([self.gradients[name].flatten() for name in parameters])
        return {
            "advantages": _worst(torch.tensor(wrong)),
            "ratio": (got.norm() / want.norm()).item(),
            "gradient": ((got - want).norm() / want.norm()).item(),
        }


def _worst(errors: Any) -> float:
    """Return the largest, or NaN if one of them is."""
    found: float = errors.max().item()
    return found
