"""What stands in for a model when verl's own commands are run on a CPU; a `sitecustomize.py` imports this.

`python -m verl.trainer.X` runs verl's module as it is. Its `main` begins by giving the trainer of that
module rows that hold their own index, and nothing to train; loops, checkpoints and Ray are verl's and Ray's
own. What came of it goes into the file LAUNCHED_OUT as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

#: Where overlay's start-up file is not read because the environment of the tests has none.
if os.environ.get("OVERLAY"):
    from overlay.launch import startup

    startup.start()


class BeforeVerl(MetaPathFinder):
    """Finds nothing, and prepares for verl when that is looked for."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        """Prepare, once."""
        if name == "verl":
            sys.meta_path.remove(self)
            from overlay.compat.verl_imports import stand_in

            stand_in()
            if any("verl" in word for word in sys.orig_argv):
                wrap_hydra()


def wrap_hydra() -> None:
    """Let what `hydra.main` decorates begin with the stand-ins."""
    import hydra

    original = hydra.main

    def main(*arguments: Any, **options: Any) -> Any:
        def decorate(task: Any) -> Any:
            run = original(*arguments, **options)(task)

            def begin() -> None:
                space = task.__globals__
                next(make for name, make in TRAINERS.items() if name in space)(space)
                run()

            return begin

        return decorate

    hydra.main = main


def report(**found: Any) -> None:
    """Write what came of it."""
    overlay = sys.modules.get("overlay")
    patches = overlay.status().patches if overlay is not None else ()
    wanted = os.environ.get("OVERLAY_PATCHES")
    found["ledger"] = {
        site.site: site.state for patch in patches if patch.patch == wanted for site in patch.sites
    }
    Path(os.environ["LAUNCHED_OUT"]).write_text(json.dumps(found), encoding="utf-8")


# -- main_ppo_sync -----------------------------------------------------------------------------------


def sync(space: dict[str, Any]) -> None:
    """Stand in for what `PPOTrainer` of `verl.trainer.main_ppo_sync` needs, which runs in a Ray worker."""
    trainer = space["PPOTrainer"]
    trainer.__init__, trainer.init_workers, trainer.fit = sync_init, sync_no_workers, sync_fit
    space["tq"] = SimpleNamespace(init=_nothing, close=_nothing)
    space["validate_config"] = _nothing


def _nothing(*_arguments: Any, **_options: Any) -> None:
    pass


def sync_no_workers(_self: Any) -> None:
    """Make none."""


def sync_init(self: Any, config: Any, **_options: Any) -> None:
    """Take the settings, and no model."""
    from overlay.patches.verl.resume_epoch_boundary.contract import jobs

    self.config, self.use_critic, self.global_steps = config, False, 0
    self.actor_rollout_wg = jobs.Engine()
    self.replay_buffer = SimpleNamespace(close=_nothing)
    self.train_dataloader = jobs.make_loader(0, sampler="random")


def sync_fit(self: Any) -> None:
    """Train all epochs, then resume at the end of the second one."""
    from overlay.patches.verl.resume_epoch_boundary.contract import jobs

    folder = Path(self.config.trainer.default_local_dir)
    folder.mkdir()
    step = 2 * jobs.STEPS_PER_EPOCH
    whole = jobs.batches(_job(jobs, self), folder, 0)
    self.__init__(self.config)
    seen = jobs.batches(_job(jobs, self), folder, step, save=False)
    report(
        seen=seen, left=whole[step:], module=type(self).__module__,
        worker="default_worker" in sys.argv[0], path=sys.modules["verl"].__file__,
    )  # fmt: skip


def _job(jobs: Any, trainer: Any) -> Any:
    job = object.__new__(jobs.RL)
    job.trainer, job.loader, job.from_first = trainer, trainer.train_dataloader, False
    return job


# -- main_ppo ----------------------------------------------------------------------------------------


def ppo(space: dict[str, Any]) -> None:
    """Run the task of `verl.trainer.main_ppo`, which is for a Ray worker, in this process."""
    runner = space.get("TaskRunnerV1")
    if runner is None:
        from verl.trainer.ppo import ray_trainer

        runner, trainer = space["TaskRunner"], ray_trainer.RayPPOTrainer
    else:
        sys.modules["transfer_queue"] = MagicMock()
        from verl.trainer.ppo.v1 import trainer_base

        runner, trainer = runner.__ray_metadata__.modified_class, trainer_base.PPOTrainer
        runner.init_agent_loop_manager = _nothing
    for name in ("create_rl_dataset", "create_rl_sampler", "validate_config"):
        space[name] = _nothing

    def run_ppo(config: Any, **_options: Any) -> None:
        leave_out_models(trainer, runner.__module__)
        runner().run(config)

    space["run_ppo"] = run_ppo


def leave_out_models(trainer: Any, module: str) -> None:
    """Leave out models, data and generation. The `fit` of the trainer is verl's own, up to its validation."""
    import verl.utils

    verl.utils.hf_tokenizer = verl.utils.hf_processor = _nothing

    def __init__(self: Any, config: Any, **_options: Any) -> None:  # noqa: N807
        self.config, self.global_steps, self.train_dataloader = config, 0, [None]
        self.checkpoint_manager = SimpleNamespace(update_weights=_nothing)
        self._dump_executor = SimpleNamespace(_shutdown=False)

    def _validate(_self: Any, *_arguments: Any) -> dict[str, float]:
        met = [one.to_dict() for one in sys.modules["overlay"].status().met]
        report(met=met, module=module, path=verl.__file__)
        return {"nothing": 0.0}

    trainer.__init__, trainer._validate = __init__, _validate
    for name in ("init", "init_workers", "_load_checkpoint", "on_validate_begin", "on_validate_end"):
        setattr(trainer, name, _nothing)
    trainer._shutdown_dump_executor = _nothing


