"""verl's SFT trainer on a local Ray cluster, with and without overlay; prints what it found as JSON."""

import argparse
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import overlay
from overlay.model.settings import is_alone
from overlay.patches.verl.sft_balance.contract import stand_in  # before verl


class Log:
    """Takes the place of verl's tracker, and keeps what it is told in the run that is under way."""

    steps: list[dict[str, Any]] = []  # noqa: RUF012
    settings: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self, **settings: Any) -> None:
        Log.steps, Log.settings = [], settings["config"]

    def log(self, data: dict[str, Any], step: int) -> None:
        self.steps.append({**data, "step": step})


def trainer_class(counts: list[str]) -> Any:
    """Return verl's trainer with one worker group and no model to load, which says when it counts."""
    from verl.trainer import sft_trainer_ray

    sft_trainer_ray.Tracking = Log
    sft_trainer_ray.TrainingWorker = stand_in.Worker
    clients: list[Any] = []

    class Trainer(sft_trainer_ray.SFTTrainer):
        def _build_config(self) -> None:
            self.model_config = SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=0), processor=None)
            self.optimizer_config = SimpleNamespace()
            self.engine_config = self.checkpoint_config = self.profiler_config = None
            self.start_profile_step = self.end_profile_step = -1

        def _build_engine(self) -> None:
            if not clients:
                super()._build_engine()
                clients.append(self.training_client)
            self.training_client: Any = clients[0]
            self.training_client.reset()

        def _get_batch_seqlens(self, data: Any) -> Any:
            counts.append("by row")
            return super()._get_batch_seqlens(data)

    return Trainer


