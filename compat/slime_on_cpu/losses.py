"""slime's `get_log_probs_and_entropy` and `loss_function`, or its fork's, held against float64 on one rank.

Every rank knows all logits, and is given the rows and the part of the vocabulary that its layout says. A
result is the largest error of this rank, in parts of the largest value of the reference.
"""

from __future__ import annotations

import inspect
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu

from overlay.compat.live_bytes import LiveBytes
from overlay.compat.slime_on_cpu import import_slime

#: Entries of a rank's part of the vocabulary: odd.
PART = 13


def _must(condition: bool, what: str) -> None:
    """Raise an `AssertionError` unless a condition holds, in optimised Python too."""
    if not condition:
        raise AssertionError(what)


def arguments(**changed: Any) -> Namespace:
    """Return slime's arguments, as far as the loss looks at them."""
    known: dict[str, Any] = {
        "advantage_estimator": "grpo", "allgather_cp": False, "calculate_per_token_loss": False,
        "custom_loss_function_path": None, "custom_pg_loss_reducer_function_path": None, "entropy_coef": 0.0,
        "eps_clip": 0.2, "eps_clip_c": None, "eps_clip_high": 0.2, "get_mismatch_metrics": False,
        "global_batch_size": 1, "log_probs_chunk_size": -1, "loss_type": "policy_loss", "qkv_format": "thd",
        "recompute_loss_function": False, "rollout_temperature": 0.8, "rollout_top_p": 1.0,
        "use_kl_loss": False, "use_opsm": False, "use_rollout_logprobs": False, "use_tis": False,
        "use_unbiased_kl": False,
    }  # fmt: skip
    _must(set(changed) <= set(known), f"unknown arguments: {changed}")
    return Namespace(**{**known, **changed})


