"""What takes a loader that was saved at the end of an epoch past that end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any


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

    from overlay.patches.verl.resume_epoch_boundary.effect import EFFECT

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
