"""What a released Megatron-Core lacks for dynamic context parallelism, a case per gap (`ranks.engine_main`).

Run without overlay, they show the gaps; run with it, that they are closed. Megatron's own attention for
Transformer Engine runs on `overlay.compat.cpu_transformer_engine`.
"""

import contextlib
import functools
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core.extensions import transformer_engine as te
from megatron.core.models.common.embeddings import rope_utils
from megatron.core.transformer.attention import Attention
from megatron.core.transformer.transformer_config import TransformerConfig
from verl.workers.config import McoreEngineConfig
from verl.workers.engine.megatron import transformer_impl
from verl.workers.utils.losses import sft_loss

from overlay.compat import cpu_engine
from overlay.compat.cpu_steps import run_sft, seed
from overlay.compat.cuda_on_cpu import replaced

#: Its name, tensor and pipeline parallel size, and what is run.
Case = tuple[str, int, int, Callable[[], Any]]
CAP = 6
ROPE = cpu_engine.Shape(groups=2, rope=True, norm="RMSNorm")
TE = cpu_engine.Shape(groups=2, core_attention=te.TEDotProductAttention)


def cases(world: int) -> list[Case]:
    """Return the cases for a world of this size."""
    draw = random.Random(f"{os.environ['OVERLAY_TEST_SEED']}/gaps/{world}")
    some = [draw.randint(3, CAP) for _ in range(2 * world)]
    # Every subgroup is all ranks, or each is one rank: no case needs more of the split than its size.
    shared: dict[str, Any] = {"lengths": [world * CAP - draw.randint(0, 2), *some[:world]], "cap": CAP}
    alone: dict[str, Any] = {"lengths": some, "cap": CAP}
    found: list[tuple[str, Callable[[], Any]]] = [
        ("start", _start),
        ("start, static too", functools.partial(_start, context_parallel_size=2)),
        ("settings", _settings),
        ("warm up", _warm_up),
        ("destroy", _destroy),
        ("rope", functools.partial(run_sft, **shared, shape=ROPE)),
        ("rope, fused", functools.partial(_fused, **shared)),
        ("te, shared", functools.partial(_te, **shared)),
        ("te, alone", functools.partial(_te, **alone)),
        ("te, no stream", functools.partial(_te, **shared, stream=False)),
        ("te, recomputed", functools.partial(_te, **shared, recompute="core")),
        ("not confirmed", functools.partial(_not_confirmed, **shared)),
    ]
    return [(name, 1, 1, case) for name, case in found]


@contextlib.contextmanager
def _afresh() -> Iterator[None]:
    """Leave Megatron's groups, as before an engine has made them, and come back to them."""
    mpu.destroy_model_parallel()
    try:
        yield
    finally:
        with contextlib.suppress(AssertionError):  # of what was never made
            mpu.destroy_model_parallel()
        known = {"dynamic_context_parallel": True} if _knows_it() else {}
        mpu.initialize_model_parallel(create_gloo_process_groups=False, **known)


def _groups() -> dict[str, list[int]]:
    """Return who is in this rank's group of each size for which there is one."""
    found = {}
    for size in range(1, 2 * dist.get_world_size() + 1):
        with contextlib.suppress(KeyError):
            group = mpu.get_dynamic_data_context_parallel_groups(group_size=size)
            found[str(size)] = dist.get_process_group_ranks(group)
    return found


def _start(**settings: Any) -> dict[str, Any]:
    """Let verl's engine lay out the ranks, as it does when it is made."""
    config = McoreEngineConfig(dynamic_context_parallel=True, max_seqlen_per_dp_cp_rank=CAP, **settings)
    engine = SimpleNamespace(engine_config=config)
    with _afresh():
        transformer_impl.MegatronEngine._init_device_mesh(engine)
        return {"groups": _groups()}


def _settings() -> dict[str, Any]:
    """Let verl's engine make Megatron's settings, by a bridge that makes them as the real one does."""

    class Bridge:
        def set_extra_args(self, **extra: Any) -> None:
            self.config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=2, **extra)

    name = "verl.models.mcore.mbridge"
    module = ModuleType(name)
    vars(module)["AutoBridge"] = SimpleNamespace(from_config=lambda _config, dtype: Bridge())
    config = McoreEngineConfig(
        dynamic_context_parallel=True, max_seqlen_per_dp_cp_rank=CAP, vanilla_mbridge=True, dtype="bfloat16"
    )
    engine = SimpleNamespace(
        engine_config=config,
        model_config=SimpleNamespace(
            hf_config=SimpleNamespace(),
            model_type="language_model",
            share_embeddings_and_output_weights=False,
            mtp=SimpleNamespace(enable=False),
            lora={},
            get=lambda *_key: {},
        ),
        enable_routing_replay=False,
        _qat_enabled=False,
    )
    with patch.dict(sys.modules, {name: module}):
        transformer_impl.MegatronEngine._build_tf_config(engine)
    made = engine.tf_config
    return {"ranks": made.context_parallel_size, "cap": made.max_seqlen_per_dp_cp_rank}


