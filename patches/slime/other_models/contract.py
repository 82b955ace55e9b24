"""After slime's own `init` the model has the actor's weights, and each model came from its own step."""

import inspect
import itertools
import random
from argparse import Namespace
from typing import Any
from unittest.mock import MagicMock

from overlay.compat.contracts.slime import contract, on_megatron

#: What `init` asks of Ray, of Hugging Face and of other ranks, by the names in its module.
_ASIDE = (
    *("AutoConfig", "AutoTokenizer", "Timer", "TrainProfiler", "UpdateWeightFromDistributed"),
    *(
        "UpdateWeightFromDisk",
        "UpdateWeightFromTensor",
        "clear_memory",
        "get_gloo_group",
        "init",
        "init_tracking",
    ),
    *("init_wandb_secondary", "monkey_patch_torch_dist", "register_default_process_group"),
)
_STEPS = {"ref": "ref_ckpt_step", "teacher": "opd_teacher_ckpt_step"}
_PATHS = {"ref": "reference", "teacher": "teacher", "old_actor": "actor", "rollout_actor": "actor"}
_SET: dict[str, Any] = {
    "load": "actor",
    "ref_load": "reference",
    "opd_teacher_load": "teacher",
    "megatron_to_hf_mode": "raw",
    "enable_weights_backuper": True,
    "update_weights_interval": 1,
    "update_weight_mode": "full",
    "update_weight_transport": "nccl",
    "num_gpus_per_node": 1,
    "distributed_timeout_minutes": 10,
}


class _Arguments(Namespace):
    """Arguments of a job: what is not set is off."""

    def __getattr__(self, name: str) -> Any:
        return None


@on_megatron("actor")
def wrong(seed: str, actor: Any) -> str:
    """Return what is not the actor's when it has started, or which model came from a wrong step."""
    draw = random.Random(seed)
    for name in (name for name in _ASIDE if hasattr(actor, name)):
        setattr(actor, name, MagicMock())
    actor.dist = MagicMock(**{"get_world_size.return_value": 1, "get_rank.return_value": 0})
    actor.is_megatron_main_rank = lambda: False
    actor.TrainRayActor.init = lambda self, args, role, *_: vars(self).update(args=args, role=role)  # type: ignore[attr-defined]
    actor.named_params_and_buffers = actor.named_parameters = lambda _, model, **__: model[
        0
    ].named_parameters()
    # Each of them exact in float32.
    weights = {path: float(draw.randrange(1 << 20)) for path in ("actor", "reference", "teacher")}
    steps = ((None, draw.randint(first, first + 99)) for first in (1, 100, 200))
    settings = ("ckpt_step", "ref_ckpt_step", "opd_teacher_ckpt_step")
    for *chosen, loaded in itertools.product(*steps, itertools.product((False, True), repeat=3)):
        ref, teacher, old = loaded  # type: ignore[misc]
        args = _Arguments(**_SET, keep_old_actor=old, **dict(zip(settings, chosen, strict=True)))
        found = _start(actor, args, weights, with_ref=ref, with_opd_teacher=teacher)
        others = [tag for tag in found["copies"] if tag != "actor"]
        wanted = {
            "model": weights["actor"],
            "copies": {tag: weights[_PATHS.get(tag, tag)] for tag in found["copies"]},
            "steps": {
                tag: getattr(args, _STEPS.get(tag, ""), None) or args.ckpt_step
                for tag in others
                if tag != "rollout_actor"
            },
            "step": chosen[0],
        }
        if found != wanted:
            return f"with {others}, for steps {chosen}: {found}, not {wanted}"
    return ""


def _start(actor: Any, args: Any, weights: dict[str, float], **others: bool) -> dict[str, Any]:
    """Start an actor whose model is one weight, and return what it has, and the step of each other model."""
    import torch

    model = [torch.nn.Linear(1, 1, bias=False)]
    steps: list[int | None] = []

    def load(*_args: Any, **_options: Any) -> tuple[int, int]:
        torch.nn.init.constant_(model[0].weight, weights[args.load])
        steps.append(args.ckpt_step)
        return 0, 0

    def initialize(*_args: Any) -> Any:
        load()
        steps.clear()
        return model, None, None, 0

    actor.initialize_model_and_optimizer, actor.load_checkpoint = initialize, load
    own = object.__new__(actor.MegatronTrainRayActor)
    start = actor.MegatronTrainRayActor.init
    given = {"args": args, "role": "actor", "wandb_run_id": None, **others}
    start(own, **{name: given[name] for name in inspect.signature(start).parameters if name in given})
    if hasattr(own, "weights_backuper"):
        tags = {tag: own.weights_backuper.get(tag) for tag in own.weights_backuper.backup_tags}
    else:
        tags = own.weights
    copies = {tag: next(iter(copy.values())).item() for tag, copy in tags.items()}
    loaded = (tag for tag in copies if tag not in ("actor", "rollout_actor"))
    return {
        "model": model[0].weight.item(),
        "copies": copies,
        "steps": dict(zip(loaded, steps, strict=True)),
        "step": args.ckpt_step,
    }


CONTRACT = contract(wrong, "slime.other-models")
