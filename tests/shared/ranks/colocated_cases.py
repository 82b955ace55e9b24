"""Engines of one process, which share Megatron's groups, in every order and with the flag on any.

For `overlay.compat.ranks.engine_main`.

Made by verl's own workers (`worker_stand_in`), or laid out only, where no model is needed.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import worker_stand_in
from megatron.core import parallel_state as mpu
from torch.distributed import distributed_c10d
from verl.utils import tensordict_utils as tu
from verl.workers.config import McoreEngineConfig
from verl.workers.engine.megatron import transformer_impl
from verl.workers.utils.losses import sft_loss

from overlay.compat import cpu_engine, cpu_reference
from overlay.compat.cpu_steps import seed, worst
from overlay.patches.megatron.dynamic_cp_names.contract.cases import _groups

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamic_cp_cases import Case

CAP = 6
ROLES = ("actor", "ref", "critic")


def warm() -> None:
    """Compose the configuration before the ranks are forked."""
    worker_stand_in.composed()


def cases(world: int) -> list[Case]:
    """Return the cases for a world of this size: everything on 4 ranks, else layouts."""
    found: list[tuple[str, Callable[[], Any]]] = []
    if world == 4:
        for flags in ((), ("actor",), ("ref",), ("actor", "ref")):
            for first in ("policy", "critic"):
                name = f"{' and '.join(flags) or 'nobody'}, {first} first"
                found.append((name, functools.partial(_workers, flags, first)))
        found.append(("critic too", functools.partial(_workers, ("actor", "critic"), "policy")))
        found.append(("laid out anew", _anew))
        for order, flagged in itertools.product(itertools.permutations(ROLES), ("actor", "ref")):
            engines = [_FLAG if role == flagged else {} for role in order]
            found.append((f"layout, {' '.join(order)}, {flagged}", functools.partial(_layout, *engines)))
        found += [(f"impossible, {name}", functools.partial(_layout, *two)) for name, *two in _IMPOSSIBLE]
    else:
        for name in ("tensor", "pipeline"):
            sizes = {f"{name}_model_parallel_size": 2}
            found.append((f"first, {name}", functools.partial(_layout, {**sizes, **_FLAG}, sizes)))
            found.append((f"late, {name}", functools.partial(_layout, sizes, {**sizes, **_FLAG})))
    return [(name, 1, 1, case) for name, case in found]


#: What the first engine asks for, and the second.
_FLAG = {"dynamic_context_parallel": True, "max_seqlen_per_dp_cp_rank": CAP}
_IMPOSSIBLE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("static first", {"context_parallel_size": 2}, _FLAG),
    ("static second", _FLAG, {"context_parallel_size": 2}),
    ("other tensor size", {"tensor_model_parallel_size": 2}, _FLAG),
    ("other pipeline size", {"pipeline_model_parallel_size": 2}, _FLAG),
    ("no cap", {}, {"dynamic_context_parallel": True}),
    ("both ways", {}, {**_FLAG, "context_parallel_size": 2}),
]


# --- verl's workers ---


def _workers(flags: tuple[str, ...], first: str) -> dict[str, Any]:
    """Make the workers of a policy, its reference and a critic, let each compute, and train the actor."""
    paths = {"actor": "actor_rollout_ref__actor", "ref": "actor_rollout_ref__ref", "critic": "critic"}
    settings: dict[str, Any] = {"actor_rollout_ref__actor__use_dynamic_bsz": True}
    for role in flags:
        settings.update({f"{paths[role]}__megatron__{name}": value for name, value in _FLAG.items()})
    draw = random.Random(f"{os.environ['OVERLAY_TEST_SEED']}/colocated")
    # The longest sequence of each half of the batch takes two ranks: with C = 4 or 1 no group is missed.
    lengths = [2 * CAP, *(draw.randint(2, CAP) for _ in range(7))]
    batch = cpu_engine.random_batch(lengths, seed=seed(), use_dynamic_bsz=True, max_token_len_per_gpu=64)
    _release()
    with tempfile.TemporaryDirectory() as folder, worker_stand_in.workers(seed()):
        config = worker_stand_in.configuration(Path(folder), **settings)
        made: dict[str, Any] = {}
        for kind in ("policy", "critic") if first == "policy" else ("critic", "policy"):
            made[kind] = getattr(worker_stand_in, kind)(config)
        made["critic"].reset()
        policy = made["policy"]
        engine = policy.actor.engine
        loss, gradient = cpu_reference.loss_and_gradient(
            cpu_engine.weights_of(engine),
            batch["input_ids"].unbind(),
            cpu_reference.token_mean_loss(batch["loss_mask"].unbind()),
            heads=cpu_engine.HEADS,
        )
        found: dict[str, Any] = {"groups": _groups()}
        for role in ("actor", "ref", "critic"):
            dynamic = role in flags
            part = batch if dynamic else _share(batch)
            worker = made["critic"] if role == "critic" else getattr(policy, role)
            found[role] = _computed(worker, part)
        part = batch if "actor" in flags else _share(batch)
        output = cpu_engine.train(engine, part, functools.partial(sft_loss, None))
        found["worst"] = worst(cpu_engine.gradients_of(engine), gradient)
        found["loss"] = loss
        found["source"] = engine.is_mp_src_rank_with_outputs()
        if found["source"]:
            found["reported"] = cpu_engine.reported_metrics(engine, output)["loss"]
        return found


def _share(batch: Any) -> Any:
    """Return the part of a batch that verl's trainer sends to this rank of an engine without the flag."""
    size = len(batch) // dist.get_world_size()
    start = dist.get_rank() * size
    return tu.index_select_tensor_dict(batch, list(range(start, start + size)))


