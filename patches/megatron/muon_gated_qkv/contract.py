"""Muon orthogonalizes queries, gates, keys and values each for itself."""

import contextlib
from importlib import import_module
from itertools import product
from types import SimpleNamespace
from typing import Any

from overlay.compat.contracts import megatron_parts as parts

HIDDEN, SIZE = 40, 2
#: Heads and groups. Cut as if there were no gates, the first weight gives whole groups, the second does not.
ATTENTIONS = (8, 4), (6, 3)


class _Made(Exception):  # noqa: N818 -- it is none: Muon has been asked for
    """Ends the making of an optimizer once it is known with what Muon is made."""


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Return with which attention a part of the weight is not orthogonalized for itself, empty if all are."""
    import torch

    module = _module()
    if module is None:
        return ""  # there is no Muon
    for (heads, groups), gated in product(ATTENTIONS, (False, True)):
        kind = f"{heads} heads in {groups} groups, {'with' if gated else 'without'} gates"
        queries = heads // groups * SIZE
        rows = [queries] * (1 + gated) + [SIZE, SIZE]
        weight = torch.nn.Parameter(torch.empty(groups * sum(rows), HIDDEN))
        grad = torch.randn(weight.shape)
        muon = object.__new__(module.TensorParallelMuon)
        vars(muon).update(
            pg_collection=None, mode="blockwise", tp_mode="blockwise", split_qkv=True,
            is_qkv_fn=lambda _one: True, qkv_split_shapes=_shapes(module, heads, groups, gated=gated),
            scaled_orthogonalize_fn=lambda one, *_: _orthogonal(one).float(),
        )  # fmt: skip
        try:
            found = module.TensorParallelMuon.orthogonalize(muon, weight, grad.clone())
        except RuntimeError as error:
            return f"{kind}: the step ends in an error: {error}"
        whole = grad.double().view(groups, sum(rows), HIDDEN)
        split = [_orthogonal(one.reshape(-1, HIDDEN)) for one in whole.split(rows, dim=1)]
        right = torch.cat([one.view(groups, -1, HIDDEN) for one in split], dim=1).view(weight.shape)
        if not parts.relative_error(found, right) < 1e-5:
            return f"{kind}: the parts are not orthogonalized each for itself"
    return ""


def _module() -> Any:
    """Return the module that has Muon's split, `None` if none has."""
    for name in ("emerging_optimizers", "muon"):
        with contextlib.suppress(ModuleNotFoundError):
            module = import_module(f"megatron.core.optimizer.{name}")
            if hasattr(module, "TensorParallelMuon"):
                return module
    return None


def _shapes(module: Any, heads: int, groups: int, *, gated: bool) -> Any:
    """Return the numbers of rows by which Megatron has Muon split."""
    from megatron.core.optimizer import OptimizerConfig

    from overlay.compat.cuda_on_cpu import replaced

    model = SimpleNamespace(
        num_attention_heads=heads, num_query_groups=groups, kv_channels=SIZE, attention_output_gate=gated
    )
    if hasattr(module, "_get_qkv_split_shapes"):
        return module._get_qkv_split_shapes(model)
    told: dict[str, Any] = {}

    def muon(*_args: object, **options: Any) -> Any:
        told.update(options)
        raise _Made

    chunk = SimpleNamespace(config=model, named_parameters=list)
    settings = OptimizerConfig(optimizer="muon")
    with (
        contextlib.suppress(_Made),
        replaced(module, "HAVE_EMERGING_OPTIMIZERS", value=True),
        replaced(module, "TensorParallelMuon", muon),
        replaced(module, "_get_param_groups", lambda *_, **__: []),
    ):
        module.get_megatron_muon_optimizer(settings, [chunk])
    return told["qkv_split_shapes"]


def _orthogonal(matrix: Any) -> Any:
    """Return the orthogonal matrix that is nearest, in float64."""
    import torch

    left, _, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    return left @ right


CONTRACT = parts.contract("megatron.muon-gated-qkv", wrong)
