"""Engines of one process, which share Megatron's groups, in every order and with the flag on any.

For `overlay.compat.ranks.engine_main`. The engines only lay out the ranks, as verl's workers have them do it
when they make an actor, its reference and a critic.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from dynamic_cp_cases import Case
from megatron.core import parallel_state as mpu
from torch.distributed import distributed_c10d
from verl.workers.config import McoreEngineConfig
from verl.workers.engine.megatron import transformer_impl
from verl.workers.utils.losses import sft_loss

from overlay.compat import cpu_engine
from overlay.compat.cpu_steps import seed
from overlay.patches.megatron.dynamic_cp_names.contract.cases import _groups

CAP = 6
ROLES = ("actor", "ref", "critic")


def cases(world: int) -> list[Case]:
    """Return the cases for a world of this size: on 4 ranks every order, else two data parallel groups."""
    found: list[tuple[str, Callable[[], Any]]] = []
    if world == 4:
        for order, flagged in itertools.product(itertools.permutations(ROLES), ("actor", "ref")):
            engines = [_FLAG if role == flagged else {} for role in order]
            found.append((f"layout, {' '.join(order)}, {flagged}", functools.partial(_layout, *engines)))
        found += [(f"impossible, {name}", functools.partial(_layout, *two)) for name, *two in _IMPOSSIBLE]
        found.append(("outlived", _outlived))
    else:
        for name in ("tensor", "pipeline"):
            sizes: dict[str, Any] = {f"{name}_model_parallel_size": 2}
            found.append((f"first, {name}", functools.partial(_layout, {**sizes, **_FLAG}, sizes)))
            found.append((f"late, {name}", functools.partial(_layout, sizes, {**sizes, **_FLAG})))
    return [(name, 1, 1, case) for name, case in found]


#: What the first engine asks for, and the second.
_FLAG: dict[str, Any] = {"dynamic_context_parallel": True, "max_seqlen_per_dp_cp_rank": CAP}
_IMPOSSIBLE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("static first", {"context_parallel_size": 2}, _FLAG),
    ("static second", _FLAG, {"context_parallel_size": 2}),
    ("other tensor size", {"tensor_model_parallel_size": 2}, _FLAG),
    ("other pipeline size", {"pipeline_model_parallel_size": 2}, _FLAG),
    ("no cap", {}, {"dynamic_context_parallel": True}),
    ("both ways", {}, {**_FLAG, "context_parallel_size": 2}),
    ("critic too", _FLAG, {**_FLAG, "value_head": True}),
]


def _lay_out(*, value_head: bool = False, **settings: Any) -> None:
    """Lay out the ranks as an engine with these settings does when it is made."""
    kind: Any = transformer_impl.MegatronEngineWithValueHead if value_head else SimpleNamespace
    engine = kind.__new__(kind)
    engine.engine_config = McoreEngineConfig(use_remove_padding=True, **settings)
    transformer_impl.MegatronEngine._init_device_mesh(engine)


def _layout(*engines: dict[str, Any]) -> dict[str, Any]:
    """Let engines with these settings lay out the ranks in turn, and let every group add up."""
    _release()
    refused = ["nothing", ""]
    for settings in engines:
        told = _refused(functools.partial(_lay_out, **settings))
        refused = told if refused[0] == "nothing" else refused
    groups = _groups() if mpu.is_initialized() else {}
    for size, members in groups.items():
        total = torch.ones(1)
        dist.all_reduce(total, group=mpu.get_dynamic_data_context_parallel_groups(group_size=int(size)))
        assert total.item() == len(members), (size, members, total)
    return {"refused": refused, "groups": groups}


def _outlived() -> dict[str, Any]:
    """Let an engine outlive its groups, where there are others that have none of a micro-batch."""
    _release()
    _lay_out(**_FLAG)
    engine = cpu_engine.build_engine(cap=CAP, seed=seed())
    batch = cpu_engine.random_batch([2 * CAP, 4, 4, 4], seed=seed())
    _release()
    _lay_out()
    loss = functools.partial(sft_loss, None)
    return {"refused": _refused(lambda: cpu_engine.train(engine, batch, loss))}


def _release() -> None:
    """End every group but that of all ranks: Megatron only forgets them, and each keeps three threads.

    What another case has left: no case relies on the groups that it finds.
    """
    dist.barrier()
    if mpu.is_initialized():
        mpu.destroy_model_parallel()
    for group in list(distributed_c10d._world.pg_map):
        if group is not dist.group.WORLD:
            dist.destroy_process_group(group)


def _refused(attempt: Callable[[], object]) -> list[str]:
    try:
        attempt()
    except (NotImplementedError, ValueError) as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]
