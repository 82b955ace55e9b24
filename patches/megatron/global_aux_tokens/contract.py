"""The gradient of global_aux_loss is that of the micro-batches so far, whatever their sizes and padding."""

from typing import Any

from overlay.compat.contracts import megatron_parts as parts

EXPERTS, TOPK, HIDDEN = 5, 2, 8
#: Tokens of each micro-batch of a step, and how many of the first sequence's are padding.
STEPS = (
    ((6,), (0,)),
    ((4, 4, 4), (0, 0, 0)),
    ((9, 2, 5), (0, 0, 0)),
    ((6, 6, 6), (4, 0, 5)),
    ((3, 3), (3, 0)),
)


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Return in which step a micro-batch has another gradient than a process in float64, empty if none."""
    import torch
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
    from megatron.core.transformer.moe.router import TopKRouter

    if not hasattr(TopKRouter, "_apply_global_aux_loss"):
        return ""  # there is no such loss
    MoEAuxLossAutoScaler.set_loss_scale(torch.ones(1))
    config = parts.small_transformer(
        num_moe_experts=EXPERTS, moe_router_topk=TOPK, moe_aux_loss_coeff=0.7,
        moe_router_load_balancing_type="global_aux_loss", add_bias_linear=False,
    )  # fmt: skip
    router = parts.router(config)
    router.weight.data.normal_()
    padded = parts.knows(TopKRouter.forward, "padding_mask")
    for sizes, padding in STEPS:
        if any(padding) and not padded:
            continue
        router.reset_global_aux_loss_tracker()
        counts, tokens = torch.zeros(EXPERTS, dtype=torch.float64), 0
        for size, left_out in zip(sizes, padding, strict=True):
            states = torch.randn(size, 1, HIDDEN)
            mask = torch.arange(size)[:, None] < left_out
            router.weight.grad = None
            probs, routed = router(states, **({"padding_mask": mask} if any(padding) else {}))
            (0 * probs.sum()).backward()
            kept = ~mask[:, 0]
            counts, tokens = counts + (routed[kept] > 0).double().sum(0), tokens + int(kept.sum())
            right = _gradient(router.weight, states[kept, 0], counts / max(tokens * TOPK, 1))
            error = (router.weight.grad.double() - right).abs().max()
            if not error < 1e-5 * (1 + right.abs().max()):
                times = float(router.weight.grad.norm() / right.norm())
                return f"micro-batches of {sizes} tokens, {padding} padding: {times:.3g} times the gradient"
    return ""


def _gradient(weight: Any, states: Any, parts_of_experts: Any) -> Any:
    """Return the gradient of experts times the sum over experts of part and mean probability."""
    import torch

    own = weight.detach().double().requires_grad_()
    if not len(states):
        return torch.zeros_like(own)
    mean = torch.softmax(states.double() @ own.T, dim=-1).mean(0)
    (0.7 * EXPERTS * (mean * parts_of_experts).sum()).backward()
    return own.grad


CONTRACT = parts.contract("megatron.global-aux-tokens", wrong)