def _computed(worker: Any, batch: Any) -> Any:
    """Return the worker's outputs of a forward pass, exactly, or `None` where verl takes none."""
    data = tu.assign_non_tensor(batch.clone(recurse=False), compute_loss=False, calculate_entropy=False)
    output = worker.infer_batch(data)
    if output is None:
        return None
    name = "values" if "values" in output.keys() else "log_probs"  # noqa: SIM118 - a TensorDict
    return [row.double().flatten().tolist() for row in output[name].unbind()]


def _anew() -> dict[str, Any]:
    """Lay out the ranks anew under a reference and an actor, and make the actor again."""
    settings = {f"actor_rollout_ref__actor__megatron__{name}": value for name, value in _FLAG.items()}
    batch = cpu_engine.random_batch([2 * CAP, *[4] * 7], seed=seed(), max_token_len_per_gpu=64)
    found: dict[str, Any] = {}
    _release()
    with tempfile.TemporaryDirectory() as folder, worker_stand_in.workers(seed()):
        for turn in ("first", "second"):
            mpu.destroy_model_parallel()
            found[f"left, {turn}"] = sorted(_kept())
            config = worker_stand_in.configuration(
                Path(folder), actor_rollout_ref__actor__use_dynamic_bsz=True, **settings
            )
            policy = worker_stand_in.policy(config)
            found[f"groups, {turn}"] = _groups()
            found[f"outputs, {turn}"] = _computed(policy.actor, batch)
        # An engine outlives its groups, and there are others that have none of a micro-batch.
        mpu.destroy_model_parallel()
        transformer_impl.MegatronEngine._init_device_mesh(SimpleNamespace(engine_config=McoreEngineConfig()))
        found["outlived"] = _refused(lambda: _computed(policy.actor, batch))
    return found


# --- layouts ---


def _layout(*engines: dict[str, Any]) -> dict[str, Any]:
    """Let engines with these settings lay out the ranks in turn, and let every group add up."""
    _release()
    refused = ["nothing", ""]
    for settings in engines:
        engine = SimpleNamespace(engine_config=McoreEngineConfig(use_remove_padding=True, **settings))
        told = _refused(functools.partial(transformer_impl.MegatronEngine._init_device_mesh, engine))
        refused = told if refused[0] == "nothing" else refused
    groups = _groups() if mpu.is_initialized() else {}
    for size, members in groups.items():
        total = torch.ones(1)
        dist.all_reduce(total, group=mpu.get_dynamic_data_context_parallel_groups(group_size=int(size)))
        assert total.item() == len(members), (size, members, total)
    return {"refused": refused, "groups": groups}


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


def _kept() -> dict[int, Any]:
    return getattr(mpu, "_DYNAMIC_DP_CP_GROUPS", None) or getattr(mpu, "_HYBRID_DP_CP_GROUPS", {})


def _refused(attempt: Callable[[], Any]) -> list[str]:
    try:
        attempt()
    except (NotImplementedError, ValueError) as error:
        return [type(error).__name__, str(error)]
    return ["nothing", ""]
