"""slime's `get_log_probs_and_entropy` and `loss_function` on ranks, held against float64 on one.

Every rank knows all logits, and is given the rows and the part of the vocabulary that its layout says. A
result is the largest error of this rank, in parts of the largest value of the reference.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import random
from argparse import Namespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu

from overlay.base.marks import ORIGINAL
from overlay.compat.live_bytes import LiveBytes
from overlay.compat.slime_on_cpu import import_slime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    #: A name, a function, and what it is called with.
    Named = tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]

SEED = int(os.environ["OVERLAY_TEST_SEED"])

#: Entries of a rank's part of the vocabulary: odd.
PART = 13

#: Tokens and response tokens of each sample.
SHAPES: dict[str, tuple[tuple[int, int], ...]] = {
    # Of two ranks or four, some have no response token, whichever way sequences are split.
    "one token": ((61, 1),),
    "late": ((50, 2), (11, 3)),
    # Samples without a response, and one that is all response but for its first token.
    "none": ((9, 0), (17, 5), (7, 6), (12, 0)),
    "only none": ((9, 0), (8, 0)),
}


def fresh(name: str) -> tuple[tuple[int, int], ...]:
    """Return random lengths that nothing divides, drawn anew for each name and run."""
    draw = random.Random(f"{SEED}/{name}")
    totals = [draw.randrange(5, 40) for _ in range(draw.randrange(2, 6))]
    return tuple((total, draw.randrange(1, total)) for total in totals)


def arguments(**changed: Any) -> Namespace:
    """Return slime's arguments, as far as the loss looks at them."""
    known: dict[str, Any] = {
        "advantage_estimator": "grpo",
        "allgather_cp": False,
        "calculate_per_token_loss": False,
        "custom_loss_function_path": None,
        "custom_pg_loss_reducer_function_path": None,
        "entropy_coef": 0.0,
        "eps_clip": 0.2,
        "eps_clip_c": None,
        "eps_clip_high": 0.2,
        "get_mismatch_metrics": False,
        "global_batch_size": 1,
        "log_probs_chunk_size": -1,
        "loss_type": "policy_loss",
        "qkv_format": "thd",
        "recompute_loss_function": False,
        "rollout_temperature": 0.8,
        "rollout_top_p": 1.0,
        "use_kl_loss": False,
        "use_opsm": False,
        "use_rollout_logprobs": False,
        "use_tis": False,
        "use_unbiased_kl": False,
    }
    assert set(changed) <= set(known)
    return Namespace(**{**known, **changed})


class Job:
    """Samples, the logits of all of them, and this rank's share."""

    def __init__(
        self, shape: Sequence[tuple[int, int]], args: Namespace, *, part: int = PART, masked: int = 0
    ) -> None:
        """Draw all logits, `part` entries for each rank, of which `masked` of the vocabulary are -inf."""
        self.args = args
        self.loss, self.cp = import_slime("loss", "cp_utils")
        self.totals = [total for total, _ in shape]
        self.responses = [response for _, response in shape]
        # The same on all ranks, and another in each run.
        made = torch.Generator().manual_seed(SEED + hash(tuple(shape)) % 1000)
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
        if self.args.qkv_format == "bshd":
            more: tuple[Any, ...] = ("bshd", self.longest)
        else:
            more = ()
        parts = zip(values, self.totals, self.responses, strict=True)
        return [self.cp.slice_log_prob_with_cp(*part, *more) for part in parts]

    def reference(self) -> tuple[Any, list[Any], list[Any]]:
        """Return the leaf of all logits in float64, and log-probabilities and entropies of each response."""
        leaf = self.full.double().requires_grad_()
        logs = torch.log_softmax(leaf / self.args.rollout_temperature, -1)
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
            "args": self.args,
            "unconcat_tokens": self.tokens,
            "total_lengths": self.totals,
            "response_lengths": self.responses,
            "with_entropy": with_entropy,
            **more,
        }
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
    assert found.shape == expected.shape, (found.shape, expected.shape)
    if not found.numel():
        return 0.0
    off = torch.where(found == expected, 0, found.double() - expected).abs().max()
    return float(off / expected.abs().nan_to_num(posinf=0).max().clamp_min(1e-30))


