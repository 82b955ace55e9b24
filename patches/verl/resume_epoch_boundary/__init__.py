"""`verl.resume-epoch-boundary`: a job that is resumed after a whole epoch trains on the next one.

A checkpoint is written before the loader has said that its epoch is over. So the state of the last step is
that of a loader with no batch left, and the resumed trainer, which begins the next epoch, gets none. For as
long as verl loads a checkpoint, the loader is asked for a batch as soon as it has been given such a state. If
there is none, that ends the epoch, as it would have ended in the job that was saved: the next iterator is
that of the next epoch, with the order that a sampler would have had there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_SFT = "verl.utils.checkpoint.checkpoint_handler:CheckpointHandler._load_dataloader_state"
_FSDP_SFT = "verl.trainer.fsdp_sft_trainer:FSDPSFTTrainer._load_dataloader_state"
_RL = "verl.trainer.ppo.ray_trainer:RayPPOTrainer._load_checkpoint"
EFFECT = effect(__name__, "resume", did="went on to the next epoch after")


def make_load_dataloader_state(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap what loads the state of an SFT loader: the next batch is of the epoch that the trainer begins."""

    def _load_dataloader_state(self: Any, checkpoint_path: str) -> Any:
        with past_the_end(self.train_dataloader, lambda: self.resume_global_step):
            return original(self, checkpoint_path)

    return _load_dataloader_state


def make_load_checkpoint(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap what loads a checkpoint of an RL trainer, its loader included: as for SFT."""

    def _load_checkpoint(self: Any) -> Any:
        with past_the_end(self.train_dataloader, lambda: self.global_steps):
            return original(self)

    return _load_checkpoint


@contextmanager
def past_the_end(loader: Any, step: Callable[[], int]) -> Iterator[None]:
    """Let a loader that is given a state, while the context lasts, finish an epoch that has no batch left.

    Args:
        loader: A StatefulDataLoader.
        step: Returns the step at which the state was saved, once that is known.

    """
    load = getattr(loader, "load_state_dict", None)
    if load is None:  # of a user's own loader, which verl asks only if there is a state
        yield
        return
    before = vars(loader).get("load_state_dict")

    def load_state_dict(state: Any) -> None:
        load(state)
        EFFECT.calls += 1
        if step() % len(loader):
            return
        if _is_at_the_end(loader):
            EFFECT.changed += 1
        else:
            load(state)  # of another batch size, say: it goes on where it was

    loader.load_state_dict = load_state_dict
    try:
        yield
    finally:
        if before is None:
            del loader.load_state_dict
        else:
            loader.load_state_dict = before


def _is_at_the_end(loader: Any) -> bool:
    """Return whether a loader has no batch left. Then its next iterator is that of the epoch after.

    To ask is to finish the epoch, as the job that was saved would have done: samplers go on with the order
    that they had there. What a new iterator draws from torch's generator is put back.
    """
    import torch

    state = torch.get_rng_state()
    try:
        return next(iter(loader), loader) is loader
    finally:
        torch.set_rng_state(state)


PATCH = Patch(
    id="verl.resume-epoch-boundary",
    summary="A job that is resumed after a whole epoch trains on the next one",
    why=(
        "A verl job that is resumed from a checkpoint of the last step of an epoch, as "
        "save_freq=after_each_epoch writes them all, restores a loader that has no batch left: the next "
        "epoch is over before it begins, and if it was the last, the job ends with exit code 0, "
        "undertrained. That is so for SFT in all releases, and for RL in verl 0.7 and in main_ppo_sync of "
        "verl 0.8. With the patch the resumed job sees the batches that it would have seen without a break, "
        "in their order. Jobs that are resumed elsewhere, or not at all, see no change. verl's other RL "
        "trainer leaves the state out there from 0.8 on, and repeats the order of the first epoch: it is "
        "left at that."
    ),
    evidence=(
        "The contract compares the batches of a resumed job with those of one that was not stopped. "
        "verl#7974, which is open, does the same for SFT."
    ),
    changes=("numbers",),
    met=("A resume from a checkpoint of the last step of an epoch, such as of save_freq=after_each_epoch."),
    upstream=("verl-project/verl#7401", "verl-project/verl#5725", "verl-project/verl#7974"),
    targets=one_target(
        VERL,
        variant("0.9", replaced(_SFT, make_load_dataloader_state)),
        variant(
            "0.8",
            replaced(_SFT, make_load_dataloader_state),
            replaced("verl.trainer.main_ppo_sync:PPOTrainer._load_checkpoint", make_load_checkpoint),
        ),
        variant(
            "0.7.1",
            replaced(_SFT, make_load_dataloader_state),
            replaced(_RL, make_load_checkpoint),
        ),
        variant(
            "0.7.0",
            replaced(_SFT, make_load_dataloader_state),
            replaced(_FSDP_SFT, make_load_dataloader_state),
            replaced(_RL, make_load_checkpoint),
        ),
        variant(
            "0.6",
            replaced(_SFT, make_load_dataloader_state),
            replaced(_FSDP_SFT, make_load_dataloader_state),
        ),
    ),
)