# -- sft_trainer_ray ---------------------------------------------------------------------------------


def sft(space: dict[str, Any]) -> None:
    """Stand in for what `SFTTrainer` of `verl.trainer.sft_trainer_ray` needs."""
    import ray

    from overlay.patches.verl.sft_balance.contract import stand_in

    steps: list[dict[str, Any]] = []

    class Log:
        def __init__(self, **_settings: Any) -> None:
            pass

        def log(self, data: dict[str, Any], step: int) -> None:
            steps.append({**data, "step": step})

    def _build_config(self: Any) -> None:
        tokenizer = SimpleNamespace(pad_token_id=0)
        self.model_config = SimpleNamespace(tokenizer=tokenizer, processor=None)
        self.optimizer_config = SimpleNamespace()
        self.engine_config = self.checkpoint_config = self.profiler_config = None
        self.start_profile_step = self.end_profile_step = -1

    trainer, build = space["SFTTrainer"], space["SFTTrainer"]._build_engine

    def _build_engine(self: Any) -> None:
        build(self)
        self.training_client.reset()

    trainer._build_config, trainer._build_engine = _build_config, _build_engine
    space["Tracking"], space["TrainingWorker"], space["auto_set_device"] = Log, stand_in.Worker, _nothing
    init, run = ray.init, space["run_sft"]

    def run_sft(config: Any) -> None:
        # What the releases ask for, for want of a GPU: of the one resource or the other.
        ray.init = lambda: init(num_cpus=64, num_gpus=2, resources={"cpu": 2}, include_dashboard=False)
        run(config)
        report(steps=steps, path=sys.modules["verl"].__file__, module=trainer.__module__)

    space["run_sft"] = run_sft


# -- fsdp_sft_trainer --------------------------------------------------------------------------------


def fsdp(space: dict[str, Any]) -> None:
    """Stand in for what `FSDPSFTTrainer` of `verl.trainer.fsdp_sft_trainer` needs."""
    import torch
    import verl.utils

    from overlay.patches.verl.resume_epoch_boundary.contract import jobs

    seen: list[list[int]] = []
    trainer = space["FSDPSFTTrainer"]

    def __init__(self: Any, config: Any, device_mesh: Any, **_options: Any) -> None:  # noqa: N807
        self.config, self.device_mesh, self.device_name = config, device_mesh, "cpu"
        self.train_dataloader = jobs.make_loader(0, sampler="distributed")
        self.train_sampler = self.train_dataloader.sampler
        self.steps_per_epoch = len(self.train_dataloader)
        self.val_dataloader = []
        self.resume_global_step, self.checkpoint_manager = 0, jobs.Engine()
        self.load_checkpoint()

    def training_step(_self: Any, data: Any) -> dict[str, float]:
        seen.append(jobs.rows_of(data))
        return {"train/time(s)": 0.0}

    def save_checkpoint(self: Any, step: int) -> None:
        folder = Path(self.config.trainer.default_local_dir) / f"global_step_{step}"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.train_dataloader.state_dict(), folder / "data.pt")

    trainer.__init__, trainer.training_step, trainer.save_checkpoint = (
        __init__,
        training_step,
        save_checkpoint,
    )
    space["torch"] = SimpleNamespace(**{**vars(torch), "stack": lambda _: torch.zeros(1)})
    space["get_device_name"] = lambda: "cpu"
    space["copy_to_local"] = verl.utils.hf_tokenizer = _nothing
    space["create_sft_dataset"] = lambda *_arguments, **_options: jobs.Rows()

    def one_rank() -> tuple[int, int, int]:
        store = torch.distributed.HashStore()  # type: ignore[attr-defined, unused-ignore]
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        return 0, 0, 1

    space["initialize_global_process_group"] = one_rank
    run = space["run_sft"]

    def run_sft(config: Any) -> None:
        run(config)
        report(seen=seen, path=verl.__file__, module=trainer.__module__)

    space["run_sft"] = run_sft


TRAINERS = {"PPOTrainer": sync, "FSDPSFTTrainer": fsdp, "SFTTrainer": sft, "run_ppo": ppo}
sys.meta_path.insert(0, BeforeVerl())