class Runs:
    """The runs of one release, each with a fresh trainer and the weights at their start."""

    def __init__(self, seed: int, ranks: int, batch: int) -> None:
        import verl

        self.ranks, self.batch = ranks, batch
        # In 1 of 3 drawn batches of 16 verl alone deals out as evenly: of 12 some one it does not.
        self.lengths = stand_in.lognormal(seed, max(2 * batch, 192), 8192)
        # 0.7 has no such setting.
        self.on = {} if verl.__version__.startswith("0.7") else {"trainer__balance_batch": True}
        self.counts: list[str] = []
        self.trainer = trainer_class(self.counts)
        self.said, self.folder = "", Path()

    def config(self, lengths: list[int], batch: int, **changes: Any) -> Any:
        """Return the settings of a run, closed against names that it has not, as verl's own are."""
        from omegaconf import OmegaConf

        settings = OmegaConf.create({
            "data": {
                "train_files": lengths, "val_files": None, "train_batch_size": batch,
                "micro_batch_size_per_gpu": 1, "max_token_len_per_gpu": 65536, "use_dynamic_bsz": True,
                "pad_mode": "no_padding", "max_length": max(lengths), "multi_modal": False, "num_workers": 0,
                "custom_cls": {"path": stand_in.__file__, "name": "Samples"},
            },
            "model": {"use_remove_padding": True},
            "trainer": {
                "project_name": "sft", "experiment_name": "balance", "logger": ["console"], "device": "cpu",
                "nnodes": 1, "n_gpus_per_node": self.ranks, "total_epochs": 1, "total_training_steps": None,
                "save_freq": -1, "test_freq": -1, "default_local_dir": str(self.folder),
                "default_hdfs_dir": None, "max_ckpt_to_keep": None, "resume_mode": "disable",
                "resume_from_path": None,
            },
        })  # fmt: skip
        for name, value in changes.items():
            OmegaConf.update(settings, name.replace("__", "."), value)
        OmegaConf.set_struct(settings, True)
        return settings

    def run(self, settings: Any, shared_by: int = 1) -> list[dict[str, Any]]:
        """Return the steps of a run in which so many workers share a model."""
        from omegaconf import OmegaConf

        log = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(log):
            trainer = self.trainer(settings)
            self.client = client = trainer.training_client
            before = client.train_batch
            client.lay_out(shared_by)
            client._dispatch_info.clear()
            client._collect_info.clear()
            try:
                trainer.fit()
            finally:
                # Nothing of overlay stays behind, and what is logged is what was set.
                assert client.train_batch is before
                assert "_get_batch_seqlens" not in vars(trainer)
                assert trainer.config is settings
                assert Log.settings == OmegaConf.to_container(settings)
                assert trainer.ckpt_handler.engine is client
                self.said = "".join(line for line in log.getvalue().splitlines(True) if "overlay:" in line)
        return Log.steps

    def refused(self, settings: Any) -> dict[str, Any]:
        """Return with what a run ended, and how many batches came to the ranks."""
        error = None
        try:
            self.run(settings)
        except AssertionError as raised:
            error = str(raised)
        return {"error": error, "calls": self.client.count()}

    def compared(self) -> dict[str, Any]:
        """Run what is compared between the states of overlay: steps by name of the run."""
        few = self.lengths[:32]
        return {
            "default": self.run(self.config(self.lengths, self.batch, **self.on)),
            "shared": self.run(self.config(few, 16, **self.on), shared_by=2),
            "one": self.run(self.config(few, 16, **self.on), shared_by=self.ranks),
            "images": self.run(self.config(few, 16, **self.on, data__multi_modal=True)),
            "padded": self.run(self.config(few, 16, **self.on, data__pad_mode="right")),
        }

    def with_settings(self) -> dict[str, Any]:
        """Run what matters with overlay alone: the setting, odd batches, and a run that is resumed."""
        found: dict[str, Any] = {}
        few, ranks = self.lengths[:32], self.ranks
        for name, setting in (("on", True), ("absent", None), ("off", False)):
            changes = {} if setting is None else {"trainer__balance_batch": setting}
            found[name] = {"steps": self.run(self.config(few, 16, **changes)), "said": self.said}
        for batch in (ranks + ranks // 2, ranks // 2):
            found[f"batch of {batch}"] = self.refused(self.config(few, batch, **self.on))
        self.folder /= "saved"  # which has no checkpoint yet
        keep = {"trainer__save_freq": 1, "trainer__resume_mode": "auto", **self.on}
        found["whole"] = self.run(self.config(few, 8, **keep))
        latest = self.folder / "latest_checkpointed_iteration.txt"
        latest.write_text(str(int(latest.read_text()) - 2))
        found["resumed"] = self.run(self.config(few, 8, **keep))
        return found


@contextlib.contextmanager
def fit_watched(counts: list[str]) -> Iterator[list[str]]:
    """Give a list that holds, in the end, how lengths were counted, and what `fit` partitioned."""
    from verl.trainer import sft_trainer_ray
    from verl.utils import seqlen_balancing

    name = "get_seqlen_balanced_partitions"

    def partitions(values: Any, **options: Any) -> Any:
        counts.append(f"{type(values).__name__} of {type(values[0]).__name__}")
        return getattr(seqlen_balancing, name)(values, **options)

    counts.clear()
    with mock.patch.object(sft_trainer_ray, name, partitions, create=True):
        yield counts


def main() -> None:
    """Run, and print one line of JSON last."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    options = parser.parse_args()

    # What is patched is in this process; workers need nothing, and may be without a start-up file.
    os.environ["OVERLAY"] = "0"
    overlay.enable("none" if is_alone() else "verl.*, -verl.dynamic-cp-loss", strict=True)
    import ray
    import verl
    import verl.trainer.sft_trainer_ray

    # Without this Ray starts as many processes as it is told there are processors.
    os.environ["RAY_prestart_worker_first_driver"] = "0"  # noqa: SIM112 -- so is it written
    ray.init(
        # What the releases ask for, for want of a GPU: of the one resource or the other.
        num_cpus=64, num_gpus=options.ranks, resources={"cpu": options.ranks},
        include_dashboard=False, log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}},
    )  # fmt: skip
    try:
        runs = Runs(options.seed, options.ranks, options.batch)
        report: dict[str, Any] = {"path": verl.__file__, "version": verl.__version__}
        with tempfile.TemporaryDirectory() as folder:
            runs.folder = Path(folder)
            with fit_watched(runs.counts) as counts:
                report["overlay"], report["overlay_counts"] = runs.compared(), list(counts)
            report["settings"] = runs.with_settings()
            report["states"] = {patch.patch: patch.state for patch in overlay.status().patches}
            overlay.disable()
            with fit_watched(runs.counts) as counts:
                report["plain"], report["plain_counts"] = runs.compared(), list(counts)
    finally:
        ray.shutdown()
    print(json.dumps(report))


if __name__ == "__main__":
    main()
