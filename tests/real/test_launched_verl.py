"""verl's own commands, `python -m verl.trainer.X`, as people start them: the module is `__main__`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from checks import UPSTREAMS
from listed_sources import Listed

pytestmark = [pytest.mark.real]

SECONDS = 400
#: Contracts run the same trainers, and `tests/workers/test_main_module.py` modules that are `__main__`.
on_ray = pytest.mark.nightly("by day the trainer without Ray stands for it")


def launched(folder: Path, place: Path, *words: str, patch: str = "") -> dict[str, Any]:
    """Run a command of verl's with a release first on the path, and return what came of it."""
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text("import launched_verl\n")
    out = place / "out.json"
    out.unlink(missing_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OVERLAY", "RAY"))}
    path = os.pathsep.join(map(str, (place, folder, UPSTREAMS)))
    environ = {**kept, "PYTHONPATH": path, "LAUNCHED_OUT": str(out), "PYTHONWARNINGS": "ignore"}
    environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0"}
    if patch:
        environ |= {"OVERLAY": "1", "OVERLAY_PATCHES": patch, "OVERLAY_STRICT": "1"}
    done = subprocess.run(
        [sys.executable, *words], env=environ, cwd=place, capture_output=True, text=True, timeout=SECONDS,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["path"].startswith(str(folder))
    assert found["module"] == "__main__"
    return {**found, "log": done.stderr}


@on_ray
@pytest.mark.parametrize("how", ["module", "script"])
def test_main_ppo_sync_trains_on_after_an_epoch(listed: Listed, tmp_path: Path, how: str) -> None:
    folder = listed("verl==0.8.0")
    script = str(folder / "verl/trainer/main_ppo_sync.py")
    words = ["-m", "verl.trainer.main_ppo_sync"] if how == "module" else [script]

    settings = [f"trainer.default_local_dir={tmp_path / 'saved'}", "trainer.n_gpus_per_node=1"]
    settings += ["trainer.resume_mode=auto", "+ray_kwargs.ray_init.include_dashboard=False"]
    found = launched(folder, tmp_path / "run", *words, *settings, patch="verl.resume-epoch-boundary")
    assert len(found["left"]) == 4
    assert found["seen"] == found["left"]
    assert found["worker"]


@on_ray
@pytest.mark.parametrize("version", ["0.7.1", "0.8.0", "0.9.1"])
def test_sft_trainer_ray_gives_ranks_equal_work(listed: Listed, tmp_path: Path, version: str) -> None:
    from overlay.patches.verl.sft_balance.contract.judge import imbalance

    folder = listed(f"verl=={version}")
    lengths = [2 ** (index % 8) * 8 + index for index in range(64)]
    samples = UPSTREAMS.parents[2] / "patches/verl/sft_balance/contract/stand_in.py"

    settings = {
        "data.train_files": str(lengths).replace(" ", ""), "data.train_batch_size": 16,
        "data.micro_batch_size_per_gpu": 1, "data.max_token_len_per_gpu": 65536,
        "data.pad_mode": "right", "data.max_length": max(lengths), "+data.multi_modal": False,
        "data.custom_cls.path": samples, "data.custom_cls.name": "Samples", "data.num_workers": 0,
        "trainer.device": "cpu", "trainer.n_gpus_per_node": 2, "trainer.total_epochs": 1,
        "trainer.resume_mode": "disable", "trainer.default_local_dir": tmp_path / "saved",
        "trainer.save_freq": -1, "trainer.test_freq": -1, "model.path": "none",
    }  # fmt: skip
    words = ["-m", "verl.trainer.sft_trainer_ray", *(f"{name}={value}" for name, value in settings.items())]
    found = launched(folder, tmp_path / "run", *words, patch="verl.sft-balance")
    assert set(found["ledger"].values()) == {"applied"}
    steps = [imbalance(step) for step in found["steps"]]
    assert len(steps) == 4
    assert max(steps) <= 1.02


@pytest.mark.nightly("one way and release stand for all", version=("0.7.0",), how=("python -m", "torchrun"))
@pytest.mark.parametrize("version", ["0.6.1", "0.7.0"])
@pytest.mark.parametrize("how", ["python -m", "torchrun -m", "torchrun"])
def test_fsdp_sft_trainer_trains_on_after_an_epoch(
    listed: Listed, tmp_path: Path, version: str, how: str
) -> None:
    folder = listed(f"verl=={version}")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"]
    words = {
        "python -m": ["-m", "verl.trainer.fsdp_sft_trainer"],
        "torchrun -m": [*torchrun, "-m", "verl.trainer.fsdp_sft_trainer"],
        "torchrun": [*torchrun, str(folder / "verl/trainer/fsdp_sft_trainer.py")],
    }[how]
    settings = [
        "data.train_batch_size=3", "data.micro_batch_size_per_gpu=1", "model.partial_pretrain=none",
        "trainer.total_epochs=3", "trainer.save_freq=1", "trainer.test_freq=-1", "trainer.logger=[]",
        f"trainer.default_local_dir={tmp_path / 'saved'}", "trainer.resume_mode=auto",
        "trainer.project_name=x", "trainer.experiment_name=x",
    ]  # fmt: skip

    whole = launched(folder, tmp_path / "run", *words, *settings)["seen"]
    assert len(whole) == 12
    (tmp_path / "saved" / "latest_checkpointed_iteration.txt").write_text("8")
    resumed = launched(folder, tmp_path / "run", *words, *settings, patch="verl.resume-epoch-boundary")
    assert resumed["seen"] == whole[8:]
    # verl hands the settings of the whole job to its logger, and overlay says what they meet.
    assert re.search(r"\d known defects? affects? this job", resumed["log"]), resumed["log"]


@pytest.mark.nightly("the last release stands for the others", version=("0.7.1", "0.9.0", "0.9.1"))
@pytest.mark.parametrize("version", ["0.7.1", "0.8.0", "0.9.0", "0.9.1"])
def test_main_ppo_says_what_the_job_meets(listed: Listed, tmp_path: Path, version: str) -> None:
    """By what Hydra has resolved. The audit, which reads the file that Hydra leaves, says the same."""
    folder = listed(f"verl=={version}")
    megatron = "actor_rollout_ref.actor.megatron"
    settings = {
        "algorithm.adv_estimator": "reinforce_plus_plus", "actor_rollout_ref.rollout.multi_turn.enable": True,
        "actor_rollout_ref.rollout.name": "vllm", "actor_rollout_ref.model.lora.rank": 8,
        "actor_rollout_ref.rollout.checkpoint_engine.backend": "nccl", f"{megatron}.param_offload": True,
        "actor_rollout_ref.actor.use_dynamic_bsz": True, "critic.use_dynamic_bsz": True,
        "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
        f"{megatron}.tensor_model_parallel_size": 2,
        f"+{megatron}.override_transformer_config.calculate_per_token_loss": True,
        "actor_rollout_ref.actor.checkpoint.async_save": True, "++trainer.val_only": True,
        "trainer.logger": "[console]", "trainer.device": "cpu", "++trainer.use_legacy_worker_impl": "disable",
    }  # fmt: skip
    engine = "--config-name=ppo_megatron_trainer" if version == "0.7.1" else "model_engine=megatron"
    words = ["-m", "verl.trainer.main_ppo", engine, *(f"{name}={value}" for name, value in settings.items())]
    found = launched(folder, tmp_path / "run", *words, patch="all")

    (file,) = (tmp_path / "run").rglob(".hydra/config.yaml")
    done = subprocess.run(
        [sys.executable, "-m", "overlay", "audit", "--json", "--settings", str(file)],
        env={**os.environ, "PYTHONPATH": str(folder)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr  # it hits none that is not patched
    there = [one for one in json.loads(done.stdout)["defects"] if one["state"] != "not-needed"]
    met = {one["defect"] for one in there if one["settings"]["word"] == "met"}
    assert {one["defect"] for one in found["met"]} == met > {"megatron.async-save-unpinned"}
    assert f"{len(met)} known defects affect this job" in found["log"]
