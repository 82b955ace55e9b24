"""Measure recomputation on the megatron-core that is first on the path, and print the findings as JSON.

    python recompute_check.py [--verl NAME=patch.py ...]

A mode is who makes `CheckpointFunction.backward`: `stock`, `overlay`, or the patch of a verl release (its
file `verl/models/mcore/patch.py`, loaded by itself).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import importlib.util
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import overlay
from overlay.compat.megatron_on_cpu import TOKENS, VOCABULARY, causal_mask, megatron
from overlay.patches.megatron.recompute.contract import checkpointed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PATCH = "megatron.recompute"
#: Sequences, hidden size and experts. Each has a value of its own.
SEQUENCES, HIDDEN, EXPERTS = 2, 32, 4


class Storages(TorchDispatchMode):
    """Remember every storage that an operation returns, without keeping it, to count what is left of them.

    Args:
        given: Tensors that are there before and after, and do not count.

    """

    def __init__(self, given: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._given = {StorageWeakRef(tensor.untyped_storage()).cdata for tensor in given}
        self._seen: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor):
                reference = StorageWeakRef(value.untyped_storage())
                if reference.cdata not in self._given:
                    self._seen[reference.cdata] = reference
        return out

    def live_bytes(self) -> int:
        """Return the bytes of the storages that someone still holds, Python or not."""
        return sum(
            torch.UntypedStorage._new_with_weak_ptr(reference.cdata).nbytes()
            for reference in self._seen.values()
            if not reference.expired()
        )


@contextlib.contextmanager
def mode(name: str, verl_files: dict[str, Path]) -> Iterator[None]:
    """Run with the backward of `name` in place, and with the stock one again afterwards."""
    from megatron.core.tensor_parallel.random import CheckpointFunction

    # By its address: a variable that held the stock backward would go on calling it, and overlay says so.
    stock = id(CheckpointFunction.__dict__["backward"])
    with _overlay() if name == "overlay" else _verl(verl_files.get(name)):
        yield
    assert id(CheckpointFunction.__dict__["backward"]) == stock


@contextlib.contextmanager
def _overlay() -> Iterator[None]:
    overlay.enable([PATCH], strict=True)
    try:
        yield
    finally:
        overlay.disable()


@contextlib.contextmanager
def _verl(file: Path | None) -> Iterator[None]:
    """Run with the backward of a verl release, or without a file with the stock one."""
    from megatron.core.tensor_parallel.random import CheckpointFunction

    stock = CheckpointFunction.__dict__["backward"]
    if file is not None:
        load_verl_patch(file).apply_patch_megatron_recomputation_backward()
    try:
        yield
    finally:
        CheckpointFunction.backward = stock


def load_verl_patch(path: Path) -> Any:
    """Load one file of verl without the package around it, which wants one certain Megatron."""
    spec = importlib.util.spec_from_file_location("verl_patch_of_a_release", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layer_run(dispatcher: str) -> dict[str, Any]:
    """Train one step of two checkpointed MoE layers; tell what stays, and what the gradients are."""
    layers = [moe_layer(dispatcher).train() for _ in range(2)]
    mask = causal_mask()
    torch.manual_seed(2)
    embedding = torch.nn.Parameter(torch.randn(TOKENS, SEQUENCES, HIDDEN))
    parameters = [embedding, *(p for layer in layers for p in layer.parameters())]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)  # as with Megatron's gradient buffers: there beforehand
    with Storages([*parameters, mask, *standing(parameters)]) as storages:
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
    input_bytes = embedding.numel() * embedding.element_size()
    return {
        "retained": storages.live_bytes(),
        "input": input_bytes,
        "gradients": digest.hexdigest(),
    }


def standing(parameters: list[Any]) -> list[torch.Tensor]:
    """Return what Megatron keeps on purpose: gradients, and a buffer for attention scores once it is made."""
    from megatron.core.parallel_state import get_global_memory_buffer

    return [*(p.grad for p in parameters), *get_global_memory_buffer().buffer.values()]


def mtp_run() -> dict[str, Any] | None:
    """Train one step of Megatron's own model with multi-token prediction, whose checkpoint gets such a view.

    Returns:
        What is left of the decoder's output when its backward begins; `None` where a release fails by itself.

    """
    model = mtp_model().train()
    tokens = torch.randint(VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(2))
    left: list[int] = []
    sizes: list[int] = []

    def watch(_decoder: Any, _inputs: Any, output: torch.Tensor) -> None:
        sizes.append(output.untyped_storage().nbytes())
        output.register_hook(lambda _grad: left.append(output.untyped_storage().nbytes()))

    model.decoder.register_forward_hook(watch)
    mask = torch.ones(1, TOKENS)
    try:
        loss = model(tokens, torch.arange(TOKENS)[None], causal_mask(), labels=tokens, loss_mask=mask)
    except TypeError as error:
        if "padding_mask" in str(error):  # 0.18 cannot recompute multi-token prediction
            return None
        raise
    loss.sum().backward()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        if parameter.grad is not None:
            digest.update(parameter.grad.numpy().tobytes())
    return {"bytes": sizes[0], "bytes_when_needed": left[0], "gradients": digest.hexdigest()}


def report(verl_files: dict[str, Path]) -> dict[str, Any]:
    """Return all findings, by name and mode."""
    from megatron.core import package_info

    layer_run("alltoall")  # what is made once is made now
    out: dict[str, Any] = {"version": package_info.__version__, "path": package_info.__file__}
    for name in ("stock", "overlay", *verl_files):
        with mode(name, verl_files):
            layers = {dispatcher: layer_run(dispatcher) for dispatcher in ("alltoall", "allgather")}
            out[name] = {"mtp": mtp_run(), "layers": layers}
    return out


def moe_layer(dispatcher: str) -> Any:
    """Build Megatron's transformer layer with four experts; the same weights at each call."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.spec_utils import build_module

    torch.manual_seed(1)
    spec = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False)
    config = _config(
        moe_token_dispatcher_type=dispatcher,
        moe_router_load_balancing_type="aux_loss",
        moe_aux_loss_coeff=0.01,
    )
    return build_module(spec, config=config, layer_number=1)


