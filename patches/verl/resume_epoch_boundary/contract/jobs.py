"""Jobs that save at each step, and are resumed: verl's SFT trainers, and what its RL trainers save and load.

The `fit` of SFT runs as it is, over a few rows and without a model. Of the others runs what saves and loads,
and the loop over the epochs is written anew: `fit` wants a cluster there.
"""

import contextlib
import importlib
import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import Dataset, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import RandomSampler

from overlay.compat.verl_imports import stand_in

ROWS, BATCH, EPOCHS = 13, 3, 3
STEPS_PER_EPOCH = ROWS // BATCH

Batches = list[list[int]]


class Rows(Dataset[dict[str, torch.Tensor]]):
    """Rows that hold their own index."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.full((2,), index)
        return {"input_ids": row, "position_ids": row, "loss_mask": row}


def rows_of(batch: Any) -> list[int]:
    """Return the indices of the rows of a batch."""
    return [int(row[0]) for row in batch["input_ids"].unbind()]


class Engine:
    """What stands for the model, of one rank, on a client of workers or in the trainer's own process."""

    def __init__(self) -> None:
        self.seen: Batches = []

    def train_batch(self, data: Any, loss_function: Any = None) -> Any:
        """Note the rows, and report a step."""
        from verl.utils import tensordict_utils as tu

        self.seen.append(rows_of(data))
        if loss_function is not None:  # verl 0.6
            return {"metrics": {"loss": [0.0], "grad_norm": 0.0}}
        metrics = {"loss": 0.0, "grad_norm": 0.0, "lr": 0.0, "mfu": 0.0}
        return SimpleNamespace(get=lambda: tu.get_tensordict({}, {"metrics": metrics}))

    train_mode = staticmethod(contextlib.nullcontext)
    is_mp_src_rank_with_outputs = staticmethod(lambda: True)
    get_data_parallel_rank = staticmethod(lambda: 0)
    get_data_parallel_size = staticmethod(lambda: 1)
    get_data_parallel_group = staticmethod(lambda: None)
    lr_scheduler_step = staticmethod(lambda: 0.0)
    initialize = staticmethod(lambda: None)

    def save_checkpoint(self, *_arguments: Any, **_options: Any) -> None:
        """Write nothing."""

    load_checkpoint = save_checkpoint


def sft_fit(folder: Path, workers: int, step: int, *, batch: int = BATCH) -> Batches:
    """Run verl's SFT trainer, on Ray if it has that, from a step on, and return the rows of each batch."""
    from omegaconf import OmegaConf

    try:
        trainers: Any = importlib.import_module("verl.trainer.sft_trainer_ray")
    except ModuleNotFoundError:
        trainers = importlib.import_module("verl.trainer.sft_trainer")
    trainers.Tracking = lambda **_settings: SimpleNamespace(log=lambda **_metrics: None)
    trainers.StatefulDataLoader = lambda **options: StatefulDataLoader(
        **{**options, "num_workers": workers, "pin_memory": False}
    )
    engine = Engine()

    class Trainer(trainers.SFTTrainer):  # type: ignore[misc, unused-ignore]
        def _build_config(self) -> None:
            tokenizer = SimpleNamespace(pad_token_id=0)
            hf_config = SimpleNamespace(model_type="none")
            self.model_config = SimpleNamespace(tokenizer=tokenizer, processor=None, hf_config=hf_config)
            self.optimizer_config = SimpleNamespace()
            self.start_profile_step = self.end_profile_step = -1

        def _build_dataset(self) -> None:
            self.train_dataset, self.val_dataset = Rows(), None

        def _build_engine(self) -> None:
            self.engine = self.training_client = engine

    _resume_at(folder, step)
    settings = {
        "data": {
            "train_batch_size": batch, "micro_batch_size_per_gpu": 1, "max_token_len_per_gpu": 99,
            "use_dynamic_bsz": True, "pad_mode": "no_padding",
        },
        "model": {"use_remove_padding": True},
        "trainer": {
            "project_name": "", "experiment_name": "", "logger": [], "device": "cpu", "balance_batch": False,
            "total_epochs": EPOCHS, "total_training_steps": None, "save_freq": 1, "test_freq": -1,
            "default_local_dir": str(folder), "default_hdfs_dir": None, "max_ckpt_to_keep": None,
            "resume_mode": "auto", "resume_from_path": None,
        },
    }  # fmt: skip
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer = Trainer(OmegaConf.create(settings))
        trainer.flops_counter = SimpleNamespace(estimate_flops=lambda *_arguments: (1, 1))
        trainer.fit()
    return engine.seen