def outputs(
    shape: Sequence[tuple[int, int]], *, with_entropy: bool = True, masked: int = 0, **changed: Any
) -> dict[str, Any]:
    """Call the function and pull a random gradient through all that it returns."""
    job = Job(shape, arguments(**changed), masked=masked)
    leaf, log_probs, entropies = job.reference()
    whole = {"log_probs": log_probs, "entropy": entropies}
    found = job.call(with_entropy=with_entropy)
    assert list(found) == ["log_probs", "entropy"][: 1 + with_entropy]
    errors = {}
    total, wanted = torch.zeros(()), torch.zeros((), dtype=torch.float64)
    for index, (key, lists) in enumerate(found.items()):
        assert all(value.dtype == torch.float32 for value in lists)
        expected = job.slices(whole[key])
        errors[key] = max(error(*pair) for pair in zip(lists, expected, strict=True))
        # Also with a coefficient of zero: a loss may have another use for the entropy.
        assert all(value.requires_grad for value in lists)
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
    return {"errors": errors, "rows": int(sum(map(len, found["log_probs"]))), "same": all(same)}


def loss(shape: Sequence[tuple[int, int]], **changed: Any) -> dict[str, Any]:
    """Run slime's loss function and its backward."""
    args = arguments(**changed)
    job = Job(shape, args)
    value, log = job.step()
    value.backward()
    leaf, log_probs, entropies = job.reference()
    wanted, size = torch.zeros(2, dtype=torch.float64)
    samples = zip(log_probs, entropies, job.old, job.advantages, job.masks, strict=True)
    for log_prob, entropy, old, advantage, mask in samples:
        ratio = (log_prob - old).exp()
        terms = torch.maximum(-ratio * advantage, -ratio.clamp(0.8, 1.2) * advantage)
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
    return {"errors": errors, "entropy": logged.get("entropy_loss")}


def step(shape: Sequence[tuple[int, int]], **changed: Any) -> tuple[Any, Any]:
    """Return slime's loss, whatever it is made of, and the gradient of this rank's logits."""
    job = Job(shape, arguments(**changed))
    value, _ = job.step()
    value.backward()
    return value.detach(), job.logits.grad


def memory(**changed: Any) -> dict[str, Any]:
    """Return the peak of a step's loss function and its backward beyond the logits, in N."""
    job = Job(((700, 500), (550, 540), (301, 40)), arguments(entropy_coef=0.1, **changed), part=1024)
    leaf = job.logits
    job.logits = leaf.clone()
    with LiveBytes(leaf, job.logits) as live:
        value, _ = job.step()
        del job.logits
        value.backward()
    return {"peak": live.peak / (leaf.numel() * 4)}


def top_p(**changed: Any) -> dict[str, Any]:
    """Ask the replaced functions, and the originals, for log-probabilities within a rollout's top-p sets."""
    found = []
    for original in (False, True):
        job = Job(fresh("top p"), arguments(rollout_top_p=0.9, entropy_coef=0.1, **changed))
        draw = random.Random(SEED)
        sizes = [[draw.randrange(1, 9) for _ in range(count)] for count in job.responses]
        job.sets = {
            "top_p_token_ids": [draw.choices(range(job.vocabulary), k=sum(each)) for each in sizes],
            "top_p_token_offsets": [[0, *itertools.accumulate(each)] for each in sizes],
        }
        names = ("get_log_probs_and_entropy", "loss_function")
        patched = {name: getattr(job.loss, name) for name in names}
        for name in names if original else ():
            setattr(job.loss, name, getattr(patched[name], ORIGINAL))
        try:
            lists = job.call(with_entropy=True, **job.sets)
            value, _ = job.step()
            value.backward()
        finally:
            for name in names:
                setattr(job.loss, name, patched[name])
        tensors = [tensor.detach() for values in lists.values() for tensor in values]
        found.append([*tensors, value.detach(), job.logits.grad])
    return {"equal": all(torch.equal(*pair) for pair in zip(*found, strict=True))}


