"""Start a stack above Megatron on one CPU rank, as far as a model and a step back: once for each order.

    python stack_start.py STACK FOLDER

`FOLDER` holds the stack's source. Each order is a fork: without overlay, overlay before the stack is
imported, overlay after. Prints a line of JSON: by order the loss, the norm of the gradient, a digest of the
gradient, and the states of the patches of Megatron.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import os
import sys
import typing
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

#: Megatron compiles its activations. Nothing that is looked at here depends on that, and it takes a compiler.
os.environ["TORCHDYNAMO_DISABLE"] = "1"
sys.path.append(str(Path(__file__).resolve().parents[1] / "engine"))

import torch
import torch._dynamo
import torch.distributed as dist
import typing_extensions
from forked import in_a_child

from overlay.compat import cpu_transformer_engine
from overlay.compat.cuda_on_cpu import cuda_on_cpu
from overlay.compat.megatron_on_cpu import start_megatron
from overlay.compat.names import Finder
from overlay.compat.no_triton import no_triton

TOKENS, VOCABULARY = 16, 48
ORDERS = ("without", "overlay first", "stack first")
#: What has an implementation on a CPU, of the settings that all three stacks hand on to Megatron.
SETTINGS: dict[str, Any] = {
    "num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "ffn_hidden_size": 64,
    "hidden_dropout": 0.0, "attention_dropout": 0.0, "use_cpu_initialization": True,
    "gradient_accumulation_fusion": False, "masked_softmax_fusion": False, "bias_dropout_fusion": False,
    "bias_activation_fusion": False, "persist_layer_norm": False,
}  # fmt: skip


def load_roll() -> None:
    """Import the adapter, and make the replacements that its trainer makes."""
    patcher = importlib.import_module("mcore_adapter.patcher")
    patcher.patch_hybrid_optimizer()
    patcher.patch_apply_aux_loss()
    patcher.patch_megatron_preload_tensors_non_blocking()


def roll() -> Any:
    """Return the adapter's model."""
    models = importlib.import_module("mcore_adapter.models")
    settings = {**SETTINGS, "padded_vocab_size": VOCABULARY, "max_sequence_length": TOKENS}
    config = models.McaModelConfig(transformer_impl="local", position_embedding_type="rope", **settings)
    return models.McaGPTModel(config)


def load_bridge() -> None:
    """Import Bridge, whose adapters ask for names of Transformer Engine."""
    cpu_transformer_engine.install()
    sys.meta_path.append(Finder("einops", "modelopt"))
    importlib.import_module("megatron.bridge.models.gpt_provider")


def bridge() -> Any:
    """Return the model of Bridge's provider."""
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec

    made = importlib.import_module("megatron.bridge.models.gpt_provider").GPTModelProvider(
        vocab_size=VOCABULARY, seq_length=TOKENS, make_vocab_size_divisible_by=1, normalization="LayerNorm",
        transformer_layer_spec=get_gpt_layer_local_spec(), **SETTINGS,
    )  # fmt: skip
    made.finalize()
    return made.provide(pre_process=True, post_process=True)


def load_miles() -> None:
    """Import what builds miles' models, with names for what serves its rollouts."""
    sys.meta_path.append(Finder("pybase64", "sglang", "IPython", "orjson"))
    importlib.import_module("miles.backends.megatron_utils.model_provider")


def miles() -> Any:
    """Return the model that miles' provider makes of Megatron's own arguments."""
    from megatron.training.arguments import parse_args

    settings = (
        "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --ffn-hidden-size 64 --hidden-dropout 0 "
        "--attention-dropout 0 --max-position-embeddings 16 --seq-length 16 --micro-batch-size 2 "
        "--transformer-impl local --use-cpu-initialization --no-gradient-accumulation-fusion "
        "--no-masked-softmax-fusion --no-bias-gelu-fusion --no-bias-dropout-fusion --no-persist-layer-norm "
        "--position-embedding-type rope --no-rope-fusion"
    )
    sys.argv[1:] = settings.split()
    arguments = parse_args(ignore_unknown_args=True)
    own = {"megatron_to_hf_mode": "raw", "custom_model_provider_path": None, "spec": None}
    made = {"padded_vocab_size": VOCABULARY, "kv_channels": 8, "num_query_groups": 4}
    kinds = {"params_dtype": torch.float32, "pipeline_dtype": torch.float32}
    absent = dict.fromkeys(("virtual_pipeline_model_parallel_size", "dump_patcher_mode", "allgather_cp"))
    arguments = Namespace(**{**vars(arguments), **own, **made, **kinds, **absent})
    provider = importlib.import_module("miles.backends.megatron_utils.model_provider")
    return provider.get_model_provider_func(arguments)()


#: By stack: what imports it, and what makes a model.
STACKS = {"roll": (load_roll, roll), "bridge": (load_bridge, bridge), "miles": (load_miles, miles)}


def started(stack: str, order: str) -> dict[str, Any]:
    """Start a stack in this process, and return what came of it."""
    import overlay

    load, build = STACKS[stack]
    with cuda_on_cpu(), no_triton():
        if order == "overlay first":
            overlay.enable()
        load()
        if order == "stack first":
            overlay.enable()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        start_megatron()
        torch.manual_seed(1)
        model = build()
        tokens = torch.randint(0, VOCABULARY, (2, TOKENS))
        mask = ~torch.tril(torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool))
        logits = model(tokens, torch.arange(TOKENS).expand(2, -1), mask)
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), tokens.roll(-1, 1).flatten())
        loss.backward()
        gradient = [part.grad.double().flatten() for part in model.parameters() if part.grad is not None]
        dist.destroy_process_group()
    whole = torch.cat(gradient)
    found: dict[str, Any] = {"loss": float(loss), "norm": float(whole.norm()), "parameters": len(gradient)}
    found["digest"] = hashlib.sha256(whole.numpy().tobytes()).hexdigest()
    states = {row.patch: row.state for row in overlay.status().patches} if order != "without" else {}
    found["states"] = {patch: state for patch, state in states.items() if patch.startswith("megatron.")}
    return found


def main(stack: str, folder: str) -> None:
    """Start a stack once for each order, and print what came of it."""
    sys.path.insert(0, folder)
    warnings.simplefilter("ignore")
    if not hasattr(typing, "override"):  # what a stack takes from Python 3.12
        typing.override = typing_extensions.override  # type: ignore[attr-defined]
    orders = {order: in_a_child(functools.partial(started, stack, order), 600) for order in ORDERS}
    print(json.dumps(orders))


if __name__ == "__main__":
    main(*sys.argv[1:])