def _resume_at(folder: Path, step: int) -> None:
    if step:
        (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


def make_loader(workers: int, *, sampler: str) -> Any:
    """Return a loader as verl makes it: for SFT with a distributed sampler, for RL with a random one."""
    rows = Rows()
    order: Any = DistributedSampler(rows, num_replicas=1, rank=0, drop_last=True)
    if sampler == "random":
        order = RandomSampler(rows, generator=torch.Generator().manual_seed(1))
    return StatefulDataLoader(rows, BATCH, sampler=order, num_workers=workers, drop_last=True)


class FSDPSFT:
    """A job of verl's old SFT trainer, of which only the loading of the loader is verl's."""

    def __init__(self, folder: Path, workers: int) -> None:
        from verl.trainer.fsdp_sft_trainer import FSDPSFTTrainer

        self.folder = folder
        self.trainer = object.__new__(FSDPSFTTrainer)
        self.trainer.device_mesh = SimpleNamespace(get_rank=lambda: 0)
        self.loader = self.trainer.train_dataloader = make_loader(workers, sampler="distributed")

    def load(self) -> int:
        latest = self.folder / "latest_checkpointed_iteration.txt"
        step = int(latest.read_text()) if latest.exists() else 0
        self.trainer.resume_global_step = step
        self.trainer._load_dataloader_state(str(self.folder / f"global_step_{step}"))
        return step

    def save(self, step: int) -> None:
        (self.folder / f"global_step_{step}").mkdir()
        torch.save(self.loader.state_dict(), self.folder / f"global_step_{step}" / "data.pt")


class RL:
    """A job of one of verl's RL trainers."""

    def __init__(self, folder: Path, workers: int, *, module: str, name: str) -> None:
        from omegaconf import OmegaConf

        trainer: Any = object.__new__(getattr(importlib.import_module(module), name))
        trainer.config = OmegaConf.create({
            "trainer": {
                "resume_mode": "auto", "resume_from_path": None, "default_local_dir": str(folder),
                "default_hdfs_dir": None, "del_local_ckpt_after_load": False,
            },
            "actor_rollout_ref": {"actor": {"checkpoint": {}}},
        })  # fmt: skip
        trainer.use_critic, trainer.actor_rollout_wg, trainer.global_steps = False, Engine(), 0
        self.trainer, self.loader = trainer, make_loader(workers, sampler="random")
        trainer.train_dataloader = self.loader

    def load(self) -> int:
        self.trainer._load_checkpoint()
        return int(self.trainer.global_steps)

    def save(self, step: int) -> None:
        self.trainer.global_steps = step
        self.trainer._save_checkpoint()


def batches(job: Any, folder: Path, step: int, *, save: bool = True) -> Batches:
    """Run a job from a step on, and return the rows of each batch."""
    _resume_at(folder, step)
    with contextlib.redirect_stdout(io.StringIO()):
        drawn = torch.get_rng_state()
        step = int(job.load())
        assert torch.equal(drawn, torch.get_rng_state()), "the generator of the process has moved"
        seen: Batches = []
        for epoch in range(step // len(job.loader), EPOCHS):
            if hasattr(job.loader.sampler, "set_epoch"):
                job.loader.sampler.set_epoch(epoch)
            for batch in job.loader:
                step += 1
                seen.append(rows_of(batch))
                if save:
                    job.save(step)
                if step == EPOCHS * len(job.loader):
                    return seen
        return seen


@contextlib.contextmanager
def one_rank() -> Any:
    """Run the process group of a single rank, with what verl's trainers import."""
    stand_in()
    cachetools: Any = ModuleType("cachetools")  # which verl 0.8 keeps images in
    cachetools.LRUCache = dict
    sys.modules.setdefault("cachetools", cachetools)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()
