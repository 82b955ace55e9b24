"""`verl.resume-epoch-boundary`: a job that is resumed after a whole epoch trains on the next one.

A checkpoint is written before the loader has said that its epoch is over. A loader that is given such a state
is asked for a batch at once: that ends the epoch as in the saved job, and samplers go on with their order.
"""

from typing import Any

from overlay.compat.projects import VERL
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

EFFECT = effect(__name__, "resume", did="went on to the next epoch after")


@around
def load(original: Any, self: Any, *args: Any, **kwargs: Any) -> Any:
    """Load a trainer's checkpoint, and let a StatefulDataLoader finish an epoch that has no batch left."""
    from unittest.mock import patch

    loader = self.train_dataloader
    if (load := getattr(loader, "load_state_dict", None)) is None:
        # A user's own loader, which verl asks only if there is a state.
        return original(self, *args, **kwargs)

    def load_state_dict(state: Any) -> None:
        load(state)
        EFFECT.calls += 1
        # By then SFT and RL have noted the step at which it was saved.
        step = self.resume_global_step if hasattr(self, "resume_global_step") else self.global_steps
        if step % len(loader):
            return
        if _is_at_the_end(loader):
            EFFECT.changed += 1
        else:
            load(state)  # of another batch size, say: it goes on where it was

    with patch.object(loader, "load_state_dict", load_state_dict):
        return original(self, *args, **kwargs)


def _is_at_the_end(loader: Any) -> bool:
    """Return whether a loader has no batch left, which ends its epoch. torch's generator is put back."""
    import torch

    state = torch.get_rng_state()
    try:
        return next(iter(loader), loader) is loader
    finally:
        torch.set_rng_state(state)


_HANDLER = "verl.utils.checkpoint.checkpoint_handler:CheckpointHandler"
_SFT = replaced(f"{_HANDLER}._load_dataloader_state", load)
_FSDP_SFT = replaced("verl.trainer.fsdp_sft_trainer:FSDPSFTTrainer._load_dataloader_state", load)
_RL = replaced("verl.trainer.ppo.ray_trainer:RayPPOTrainer._load_checkpoint", load)
_SYNC = replaced("verl.trainer.main_ppo_sync:PPOTrainer._load_checkpoint", load)

PATCH = Patch(
    id="verl.resume-epoch-boundary",
    summary="A job that is resumed after a whole epoch trains on the next one",
    why="A verl job that is resumed from a checkpoint of the last step of an epoch, as "
    "save_freq=after_each_epoch writes them all, restores a loader that has no batch left: the next epoch is "
    "over before it begins, and a job whose last epoch it is ends with exit code 0, undertrained. That is so "
    "for SFT in all releases, and for RL in verl 0.7 and in main_ppo_sync of verl 0.8. With the patch the "
    "resumed job sees the batches that it would have seen without a break, in their order. verl's other RL "
    "trainer, which leaves the state out there from 0.8 on, repeats the order of the first epoch still.",
    evidence="A resumed job sees the batches of one that was not stopped, as in verl#7974 (open) for SFT.",
    changes=("numbers",),
    met="A resume from a checkpoint of the last step of an epoch, such as of save_freq=after_each_epoch.",
    upstream=("verl-project/verl#7401", "verl-project/verl#5725", "verl-project/verl#7974"),
    targets=one_target(
        VERL,
        variant("0.9", _SFT),
        variant("0.8", _SFT, _SYNC),
        variant("0.7.1", _SFT, _RL),
        variant("0.7.0", _SFT, _FSDP_SFT, _RL),
        variant("0.6", _SFT, _FSDP_SFT),
    ),
)