def mtp_model() -> Any:
    """Build Megatron's GPT model with multi-token prediction and full recomputation; weights as above."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_mtp_block_spec

    torch.manual_seed(1)
    config = _config(
        moe_token_dispatcher_type="alltoall",  # noqa: S106 -- no password
        moe_router_load_balancing_type="none",  # Megatron's log of such losses has room for one kind of model
        recompute_granularity="full",
        recompute_method="uniform",
        recompute_num_layers=1,
        mtp_num_layers=1,
        mtp_loss_scaling_factor=0.1,
    )
    spec = get_gpt_layer_local_spec(num_experts=EXPERTS, moe_grouped_gemm=False)
    extra = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False)
    return GPTModel(config, spec, VOCABULARY, TOKENS, mtp_block_spec=extra, position_embedding_type="rope")


def _config(**options: Any) -> Any:
    from megatron.core.transformer import TransformerConfig

    return TransformerConfig(
        num_layers=1,
        hidden_size=HIDDEN,
        num_attention_heads=2,
        ffn_hidden_size=4 * HIDDEN,
        moe_ffn_hidden_size=4 * HIDDEN,
        num_moe_experts=EXPERTS,
        moe_router_topk=2,
        add_bias_linear=False,
        gated_linear_unit=True,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        use_cpu_initialization=True,
        **options,
    )


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--verl", action="append", default=[], metavar="NAME=FILE")
    options = parser.parse_args()
    verl_files = {name: Path(path) for name, _, path in (item.partition("=") for item in options.verl)}
    gc.disable()  # so that nothing is found to be released which the collector would have to find first
    warnings.simplefilter("error")
    # What releases say of themselves where there is no GPU, Apex or Transformer Engine.
    warnings.filterwarnings("ignore", module=r"megatron\.")
    warnings.filterwarnings("ignore", category=SyntaxWarning, message="assertion is always true")
    warnings.filterwarnings("ignore", category=DeprecationWarning, message="invalid escape sequence")
    with megatron():
        print(json.dumps(report(verl_files)))


if __name__ == "__main__":
    main()
