"""A resumed schedule goes on, by the settings that there are now.

The manager is verl's, the scheduler Megatron's, and the checkpoint is on disk. The optimizer is a stand-in.
"""

import math
import random
import sys
import tempfile
from dataclasses import make_dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches

#: What a checkpoint has and a resume loads, as verl's configuration says: a schedule is of `extra`.
CONTENTS = ("model", "optimizer", "extra")
#: Of Megatron's configuration what verl takes out of it, before it writes the rest to a checkpoint.
_TAKEN_OUT = ("finalize_model_grads", "grad_scale", "no_sync", "grad_sync", "param_sync")
Functions = make_dataclass("Functions", [(f"{name}_func", Any, None) for name in _TAKEN_OUT])


class _Optimizer:
    """An optimizer without parameters. Its group has the rates that Megatron writes into its groups."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.param_groups = [{"params": [], "max_lr": settings["lr"], "min_lr": settings["min_lr"]}]

    def sharded_state_dict(self, *_model: Any, **_options: Any) -> dict[str, Any]:
        return {"param_groups": [dict(group) for group in self.param_groups]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what was saved, the rates of the group included, as torch's optimizers do."""
        for group, saved in zip(self.param_groups, state["param_groups"], strict=True):
            group.update(saved)


class _Run:
    """A job of one rank: its settings, its scheduler, and what saves and loads them."""

    def __init__(self, settings: dict[str, Any], *, keep: bool = False, contents: Any = CONTENTS) -> None:
        import torch
        from omegaconf import OmegaConf
        from verl.utils.checkpoint.megatron_checkpoint_manager import MegatronCheckpointManager
        from verl.utils.megatron.optimizer import get_megatron_optimizer_param_scheduler

        optimizer = _Optimizer(settings)
        config = OmegaConf.create({
            "lr_warmup_steps_ratio": None, "lr_decay_steps": None, "lr_decay_style": "cosine",
            "lr_wsd_decay_steps": None, "lr_wsd_decay_style": "linear", "weight_decay": 0.0,
            "weight_decay_incr_style": "constant", "use_checkpoint_opt_param_scheduler": keep, **settings,
        })  # fmt: skip
        self.scheduler: Any = get_megatron_optimizer_param_scheduler(optimizer, config)
        model: Any = torch.nn.Module()
        model.sharded_state_dict = model.state_dict_for_save_checkpoint = lambda *_arguments, **_options: {}
        self.manager: Any = MegatronCheckpointManager(
            config=SimpleNamespace(model=SimpleNamespace(path="")),
            checkpoint_config=OmegaConf.create(
                {"save_contents": list(CONTENTS), "load_contents": list(contents), "async_save": False}
            ),
            model_config=None, transformer_config=Functions(), role="actor", model=[model],
            arch="LlamaForCausalLM", hf_config=SimpleNamespace(save_pretrained=lambda _folder: None),
            param_dtype=torch.float32, share_embeddings_and_output_weights=False, processing_class=None,
            optimizer=optimizer, optimizer_scheduler=self.scheduler, use_distributed_optimizer=False,
            use_checkpoint_opt_param_scheduler=keep, use_dist_checkpointing=True,
        )  # fmt: skip
        # The other half of `extra`, which nothing is asked of here.
        self.manager.get_rng_state = self.manager.load_rng_states = lambda *_states, **_options: {}

    def go_on(self, steps: int) -> list[float]:
        """Return the learning rate of now, and those of the next steps."""
        found = [self.manager.optimizer.param_groups[0]["lr"]]
        for _ in range(steps):
            self.scheduler.step(1)
            found.append(self.manager.optimizer.param_groups[0]["lr"])
        return found


def _draw_settings(draw: random.Random) -> dict[str, Any]:
    return {
        "lr": draw.uniform(0.1, 1), "min_lr": draw.uniform(0, 0.05), "lr_warmup_init": 0.0,
        "lr_warmup_steps": draw.randint(1, 20), "total_training_steps": draw.randint(60, 90),
    }  # fmt: skip


def _expected(rates: dict[str, Any], settings: dict[str, Any], first: int, steps: int) -> list[float]:
    """Return the learning rates of a schedule from a step on, between the rates that an optimizer has."""
    warm, end = settings["lr_warmup_steps"], settings["total_training_steps"]
    most, least = rates["lr"], rates["min_lr"]
    return [
        most * step / warm
        if step <= warm
        else least + (most - least) * (1 + math.cos(math.pi * (step - warm) / (end - warm))) / 2
        for step in range(first, first + steps + 1)
    ]


