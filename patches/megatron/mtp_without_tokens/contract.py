"""A micro-batch adds what its own tokens say, and nothing where there are none for multi-token prediction."""

from contextlib import nullcontext
from typing import Any

from overlay.compat.contracts import megatron_parts as parts

SEQUENCES, TOKENS, VOCABULARY = 2, 16, 48


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Return what is not finite, or not what the tokens of the mask say; empty if nothing is."""
    import torch
    from megatron.core.transformer.multi_token_prediction import roll_tensor
    from torch._subclasses.fake_tensor import FakeTensorMode

    for mode in (FakeTensorMode(), nullcontext(), FakeTensorMode()):
        with mode:  # as a tool that estimates memory does in between
            roll_tensor(torch.ones(1, 4), shifts=-1, dims=-1)
    config = parts.small_transformer(mtp_num_layers=1, mtp_loss_scaling_factor=0.1)
    model = parts.predicting_further(config, TOKENS, VOCABULARY)
    asked = _asking(model)
    some = (torch.rand(SEQUENCES, TOKENS) < 0.5).float()
    some[:, 2] = 1.0
    first = torch.zeros_like(some)
    first[:, 0] = 1.0
    for per_token in (True, False):
        model.config.calculate_per_token_loss = per_token
        for name, mask in (("no", torch.zeros_like(some)), ("only the first", first)):
            logged, grads = asked(mask)
            if logged != 0 or any(bool(grad.count_nonzero()) for grad in grads.values()):
                return f"with {name} token in the mask {logged} is logged, or a gradient is not zero"
    # As a mean over the tokens that are left: those of one sequence and of the other, weighed by them.
    halves = [some * torch.tensor([[1.0], [0.0]]), some * torch.tensor([[0.0], [1.0]])]
    shift = 2 if parts.knows(model.forward, "mtp_kwargs") else 1
    shares = [float(part[:, shift:].sum() / some[:, shift:].sum()) for part in halves]
    whole, by = asked(some)
    said = [asked(part) for part in halves]
    if not abs(whole - sum(share * one for share, (one, _) in zip(shares, said, strict=True))) < 1e-4:
        return "the logged loss is no mean over tokens"
    for name, grad in by.items():
        wanted = sum(share * grads[name] for share, (_, grads) in zip(shares, said, strict=True))
        if not torch.allclose(grad, wanted, rtol=1e-3, atol=1e-6):
            return f"the gradient of {name} is no mean over tokens"
    return ""


def _asking(model: Any) -> Any:
    """Return what computes for a mask the loss that is logged, and the gradient of that loss alone."""
    import torch
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper

    words = torch.randint(VOCABULARY, (SEQUENCES, TOKENS))
    places = torch.arange(TOKENS).expand(SEQUENCES, -1)
    # slime's Megatron is given labels that are its tokens, and shifts them and the mask once more.
    options = {"mtp_kwargs": {"mtp_labels": words}} if parts.knows(model.forward, "mtp_kwargs") else {}

    def asked(mask: Any) -> tuple[float, dict[str, Any]]:
        model.zero_grad()
        tracker = MTPLossLoggingHelper.tracker
        tracker.clear()
        out = model(words, places, None, labels=words, loss_mask=mask.clone(), **options)
        # The main loss counts for nothing: what is left is that of multi-token prediction.
        (0.0 * out).sum().backward()
        grads = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
        logged = tracker["values"] if "values" in tracker else tracker["loss_values"]  # from 0.19 on
        return float(logged.sum()), grads

    return asked


CONTRACT = parts.contract("megatron.mtp-without-tokens", wrong)
