"""The command line of a job with a tiny model, parsed by slime's and Megatron's own parsers."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from overlay.compat.cuda_on_cpu import replaced


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model. Small, but each has a value of its own, so that a mixed-up axis is an error."""

    layers: int = 2
    hidden: int = 24
    heads: int = 4
    groups: int = 2
    head: int = 8
    feed_forward: int = 40
    vocabulary: int = 48
    #: Of each layer, of which two compute a token; 0 for none.
    experts: int = 0
    #: How many layers mix tokens in place of attention, the first ones (`gathered`): 0 or 1.
    mixing: int = 0


def write_model(folder: Path, sizes: Sizes) -> None:
    """Write the configuration and the tokenizer of a Hugging Face model: what slime reads of one."""
    from tokenizers import Tokenizer, models

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden, "intermediate_size": sizes.feed_forward,
        "num_hidden_layers": sizes.layers, "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.groups, "head_dim": sizes.head, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False,
    }  # fmt: skip
    words = {f"w{number}": number for number in range(sizes.vocabulary)}
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "eos_token": "w1"}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))  # noqa: S106


def command_line(folder: Path, sizes: Sizes, ranks: int, *more: object) -> list[str]:
    """Return the arguments of slime's `train.py`.

    `folder`: of the model (`write_model`). `sizes`: those of the model. `ranks`: of the actor, and of the
    critic if there is one. `more`: what the job sets besides, which comes last and so wins.
    """
    settings: dict[str, object] = {
        "hf-checkpoint": folder, "load": folder, "ref-load": folder, "actor-num-nodes": 1,
        "actor-num-gpus-per-node": ranks, "rollout-num-gpus": 0, "num-gpus-per-node": ranks, "num-rollout": 1,
        "rollout-max-response-len": 4096, "num-layers": sizes.layers, "hidden-size": sizes.hidden,
        "ffn-hidden-size": sizes.feed_forward, "num-attention-heads": sizes.heads,
        "num-query-groups": sizes.groups, "kv-channels": sizes.head, "vocab-size": sizes.vocabulary,
        "make-vocab-size-divisible-by": 1, "normalization": "RMSNorm", "norm-epsilon": 1e-5,
        "position-embedding-type": "rope", "rotary-base": 10000, "attention-dropout": 0, "hidden-dropout": 0,
        "transformer-impl": "local", "cp-comm-type": "all_gather", "lr": 1e-6, "weight-decay": 0,
        "data-pad-size-multiplier": 4,
    }  # fmt: skip
    flags = (
        "debug-train-only",
        "group-query-attention",
        "untie-embeddings-and-output-weights",
        "disable-bias-linear",
        "accumulate-allreduce-grads-in-fp32",
        # Kernels of Apex and Transformer Engine.
        "no-gradient-accumulation-fusion",
        "no-masked-softmax-fusion",
        "no-bias-gelu-fusion",
        "no-bias-dropout-fusion",
        "no-rope-fusion",
        "no-persist-layer-norm",
        "use-cpu-initialization",
    )
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    spec = ["--spec", "slime_actor_on_cpu.layers", "layer_spec"]
    return [*words, *(f"--{name}" for name in flags), *spec, *map(str, more)]


def parse(line: Sequence[str], *, timeout: float = 600.0, exact: bool = True) -> Any:
    """Return the arguments as slime's `train.py` has them, but in float32.

    `line`: the command line. `timeout`: seconds that a collective waits for the other ranks. `exact`: whether
    it is to be float32. Else it is the bfloat16 that slime sets, whatever is asked for.
    """
    import torch
    from slime.utils.arguments import parse_args

    with replaced(sys, "argv", ["train.py", *line]):
        args = parse_args()
    if exact:
        args.bf16, args.params_dtype = False, torch.float32
    args.distributed_timeout_minutes = timeout / 60
    return args
