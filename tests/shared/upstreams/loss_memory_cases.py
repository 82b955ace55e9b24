"""slime's `get_log_probs_and_entropy` and `loss_function` on ranks: the cases of each layout."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

from overlay.compat.slime_on_cpu import import_slime
from overlay.compat.slime_on_cpu.losses import Job, arguments, loss, memory, outputs
from overlay.runtime.search import ORIGINAL

#: A name, a function, and what it is called with.
Named = tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]

SEED = int(os.environ["OVERLAY_TEST_SEED"])

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


def top_p(*, seed: int, **changed: Any) -> dict[str, Any]:
    """Ask the replaced functions, and the originals, for log-probabilities within a rollout's top-p sets."""
    found = []
    for original in (False, True):
        job = Job(fresh("top p"), arguments(rollout_top_p=0.9, entropy_coef=0.1, **changed), seed=seed)
        draw = random.Random(seed)
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


def padded_allgather(*, seed: int, values: bool) -> dict[str, Any]:
    """Ask for log-probabilities, or a critic's values, under allgather CP of padded sequences."""
    job = Job(((9, 3), (8, 5)), arguments(qkv_format="bshd"), seed=seed)
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


def cases(world: int) -> list[tuple[str, dict[str, int], Callable[[], Any]]]:
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
    found: list[tuple[str, dict[str, int], Callable[[], Any]]] = []
    for tensor, context in ((1, 1), (world, 1), (2, world // 2), (1, world)):
        layout, sizes = f"tp{tensor} cp{context}", {"tensor": tensor, "context": context}
        for way, args in ways.items():
            if not known[way] or (way == "allgather" and context == 1):
                continue
            for name, case, given, more in of_way(f"{layout} {way}", **has, args=args):
                call = functools.partial(case, *given, seed=SEED, **more)
                found.append((f"{layout} {way} {name}", sizes, call))
        if all(known.values()) and context > 1:
            for values in (False, True)[: 1 + hasattr(module, "get_values")]:
                call = functools.partial(padded_allgather, seed=SEED, values=values)
                found.append((f"{layout} values {values} refused", sizes, call))
    return found
