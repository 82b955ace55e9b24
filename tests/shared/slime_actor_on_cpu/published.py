"""What an actor sends to its engines, by slime's own weight updaters: taken down where it would leave.

Real are `MegatronTrainRayActor.update_weights` and the updater, and of slime's scripts their `train`. There
are no engines, and weights keep the names that Megatron has for them.
"""

from __future__ import annotations

import importlib
import inspect
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

from slime_actor_on_cpu.object_store import Reference
from slime_actor_on_cpu.weights import drawn

if TYPE_CHECKING:
    import torch

_UPDATERS = "slime.backends.megatron_utils.update_weight"


def publish(actor: Any, way: str) -> dict[str, torch.Tensor]:
    """Let an actor update the weights of its engines, and return what it has sent, by Megatron's names.

    `actor`: has been initialised. `way`: "nccl", "disk" or "tensor", which its arguments ask for.
    """
    import ray

    sent: dict[str, torch.Tensor] = {}

    def take_down(named: Any) -> None:
        sent.update({name: tensor.detach().clone() for name, tensor in named})

    def over_nccl(
        _name: Any, _group: Any, _version: Any, _engines: Any, named: Any, **_more: Any
    ) -> list[Any]:
        take_down(named)
        return []

    def to_colocated(named: Any, **_more: Any) -> tuple[list[Any], None]:
        take_down(named)
        return [], None

    distributed, tensor, iterator = (
        vars(importlib.import_module(f"{_UPDATERS}.{name}"))
        for name in (
            "update_weight_from_distributed",
            "update_weight_from_tensor",
            "hf_weight_iterator_direct",
        )
    )
    for module in (distributed, tensor, iterator):
        module["convert_to_hf"] = lambda _args, _model, name, parameter, *_: [(name, parameter)]
    distributed.update(
        connect_rollout_engines_from_distributed=MagicMock(), update_weights_from_distributed=over_nccl
    )
    tensor["_send_to_colocated_engine"] = to_colocated
    vars(ray)["get"] = _value
    actor.args.debug_train_only = False
    actor.rollout_manager = _manager(actor)
    actor.update_weights()
    if way == "disk":
        from safetensors.torch import load_file

        for file in sorted(Path(actor.args.update_weight_disk_dir).rglob("*.safetensors")):
            sent.update(load_file(file))
    return {name.removeprefix("module.module."): tensor for name, tensor in sent.items()}


def error(actor: Any, way: str) -> float:
    """Return the largest difference of a published weight from the actor's, or infinity if there is none.

    Only the ranks that send have anything: for the others it is 0.
    """
    return _from_the_actors(actor, way, publish(actor, way))


def errors_of_rollouts(actor: Any, script: Path, handed: Any) -> list[float]:
    """Let a script of slime's train, and return of each rollout the `error` of the weights that generate it.

    `actor`: has been initialised, publishes over NCCL, and doesn't learn. `script`: `train.py` or
    `train_async.py`. `handed`: what each rollout gives to the data parallel ranks.
    """
    has: dict[str, torch.Tensor] = {}
    found: list[float] = []

    def generate(_rollout: int) -> Reference:
        found.append(_from_the_actors(actor, "nccl", has))
        return Reference(handed)

    def update_weights() -> None:
        has.update(publish(actor, "nccl"))

    group = MagicMock(update_weights=update_weights)
    group.async_train.side_effect = lambda *given, **_more: [actor.train(*given)]
    manager = MagicMock()
    manager.generate.remote.side_effect = generate
    spec: Any = spec_from_file_location(script.stem, script)
    module: Any = module_from_spec(spec)
    spec.loader.exec_module(module)
    vars(module).update(
        dict.fromkeys(("create_placement_groups", "init_tracking", "finish_tracking"), MagicMock()),
        update_tracking_open_metrics=MagicMock(),
        create_rollout_manager=lambda *_: (manager, None),
        create_training_models=lambda *_: (group, None),
        ray=SimpleNamespace(get=_value),
    )
    actor.args.start_rollout_id = 0
    module.train(actor.args)
    return found


def _from_the_actors(actor: Any, way: str, sent: dict[str, torch.Tensor]) -> float:
    import torch.distributed as dist

    if not sent:
        return 0.0 if dist.get_rank() and way == "nccl" else float("inf")
    seed = actor.args.seed
    return max(
        (found.double() - drawn(seed, "actor", name, found.shape).double()).abs().max().item()
        for name, found in sent.items()
    )


def _manager(actor: Any) -> Any:
    """Return a rollout manager that has one engine, on all ranks of the actor."""
    manager = MagicMock()
    ranks = actor.args.actor_num_nodes * actor.args.actor_num_gpus_per_node
    known = inspect.signature(actor.weight_updater.connect_rollout_engines).parameters
    parallel: list[Any] = [[{}]] if "engine_parallel_configs" in known else []
    # Connected once: a second time, slime would end the group that the first stands in for.
    new = int(getattr(actor.weight_updater, "rollout_engines", None) is None)
    found = [MagicMock()], MagicMock(), new, [ranks], [0], *parallel
    manager.get_updatable_engines_and_lock.remote.return_value = found
    return manager


def _value(asked: Any) -> Any:
    """Return what Ray would: of references what was put, and of anything else that itself."""
    if isinstance(asked, list):
        return [_value(one) for one in asked]
    return asked.get() if isinstance(asked, Reference) else asked
