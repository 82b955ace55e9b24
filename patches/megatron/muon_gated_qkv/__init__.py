"""`megatron.muon-gated-qkv`: Muon splits gated attention into queries, gates, keys and values."""

from functools import wraps
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant
from overlay.patches._rebound import rebound

_MUON = "megatron.core.optimizer.muon"
_EMERGING = "megatron.core.optimizer.emerging_optimizers"
EFFECT = effect(__name__, "optimizer", did="told of gates", always=True)


def _with_gates(config: Any, shapes: Any) -> list[int]:
    """Return the numbers of rows of a group's parts, with its gates, which are as many as its queries."""
    if not getattr(config, "attention_output_gate", False):
        return list(shapes)
    EFFECT.changed += 1
    queries, *rest = shapes
    return [queries, queries, *rest]


def make_optimizer(original: Any, module: Any) -> Any:
    """Build Muon with the parts of its own attention."""

    @wraps(original)
    def get_megatron_muon_optimizer(config: Any, model_chunks: Any, *args: Any, **named: Any) -> Any:
        def muon(*given: Any, qkv_split_shapes: Any, **options: Any) -> Any:
            shapes = _with_gates(model_chunks[-1].config, qkv_split_shapes)
            return module.TensorParallelMuon(*given, qkv_split_shapes=shapes, **options)

        return rebound(original, module, TensorParallelMuon=muon)(config, model_chunks, *args, **named)

    return get_megatron_muon_optimizer


@around
def split_shapes(original: Any, model_cfg: Any) -> list[int]:
    """Return the numbers of rows of a group's parts."""
    return _with_gates(model_cfg, original(model_cfg))


PATCH = Patch(
    id="megatron.muon-gated-qkv",
    summary="Muon splits the weight of gated attention into queries, gates, keys and values",
    why="Muon with muon_split_qkv orthogonalizes the parts of an attention weight one by one. Megatron "
    "counts no rows of gates (attention_output_gate, as in Qwen3-Next and Qwen3.5): it cuts at the wrong "
    "rows, so parts are mixtures of queries, gates, keys and values, or the step ends in a RuntimeError. "
    "With the patch the gates are a part of their own.",
    changes=("numbers", "crashes"),
    met="The optimizer Muon with muon_split_qkv, and attention_output_gate.",
    upstream=("NVIDIA/Megatron-LM#4728",),
    evidence="megatron-core 0.19 splits into the same parts (NVIDIA/Megatron-LM#4728).",
    targets=one_target(
        MEGATRON,
        variant(
            "0.16",
            replaced(f"{_MUON}:get_megatron_muon_optimizer", make_optimizer),
            f"{_MUON}:TensorParallelMuon.orthogonalize",
        ),
        variant(
            "0.18",
            replaced(f"{_EMERGING}:_get_qkv_split_shapes", split_shapes),
            f"{_EMERGING}:TensorParallelMuon.orthogonalize",
        ),
    ),
)
