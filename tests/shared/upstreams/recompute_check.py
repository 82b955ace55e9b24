"""Measure recomputation on the megatron-core that is first on the path, and print the findings as JSON.

    python recompute_check.py [VERL_PATCH]

A mode is who makes `CheckpointFunction.backward`: `stock`, `overlay`, or `verl`, if the file of verl's own
patch is given (`verl/models/mcore/patch.py`), which is loaded by itself.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.util
import json
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import torch

import overlay
from overlay.compat.live_bytes import LiveBytes
from overlay.compat.megatron_on_cpu import TOKENS, causal_mask, megatron
from overlay.patches.megatron.recompute.contract import checkpointed

#: Sequences, hidden size and experts. Each has a value of its own.
SEQUENCES, HIDDEN, EXPERTS = 2, 32, 4


@contextlib.contextmanager
def mode(name: str, verl_patch: str) -> Iterator[None]:
    """Run with the backward of `name` in place, and with the stock one again afterwards."""
    from megatron.core.tensor_parallel.random import CheckpointFunction

    # By its address: a variable that held the stock backward would go on calling it, and overlay says so.
    address = id(CheckpointFunction.__dict__["backward"])
    if name == "overlay":
        overlay.enable(["megatron.recompute"], strict=True)
        yield
        overlay.disable()
    else:
        stock = CheckpointFunction.__dict__["backward"]
        if name == "verl":
            # Without the package around it, which wants one certain Megatron.
            spec: Any = importlib.util.spec_from_file_location("verl_patch", verl_patch)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            module.apply_patch_megatron_recomputation_backward()
        yield
        CheckpointFunction.backward = stock
    assert id(CheckpointFunction.__dict__["backward"]) == address


def layer_run(dispatcher: str) -> dict[str, Any]:
    """Train one step of two checkpointed MoE layers; tell what stays, and what the gradients are."""
    layers = [moe_layer(dispatcher).train() for _ in range(2)]
    mask = causal_mask()
    torch.manual_seed(2)
    embedding = torch.nn.Parameter(torch.randn(TOKENS, SEQUENCES, HIDDEN))
    parameters = [embedding, *(p for layer in layers for p in layer.parameters())]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)  # as with Megatron's gradient buffers: there beforehand
    with LiveBytes(*parameters, mask, *standing(parameters)) as live:
        hidden = embedding * 1.0
        for layer in layers:
            hidden = checkpointed(lambda x, layer=layer: layer(x, attention_mask=mask)[0], hidden)
        loss = (hidden * hidden).sum()
        del hidden
        loss.backward()
        del loss
    digest = hashlib.sha256()
    for parameter in parameters:
        assert parameter.grad is not None
        digest.update(parameter.grad.numpy().tobytes())
    size = embedding.numel() * embedding.element_size()
    return {"retained": live.alive(), "input": size, "gradients": digest.hexdigest()}


def standing(parameters: list[Any]) -> list[torch.Tensor]:
    """Return what Megatron keeps on purpose: gradients, and a buffer for attention scores once it is made."""
    from megatron.core.parallel_state import get_global_memory_buffer

    return [*(p.grad for p in parameters), *get_global_memory_buffer().buffer.values()]


def moe_layer(dispatcher: str) -> Any:
    """Build Megatron's transformer layer with four experts; the same weights at each call."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import TransformerConfig
    from megatron.core.transformer.spec_utils import build_module

    torch.manual_seed(1)
    config = TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=2, ffn_hidden_size=4 * HIDDEN,
        moe_ffn_hidden_size=4 * HIDDEN, num_moe_experts=EXPERTS, moe_router_topk=2,
        moe_token_dispatcher_type=dispatcher, moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.01, add_bias_linear=False, gated_linear_unit=True, attention_dropout=0.0,
        hidden_dropout=0.0, use_cpu_initialization=True,
    )  # fmt: skip
    spec = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False)
    return build_module(spec, config=config, layer_number=1)


def main(verl_patch: str = "") -> None:
    """Print what each mode leaves, by dispatcher."""
    gc.disable()  # so that nothing is found to be released which the collector would have to find first
    warnings.simplefilter("error")
    # What releases say of themselves where there is no GPU, Apex or Transformer Engine.
    warnings.filterwarnings("ignore", module=r"megatron\.")
    warnings.filterwarnings("ignore", category=SyntaxWarning, message="assertion is always true")
    warnings.filterwarnings("ignore", category=DeprecationWarning, message="invalid escape sequence")
    with megatron():
        from megatron.core import package_info

        layer_run("alltoall")  # what is made once is made now
        found: dict[str, Any] = {"version": package_info.__version__}
        for name in ("stock", "overlay", *(["verl"] if verl_patch else [])):
            with mode(name, verl_patch):
                found[name] = {dispatcher: layer_run(dispatcher) for dispatcher in ("alltoall", "allgather")}
        print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
