"""However a batch is cut, the gradient is that of its mean over the tokens that the loss is taken over."""

import functools
import itertools
import os
import random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from overlay.patch import Contract
from overlay.testing import with_patches

#: Relative, of sums in float64 in which verl adds 1e-8 to a number of tokens.
TOLERANCE = 1e-6
#: How far a value may move from the old one.
CLIP = 0.5
#: How 8 samples are cut: the ranks, and the micro-batches of each in verl's words.
CUTS: list[tuple[int, dict[str, Any]]] = [
    *(
        (ranks, {"micro_batch_size_per_gpu": 8 // parts})
        for ranks, parts in ((1, 1), (1, 4), (1, 8), (2, 2), (2, 8))
    ),
    (1, {"use_dynamic_bsz": True, "max_token_len_per_gpu": 16}),
]


def wrong(seed: str) -> str:
    """Return what is wrong with the gradient of verl's own engine, empty if nothing is."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    import torch
    import verl
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead

    from overlay.compat import cpu_fsdp_engine as cpu

    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    # In 0.7.0 the last one was a sum over the batch for a policy too.
    modes = cpu.MODES[:-1] if verl.__version__.startswith("0.7.0") else cpu.MODES
    for mode, kept in itertools.product(modes, (1.0, 0.5, 0.0)):
        batch = draw_batch(draw, generator, kept)
        model = cpu.Table(1, generator)
        value, want = reference(model.rows, batch, mode)
        for ranks, cut in CUTS:
            found = cpu.step(FSDPEngineWithValueHead, model, batch.clone(), loss_in(mode), ranks=ranks, **cut)
            # Of a batch that is rejected whole, the gradient is zero.
            off = cpu.gradient_off(model.rows.grad, want, TOLERANCE) or _misreported(found, value)
            if off:
                return f"{mode}, {kept:.0%} of the tokens kept, {ranks} ranks, {cut}: {off}"
    return _compiled(draw)


def draw_batch(draw: random.Random, generator: Any, kept: float) -> Any:
    """Draw what a critic learns from, with only a share of the tokens kept: in `response_mask` alone."""
    import torch

    from overlay.compat import cpu_fsdp_engine

    batch = cpu_fsdp_engine.draw_batch(draw, 8)
    shape = batch["response_mask"].shape
    keeps = [[int(draw.random() < kept) for _ in range(shape[1])] for _ in range(shape[0])]
    batch["response_mask"] = batch["loss_mask"] * torch.tensor(keeps)
    for name in ("values", "returns"):
        batch[name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return batch


def loss_in(mode: str) -> Any:
    """Return verl's loss of a critic, with what it reads: its whole configuration would look for a model."""
    from verl.workers.config import CriticConfig
    from verl.workers.utils.losses import value_loss

    fields = {"loss_agg_mode": mode, "cliprange_value": CLIP, "loss_scale_factor": None}
    config = SimpleNamespace(**{name: fields[name] for name in fields if hasattr(CriticConfig, name)})
    return functools.partial(value_loss, config)


def _compiled(draw: random.Random) -> str:
    """Return what is wrong with `agg_loss` that somebody compiles into one graph: it is the policy's too."""
    import torch
    from verl.trainer.ppo import core_algos

    # Programs that only compute are started with the compiler off.
    with mock.patch.dict(os.environ, TORCHDYNAMO_DISABLE=""):
        compiled: Any = torch.compile(core_algos.agg_loss, fullgraph=True, backend="eager")
        for tokens in draw.sample(range(5, 99), 3):
            losses = torch.randn(3, 5)
            found = compiled(losses, torch.ones(3, 5), "token-mean", batch_num_tokens=tokens)
            if not torch.allclose(found, losses.sum() / tokens):
                return f"compiled, the loss of {losses.tolist()} over {tokens} tokens is {found}"
    return ""


def reference(rows: Any, batch: Any, mode: str) -> tuple[float, Any]:
    """Return the loss of the batch and its gradient, by the definition of a clipped value loss."""
    import torch

    from overlay.compat.cpu_fsdp_engine import before_responses, mean_of_batch

    table = rows.detach().clone().requires_grad_(True)
    sums = []
    for row, ids in enumerate(before_responses(batch)):
        names = ("response_mask", "values", "returns")
        counts, old, target = (batch[name][row][: len(ids)] for name in names)
        value = table[ids, 0]
        near = old + (value - old).clamp(-CLIP, CLIP)
        sums.append((0.5 * torch.maximum((value - target) ** 2, (near - target) ** 2) * counts).sum())
    loss = mean_of_batch(sums, batch, mode)
    loss.backward()
    return loss.item(), table.grad


def _misreported(outputs: list[dict[str, Any]], value: float) -> str:
    """Return what is wrong with the loss that verl would report, where it adds up what it is told."""
    reported = [output["metrics"]["critic/vf_loss"] for output in outputs]
    if isinstance(reported[0], list):  # verl 0.7.0
        return ""
    mean = sum(float(one.aggregate()) for one in reported) / len(reported)
    right = abs(mean - value) <= TOLERANCE * abs(value)
    return "" if right else f"the loss is {value:.6g}, and {mean:.6g} is reported"


CONTRACT = Contract(check=with_patches(wrong, "verl.critic-loss-scale"), before=("verl.protocol",))