def wrong(seed: str) -> str:
    """Return what is wrong with schedules that are resumed, on Megatron's parallel state of a single rank."""
    from overlay.compat.megatron_on_cpu import megatron
    from overlay.compat.verl_imports import stand_in

    with megatron(), tempfile.TemporaryDirectory() as folder:
        stand_in()
        import verl.utils.checkpoint.megatron_checkpoint_manager  # noqa: F401

        # verl 0.6 names the optimizer of a package that is not here.
        made: Any = ModuleType("transformer_engine")
        adam = SimpleNamespace(FusedAdam=_Optimizer)
        made.pytorch = SimpleNamespace(optimizers=SimpleNamespace(fused_adam=adam))
        sys.modules.setdefault("transformer_engine", made)
        return _wrong(random.Random(seed), Path(folder))


def _wrong(draw: random.Random, folder: Path) -> str:
    before, after = _draw_settings(draw), _draw_settings(draw)
    steps, more = draw.randint(5, 40), 10
    first = _Run(before)
    start, saved, without = (str(folder / name) for name in ("start", "saved", "without"))
    first.manager.save_checkpoint(start, global_step=0)
    first.go_on(steps)
    first.manager.save_checkpoint(saved, global_step=steps)
    first.manager.lr_scheduler = None
    first.manager.save_checkpoint(without, global_step=steps)

    def differ(run: _Run, keep: bool, rates: dict[str, Any], settings: dict[str, Any], at: int) -> bool:
        pairs = zip(run.go_on(more), _expected(rates, settings, at, more), strict=True)
        asked = run.manager.use_checkpoint_opt_param_scheduler
        return asked is not keep or not all(math.isclose(*pair, rel_tol=1e-9) for pair in pairs)

    # The commits of Megatron after 0.19 give the groups of an optimizer that was loaded their own rates back.
    gives_back = hasattr(first.scheduler, "_restore_param_group_scheduler_overrides")
    rates = after if gives_back else before
    for name, settings, keep, contents, path, right in (
        ("with the same settings", before, False, CONTENTS, saved, (before, before, steps)),
        ("with other settings", after, False, CONTENTS, saved, (rates, after, steps)),
        ("with all of the schedule", after, True, CONTENTS, saved, (before, before, steps)),
        ("without the optimizer", after, False, ("model",), saved, (after, after, 0)),
        ("without a schedule", after, False, CONTENTS, without, (before, after, 0)),
        ("at its first step", before, False, CONTENTS, start, (before, before, 0)),
        # By verl's page on checkpoints the schedule is of `extra`, and its FSDP backend loads it with that.
        ("without extra", after, False, ("model", "optimizer"), saved, (rates, after, 0)),
    ):
        run = _Run(settings, keep=keep, contents=contents)
        for _twice in range(2 - keep):  # verl itself counts twice then
            if path == start:
                run.go_on(steps)
            run.manager.load_checkpoint(path)
        if not right[-1]:
            run.scheduler.step(0)  # the group has the saved rate until then, as with verl alone
        if differ(run, keep, *right):
            return f"another learning rate when resumed {name}"
    if not hasattr(first.manager, "_load_megatron_fsdp_checkpoint"):
        return ""
    for name, scheduler, at in (("", first.scheduler, steps), (" without a schedule", None, 0)):
        run = _Run(after)
        _load_with_fsdp(run, first.manager.optimizer, scheduler, folder)
        run.scheduler.step(0)
        if differ(run, False, rates, after, at):
            return f"another learning rate when resumed with Megatron-FSDP{name}"
    return ""


def _load_with_fsdp(run: _Run, optimizer: _Optimizer, scheduler: Any, folder: Path) -> None:
    """Load as with Megatron-FSDP, with a stand-in for its reader, which keeps what the checkpoint has not."""
    saved = {"model": {}, "optimizer": optimizer.sharded_state_dict(), "rng_state": {}}
    if scheduler is not None:
        saved["lr_scheduler"] = scheduler.state_dict()
    reader: Any = ModuleType("megatron.bridge.training.checkpointing")
    reader.load_fsdp_dtensor_checkpoint = lambda *, sharded_state_dict, **_options: (
        {**sharded_state_dict, **saved},
        *(None, None, None),
    )
    names = ("megatron.bridge", "megatron.bridge.training", reader.__name__)
    sys.modules.update(zip(names, (ModuleType(names[0]), ModuleType(names[1]), reader), strict=True))
    for path in ("dist_ckpt", "model/dist_ckpt"):  # before verl 0.9, and from then on
        (folder / "fsdp" / path).mkdir(parents=True, exist_ok=True)
        (folder / "fsdp" / path / ".metadata").touch()
    manager = run.manager
    manager.use_megatron_fsdp = True
    manager.checkpoint_load_contents = ["optimizer", "extra"]
    manager.load_checkpoint(str(folder / "fsdp"))


CONTRACT = Contract(
    check=with_patches(wrong, "verl.resume-lr-schedule"), before=("torch", "ray", "tensordict")
)