class Job:
    """Samples, the logits of all of them, and this rank's share."""

    def __init__(
        self,
        shape: Sequence[tuple[int, int]],
        args: Namespace,
        *,
        seed: int,
        part: int = PART,
        masked: int = 0,
    ) -> None:
        """Draw all logits, `part` entries for each rank, of which `masked` of the vocabulary are -inf.

        The seed is the same on all ranks.
        """
        self.args = args
        self.loss, self.cp = import_slime("loss", "cp_utils")
        self.totals = [total for total, _ in shape]
        self.responses = [response for _, response in shape]
        made = torch.Generator().manual_seed(seed + hash(tuple(shape)) % 1000)
        tensor = mpu.get_tensor_model_parallel_world_size()
        self.vocabulary = part * tensor
        self.full = torch.randn(sum(self.totals), self.vocabulary, generator=made) * 3
        self.full[:, torch.randperm(self.vocabulary, generator=made)[:masked]] = -torch.inf
        self.tokens = [torch.randint(self.vocabulary, (total,), generator=made) for total in self.totals]
        # The first and the last entry of each rank's part: the borders.
        for rank, tokens in enumerate(self.tokens):
            tokens[-1] = part * (rank % tensor)
            tokens[-2] = part * (rank % tensor) + part - 1
        self.weights = [torch.randn(2, count, generator=made) for count in self.responses]
        self.old = [-torch.rand(count, generator=made) * 5 for count in self.responses]
        self.advantages = [torch.randn(count, generator=made) for count in self.responses]
        self.masks = [(torch.rand(count, generator=made) < 0.8).float() for count in self.responses]
        self.longest = max(self.totals) + 3
        self.rows = self._rows()
        first = part * mpu.get_tensor_model_parallel_rank()
        self.columns = slice(first, first + part)
        local = torch.randn(*self.rows.shape, part, generator=made)
        inside = self.rows >= 0
        local[inside] = self.full[self.rows[inside]][:, self.columns]
        self.logits = local.requires_grad_()
        #: What float32 rounds off the largest log-probability. `reference` sets it.
        self.rounding = 0.0
        #: Of a rollout with top-p, for releases that take them.
        self.sets: dict[str, Any] = {}

    def _rows(self) -> Any:
        """Return for each row of the local logits which one of all rows it is, -1 for padding."""
        args, size = self.args, mpu.get_context_parallel_world_size()
        samples = torch.arange(sum(self.totals)).split(self.totals)
        if args.allgather_cp:
            rows = torch.cat(samples)
            short = -len(rows) % size + size
            rows = torch.nn.functional.pad(rows, (0, short), value=-1)
            return rows.chunk(size)[mpu.get_context_parallel_rank()][None]
        if args.qkv_format == "bshd":
            return torch.stack([self.cp.slice_with_cp(rows, -1, "bshd", self.longest) for rows in samples])
        rows = torch.cat([self.cp.slice_with_cp(rows, -1) for rows in samples])
        return torch.nn.functional.pad(rows, (0, 5), value=-1)[None]

    def slices(self, values: Sequence[Any]) -> list[Any]:
        """Return this rank's zigzag slices of values of the responses [R]."""
        more: tuple[Any, ...] = ("bshd", self.longest) if self.padded else ()
        parts = zip(values, self.totals, self.responses, strict=True)
        return [self.cp.slice_log_prob_with_cp(*part, *more) for part in parts]

    def reference(self) -> tuple[Any, list[Any], list[Any]]:
        """Return the leaf of all logits in float64, and log-probabilities and entropies of each response."""
        leaf = self.full.double().requires_grad_()
        logs = torch.log_softmax(leaf / self.args.rollout_temperature, -1)
        self.rounding = 2**-24 * float(-logs.detach().masked_fill(logs == -torch.inf, 0).min())
        # What has no probability has no part in the entropy.
        entropies = -(logs.exp() * logs.masked_fill(logs == -torch.inf, 0)).sum(-1)
        log_probs, kept, start = [], [], 0
        for tokens, total, count in zip(self.tokens, self.totals, self.responses, strict=True):
            rows = slice(start + total - count - 1, start + total - 1)
            log_probs.append(logs[rows].gather(1, tokens[total - count :, None])[:, 0])
            kept.append(entropies[rows])
            start += total
        return leaf, log_probs, kept

    def call(self, *, with_entropy: bool, **more: Any) -> Any:
        """Return what slime's function returns, without the empty tensor that some releases put in front."""
        given: dict[str, Any] = {
            "args": self.args, "unconcat_tokens": self.tokens, "total_lengths": self.totals,
            "response_lengths": self.responses, "with_entropy": with_entropy, **more,
        }  # fmt: skip
        if "max_seq_lens" in inspect.signature(self.loss.get_log_probs_and_entropy).parameters:
            given["max_seq_lens"] = [self.longest] * len(self.totals) if self.padded else None
        result = self.loss.get_log_probs_and_entropy(self.logits, **given)
        return result if isinstance(result, dict) else result[1]

    def step(self) -> tuple[Any, dict[str, Any]]:
        """Return what slime's loss function makes of this rank's share: the loss, and what is logged."""
        batch: dict[str, Any] = {
            "unconcat_tokens": self.tokens,
            "total_lengths": self.totals,
            "response_lengths": self.responses,
            "loss_masks": self.masks,
            "log_probs": self.slices(self.old),
            "advantages": self.slices(self.advantages),
            "max_seq_lens": [self.longest] * len(self.totals) if self.padded else None,
            # By either name, which releases differ in.
            "group_mask_sums": [mask.sum() for mask in self.masks],
            "rollout_mask_sums": [mask.sum() for mask in self.masks],
        }
        batch.update({f"rollout_{name}": value for name, value in self.sets.items()})
        given: list[Any] = [self.args, batch, 1]
        if "step_global_batch_size" in inspect.signature(self.loss.loss_function).parameters:
            given.append(1)
        value, _, log = self.loss.loss_function(*given, self.logits)
        return value, log

    @property
    def padded(self) -> bool:
        """Whether sequences are padded to the same length."""
        return bool(self.args.qkv_format == "bshd")

    def local(self, gradient: Any) -> Any:
        """Return the rows and columns of a gradient of all logits that are this rank's."""
        mine = torch.zeros(self.logits.shape, dtype=gradient.dtype)
        inside = self.rows >= 0
        mine[inside] = gradient[self.rows[inside]][:, self.columns]
        return mine


def error(found: Any, expected: Any) -> float:
    """Return the largest difference, in parts of the largest value that is expected."""
    _must(found.shape == expected.shape, f"a shape of {found.shape}, and not {expected.shape}")
    if not found.numel():
        return 0.0
    off = torch.where(found == expected, 0, found.double() - expected).abs().max()
    return float(off / expected.abs().nan_to_num(posinf=0).max().clamp_min(1e-30))


