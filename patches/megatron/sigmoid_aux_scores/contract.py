"""The scores for the load balancing loss and their gradient are those of float64, but for rounding."""

import itertools
from types import SimpleNamespace
from typing import Any

from overlay.compat.contracts import megatron_parts as parts

#: Tokens, experts, experts chosen for a token.
TOKENS, EXPERTS, CHOSEN = 96, 24, 4


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Return what differs from float64, empty if nothing does by more than float32 rounds."""
    import torch

    dtypes = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
    # Of a router that begins at zero all logits are equal.
    for dtype, spread, name in itertools.product(dtypes, (1.0, 0.0), ("sigmoid", "softmax")):
        logits: Any = (spread * torch.randn(TOKENS, EXPERTS)).to(dtype).requires_grad_()
        if off := _off(logits, name):
            return f"{name} scores of {dtype} logits: {off}"
    return ""


def _off(logits: Any, name: str) -> str:
    """Return what is off of the scores of some logits."""
    import torch

    weights = torch.randn(TOKENS, EXPERTS, dtype=torch.float64)
    scores, chosen = scored(logits, name)
    exact = logits.detach().double().requires_grad_()
    wanted = exact.sigmoid() if name == "sigmoid" else exact.softmax(-1)
    wanted = wanted / wanted.sum(-1, keepdim=True)
    (by,) = torch.autograd.grad((scores.double() * weights).sum(), logits)
    (wanted_by,) = torch.autograd.grad((wanted * weights).sum(), exact)
    off = float(((scores - wanted).abs() / wanted).max())
    # What float32 allows: a thousand times less than bfloat16 does.
    if scores.dtype.itemsize < torch.float32.itemsize or off > 1e-5:
        return f"they are {scores.dtype}, off by {off:.1e}"
    # The gradient has the type of the logits: rounded once.
    step = max(torch.finfo(logits.dtype).eps, 1e-5)
    if by.dtype != logits.dtype or parts.relative_error(by, wanted_by) > step:
        return "the gradient is off"
    if chosen is None:
        return ""
    # A chosen expert has no lower score than one that is left out, and equal logits may tie.
    least = wanted.masked_fill(~chosen, 2.0).min(-1).values
    most = wanted.masked_fill(chosen, -1.0).max(-1).values
    if not bool((chosen.sum(-1) == CHOSEN).all()) or bool((least < most * (1 - 1e-6)).any()):
        return "other experts count as chosen"
    return ""


def scored(logits: Any, name: str) -> tuple[Any, Any]:
    """Return scores and the map of chosen experts, `None` where that release makes it elsewhere."""
    from megatron.core.transformer.moe import moe_utils, router

    if hasattr(moe_utils, "compute_routing_scores_for_aux_loss"):
        # By the name under which the router calls it.
        chosen, scores = router.compute_routing_scores_for_aux_loss(logits, CHOSEN, name)
        return scores, chosen
    own = SimpleNamespace(score_function=name, topk=CHOSEN)
    found = router.TopKRouter.compute_routing_scores_for_aux_loss(own, logits)
    return found if isinstance(found, tuple) else (found, None)


CONTRACT = parts.contract("megatron.sigmoid-aux-scores", wrong)