def padded_allgather(*, values: bool) -> dict[str, Any]:
    """Ask for log-probabilities, or a critic's values, under allgather CP of padded sequences."""
    job = Job(((9, 3), (8, 5)), arguments(qkv_format="bshd"))
    job.args.allgather_cp = True
    if not values:
        return {"keys": list(job.call(with_entropy=True))}
    lengths = {"total_lengths": job.totals, "response_lengths": job.responses}
    longest = [job.longest] * len(job.totals)
    given = {"args": job.args, "unconcat_tokens": job.tokens, "max_seq_lens": longest, **lengths}
    return {"keys": list(job.loss.get_values(job.logits[..., :1], **given))}


def of_way(place: str, *, recompute: bool, top_p_sets: bool, args: dict[str, Any]) -> Iterator[Named]:
    """Yield the cases of one layout and one way of laying tokens out, by name."""
    for index in range(2):
        yield f"fresh/{index}", outputs, (fresh(f"{place}/{index}"),), {"entropy_coef": 0.1, **args}
    yield "chunks", outputs, (fresh(place),), {"log_probs_chunk_size": 3, **args}
    yield "no entropy", outputs, (fresh(place),), {"with_entropy": False, **args}
    yield "masked", outputs, (fresh(place),), {"masked": 5, "entropy_coef": 0.1, **args}
    yield "sft", loss, (fresh(place),), {"loss_type": "sft_loss", **args}
    if top_p_sets:
        yield "top p", top_p, (), args
    for coefficient in (0.0, 0.1):
        for shape, lengths in SHAPES.items():
            yield f"{shape} coef {coefficient}", outputs, (lengths,), {"entropy_coef": coefficient, **args}
    for again in (False, True)[: 1 + recompute]:
        how, more = " recomputed" if again else "", {"recompute_loss_function": again, **args}
        yield f"memory{how}", memory, (), more
        for coefficient in (0.0, 0.1):
            for shape in ("fresh", "late", "none"):
                name, given = f"loss {shape} coef {coefficient}{how}", {"entropy_coef": coefficient, **more}
                yield name, loss, (SHAPES.get(shape) or fresh(f"{place} loss"),), given


def warm() -> None:
    """Import what the cases run."""
    import_slime("loss")


def cases(world: int) -> list[tuple[str, int, int, Callable[[], Any]]]:
    """Return the cases for a world of ranks, by layout."""
    (module,) = import_slime("loss")
    source = inspect.getsource(module)
    ways: dict[str, dict[str, Any]] = {
        "packed": {},
        "padded": {"qkv_format": "bshd"},
        "allgather": {"allgather_cp": True},
    }
    known = {"packed": True, "padded": "bshd" in source, "allgather": "allgather_cp" in source}
    has = {"recompute": "recompute_loss_function" in source, "top_p_sets": "top_p_token_ids" in source}
    found: list[tuple[str, int, int, Callable[[], Any]]] = []
    for tensor, context in ((1, 1), (world, 1), (2, world // 2), (1, world)):
        layout = f"tp{tensor} cp{context}"
        for way, args in ways.items():
            if not known[way] or (way == "allgather" and context == 1):
                continue
            for name, case, given, more in of_way(f"{layout} {way}", **has, args=args):
                call = functools.partial(case, *given, **more)
                found.append((f"{layout} {way} {name}", tensor, context, call))
        if all(known.values()) and context > 1:
            for values in (False, True)[: 1 + hasattr(module, "get_values")]:
                call = functools.partial(padded_allgather, values=values)
                found.append((f"{layout} values {values} refused", tensor, context, call))
    only = os.environ.get("LOSS_CASES")
    return [case for case in found if only in (None, case[0])]
