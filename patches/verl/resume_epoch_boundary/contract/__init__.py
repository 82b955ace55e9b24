"""A resumed job sees the batches of one that was not stopped (`jobs` has the jobs)."""

import random
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Return what is wrong with jobs that are resumed, empty if nothing is."""
    from overlay.patches.verl.resume_epoch_boundary.contract import jobs

    draw = random.Random(seed)
    with jobs.one_rank():
        for name, run in _kinds(jobs):
            for workers in (0, 2):
                with tempfile.TemporaryDirectory() as folder:
                    place = Path(folder)
                    whole = run(place, workers, 0)
                    if len(whole) != jobs.EPOCHS * jobs.STEPS_PER_EPOCH:
                        return f"{name} trained on {len(whole)} batches"
                    # The last first: `fit` writes the checkpoints that come after it anew.
                    for step in (2 * jobs.STEPS_PER_EPOCH, jobs.STEPS_PER_EPOCH, draw.randint(1, 3)):
                        seen = run(place, workers, step)
                        if seen != whole[step:]:
                            return f"{name}, {workers} workers, step {step}: {seen} and not {whole[step:]}"
        return _another_size(jobs)


def _kinds(jobs: Any) -> Iterator[tuple[str, Any]]:
    """Return what saves and loads in this release, by name, with what runs a job of it from a step on."""
    import verl

    def of(make: Any, **options: Any) -> Any:
        def run(place: Path, workers: int, step: int) -> Any:
            return jobs.batches(make(place, workers, **options), place, step, save=not step)

        return run

    yield "SFT", jobs.sft_fit
    if find_spec("verl.trainer.fsdp_sft_trainer"):
        yield "FSDP SFT", of(jobs.FSDPSFT)
    if verl.__version__.startswith("0.7."):
        yield "RL", of(jobs.RL, module="verl.trainer.ppo.ray_trainer", name="RayPPOTrainer")
    if find_spec("verl.trainer.main_ppo_sync"):
        yield "RL in sync", of(jobs.RL, module="verl.trainer.main_ppo_sync", name="PPOTrainer")


def _another_size(jobs: Any) -> str:
    """Resume with another batch size, by which the step is the last of an epoch, in the middle of one."""
    with tempfile.TemporaryDirectory() as folder:
        place, step = Path(folder), 2
        whole = jobs.sft_fit(place, 0, 0)
        seen = jobs.sft_fit(place, 0, step, batch=2 * jobs.BATCH)
    # It is the first step of the second epoch now, and as many rows have been seen.
    expected = whole[jobs.STEPS_PER_EPOCH + step] + whole[jobs.STEPS_PER_EPOCH + step + 1]
    return "" if seen[0] == expected else f"with another batch size: {seen} after {whole}"


CONTRACT = Contract(
    check=with_patches(wrong, "verl.resume-epoch-boundary"), before=("torch", "ray", "tensordict")
)