def _warm_up() -> dict[str, Any]:
    """Note the groups that talk while they are made, in order."""
    sizes: list[int] = []
    barrier = dist.barrier

    def noting(group: Any = None, **settings: Any) -> Any:
        sizes.append(dist.get_world_size(group))
        return barrier(group=group, **settings)

    with _afresh():
        mpu.destroy_model_parallel()
        name = "dynamic" if _knows_it() else "hybrid"
        with replaced(dist, "barrier", noting):
            mpu.initialize_model_parallel(**{f"{name}_context_parallel": True})
    return {"sizes": sizes}


def _knows_it() -> bool:
    return "dynamic_context_parallel" in inspect.signature(mpu.initialize_model_parallel).parameters


def _destroy() -> dict[str, Any]:
    """Make groups, destroy them, and look what is left of them."""
    with _afresh():
        mpu._HYBRID_DP_CP_GROUPS.clear()
        mpu.initialize_model_parallel(hybrid_context_parallel=True, create_gloo_process_groups=False)
        # With few ranks Megatron has none of its own; whatever it keeps there is meant.
        mpu._HYBRID_DP_CP_GROUPS.setdefault(2, mpu.get_data_parallel_group())
        mpu.destroy_model_parallel()
        left = sorted(mpu._HYBRID_DP_CP_GROUPS)
        mpu._HYBRID_DP_CP_GROUPS.clear()
        mpu.initialize_model_parallel(create_gloo_process_groups=False)
    return {"left": left}


def _fused(**batch: Any) -> dict[str, Any]:
    """Train with rotary positions from a kernel, which does what it is told about the group."""
    told: list[int] = []

    def kernel(rows: Any, bounds: Any, angles: Any, *, cp_size: int, cp_rank: int, **_more: Any) -> Any:
        told.append(cp_size)
        places: list[int] = []
        for length in bounds.diff().tolist():
            half = length // cp_size // 2
            ends = (cp_rank * half, length - (cp_rank + 1) * half)
            own = range(length) if cp_size == 1 else [start + i for start in ends for i in range(half)]
            places += own
        # It trusts the bounds, and computes as many rows as it has.
        turn = angles[torch.tensor(places[: len(rows)])]
        left, right = rows.chunk(2, dim=-1)
        turned: Any = rows * turn.cos().squeeze(1) + torch.cat([-right, left], -1) * turn.sin().squeeze(1)
        return turned

    build = cpu_engine.build_engine

    def with_fusion(**settings: Any) -> Any:
        engine = build(**settings)
        for layer in engine.module[0].module.decoder.layers:
            layer.self_attention.config.apply_rope_fusion = True
        return engine

    with (
        replaced(rope_utils, "fused_apply_rotary_pos_emb_thd", kernel),
        replaced(cpu_engine, "build_engine", with_fusion),
    ):
        return {**run_sft(**batch, shape=ROPE), "told": sorted(set(told))}


def _te(*, stream: bool = True, recompute: str = "", **batch: Any) -> dict[str, Any]:
    """Train with Megatron's attention for Transformer Engine, and say which groups it was set to."""
    engines: list[Any] = []
    build = cpu_engine.build_engine

    def keeping(**settings: Any) -> Any:
        engines.append(build(**settings))
        if not stream:
            te.TEDotProductAttention.cp_stream = None
        return engines[-1]

    with replaced(cpu_engine, "build_engine", keeping):
        found = run_sft(**batch, shape=replace(TE, recompute=recompute))
    core = engines[0].module[0].module.decoder.layers[0].self_attention.core_attention
    return {**found, "set": core.log, "left in": 0 if core.cp_group is None else core.cp_group.size()}


def _not_confirmed(**batch: Any) -> dict[str, Any]:
    """Put somebody else's function in the place of `Attention.forward`, and try to start and to train."""
    ours = Attention.forward

    def theirs(self: Any, *args: Any, **settings: Any) -> Any:
        return ours(self, *args, **settings)

    def refused(attempt: Callable[[], Any]) -> list[str]:
        try:
            attempt()
        except NotImplementedError as error:
            return [type(error).__name__, str(error)]
        return ["nothing", ""]

    engine = cpu_engine.build_engine(cap=batch["cap"], seed=seed(), shape=ROPE)
    data = cpu_engine.random_batch(batch["lengths"], seed=seed())
    train = functools.partial(cpu_engine.train, engine, data, functools.partial(sft_loss, None))
    with replaced(Attention, "forward", theirs):
        return {"start": refused(_start), "train": refused(train)}