def outputs(
    shape: Sequence[tuple[int, int]], *, seed: int, with_entropy: bool = True, masked: int = 0, **changed: Any
) -> dict[str, Any]:
    """Call the function and pull a random gradient through all that it returns."""
    job = Job(shape, arguments(**changed), seed=seed, masked=masked)
    leaf, log_probs, entropies = job.reference()
    whole = {"log_probs": log_probs, "entropy": entropies}
    found = job.call(with_entropy=with_entropy)
    _must(list(found) == ["log_probs", "entropy"][: 1 + with_entropy], f"lists of {list(found)}")
    errors = {}
    total, wanted = torch.zeros(()), torch.zeros((), dtype=torch.float64)
    for index, (key, lists) in enumerate(found.items()):
        _must(all(value.dtype == torch.float32 for value in lists), f"{key} that are not float32")
        expected = job.slices(whole[key])
        errors[key] = max(error(*pair) for pair in zip(lists, expected, strict=True))
        # Also with a coefficient of zero: a loss may have another use for the entropy.
        _must(all(value.requires_grad for value in lists), f"{key} without a gradient")
        weights = job.slices([weight[index] for weight in job.weights])
        total = total + sum((value * weight).sum() for value, weight in zip(lists, weights, strict=True))
        pairs = zip(whole[key], job.weights, strict=True)
        wanted = wanted + sum((value * weight[index].double()).sum() for value, weight in pairs)
    total.backward()
    (gradient,) = torch.autograd.grad(wanted, leaf)
    errors["gradient"] = error(job.logits.grad, job.local(gradient))
    with torch.no_grad():
        again = job.call(with_entropy=with_entropy)
    same = [torch.equal(a, b) for key in found for a, b in zip(found[key], again[key], strict=True)]
    rows = int(sum(map(len, found["log_probs"])))
    return {"errors": errors, "rounding": job.rounding, "rows": rows, "same": all(same)}


def loss(shape: Sequence[tuple[int, int]], *, seed: int, **changed: Any) -> dict[str, Any]:
    """Run slime's loss function and its backward."""
    args = arguments(**changed)
    job = Job(shape, args, seed=seed)
    value, log = job.step()
    value.backward()
    leaf, log_probs, entropies = job.reference()
    wanted, size = torch.zeros(2, dtype=torch.float64)
    samples = zip(log_probs, entropies, job.old, job.advantages, job.masks, strict=True)
    for log_prob, entropy, old, advantage, mask in samples:
        ratio = (log_prob - old).exp()
        terms = torch.maximum(-ratio * advantage, -ratio.clamp(0.8, 1.2) * advantage)
        if args.eps_clip_c is not None:
            bounded = terms.minimum(-args.eps_clip_c * advantage)
            terms = torch.where(advantage < 0, bounded, terms)
        terms = -log_prob if args.loss_type == "sft_loss" else terms - args.entropy_coef * entropy
        wanted = wanted + (terms * mask).sum() / mask.sum().clamp_min(1)
        size = size + (terms * mask).abs().sum().detach() / mask.sum().clamp_min(1)
    ranks = mpu.get_data_parallel_world_size(with_context_parallel=True)
    (gradient,) = torch.autograd.grad(wanted * ranks, leaf)
    # Each rank of the group reports its own samples' slices.
    value = value.detach().clone()
    dist.all_reduce(value, group=mpu.get_context_parallel_group())
    # What adds up to the loss may be much larger than the loss.
    off = float((value / ranks - wanted.detach()).abs() / size.clamp_min(1e-30))
    errors = {"loss": off, "gradient": error(job.logits.grad, job.local(gradient))}
    logged = dict(zip(log["keys"], log["values"][1:].tolist(), strict=True))
    return {"errors": errors, "rounding": job.rounding, "entropy": logged.get("entropy_loss")}


def step(shape: Sequence[tuple[int, int]], *, seed: int, **changed: Any) -> tuple[Any, Any]:
    """Return slime's loss, whatever it is made of, and the gradient of this rank's logits."""
    job = Job(shape, arguments(**changed), seed=seed)
    value, _ = job.step()
    value.backward()
    return value.detach(), job.logits.grad


def memory(*, seed: int, **changed: Any) -> dict[str, Any]:
    """Return the peak of a step's loss function and its backward beyond the logits, in N."""
    job = Job(
        ((700, 500), (550, 540), (301, 40)), arguments(entropy_coef=0.1, **changed), seed=seed, part=1024
    )
    leaf = job.logits
    job.logits = leaf.clone()
    with LiveBytes(leaf, job.logits) as live:
        value, _ = job.step()
        del job.logits
        value.backward()
    return {"peak": live.peak / (leaf.numel() * 4)}
