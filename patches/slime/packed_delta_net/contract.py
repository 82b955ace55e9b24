"""A sample has the output and the gradient that it has alone, whatever it is packed with."""

from typing import Any

from overlay.compat.contracts.slime import contract, on_megatron
from overlay.patch import Contract

_SIZES = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 6}
_SIZES |= {"linear_value_head_dim": 5, "linear_conv_kernel_dim": 3, "hidden_size": 16}


@on_megatron()
def wrong(seed: str) -> str:
    """Return which samples have another output, or another gradient, packed than alone."""
    from types import SimpleNamespace

    import torch

    from overlay.compat import fla_on_cpu
    from overlay.compat.slime_on_cpu import imported

    fla_on_cpu.stand_in()
    module: Any = imported("slime_plugins.models.qwen3_next")
    torch.manual_seed(int(seed) % 2**31)
    config = SimpleNamespace(**_SIZES, hidden_act="silu", rms_norm_eps=1e-6, dtype=torch.float64)
    layer = module.Qwen3NextGatedDeltaNet(config, 0).double()
    torch.nn.init.uniform_(layer.A_log, -3, 0)  # else a state is gone after a token
    for lengths in ((7, 1, 5), (2, 9), (1,), (6,)):
        states = torch.randn(1, sum(lengths), config.hidden_size, dtype=torch.float64)
        weights = torch.randn_like(states)
        alone = [
            _through(layer, *both)
            for both in zip(states.split(lengths, 1), weights.split(lengths, 1), strict=True)
        ]
        bounds = torch.tensor([0, *lengths]).cumsum(0).int()
        packed = _through(layer, states, weights, bounds)
        for place, what in enumerate(("output", "gradient")):
            off = (packed[place] - torch.cat([one[place] for one in alone], 1)).abs().amax((0, 2))
            if not off.max() < 1e-9:  # in float64, of numbers near 1
                worst = [round(one.max().item(), 4) for one in off.split(lengths)]
                return f"the {what} of samples of {lengths} tokens is off by {worst}"
    return ""


def _through(layer: Any, states: Any, weights: Any, bounds: Any = None) -> tuple[Any, Any]:
    """Return the output, and the gradient of the states."""
    states = states.detach().requires_grad_()
    output = layer(states, cu_seqlens=bounds)
    (output * weights).sum().backward()
    return output.detach(), states.grad


CONTRACT: Contract = contract(wrong, "slime.packed-delta-net")
