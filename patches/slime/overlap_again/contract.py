"""On two ranks the weights after each rollout are those of one process in float64, overlapped or not."""

from collections.abc import Iterator
from functools import partial

from overlay.compat.contracts.forked import wrong_on_ranks
from overlay.patch import Contract
from overlay.testing import with_patches

#: Of Megatron's flags, those that are on, in each of the cases.
_CASES = (
    (),
    ("overlap_grad_reduce",),
    ("overlap_grad_reduce", "align_grad_reduce"),
    ("overlap_grad_reduce", "overlap_param_gather"),
    ("overlap_grad_reduce", "overlap_param_gather", "align_param_gather"),
)
#: The micro-batches of the steps of each rollout, after which a checkpoint may be saved.
_ROLLOUTS = ((2, 1), (1,), (1, 2), (2,))


def wrong(seed: str) -> str:
    """Return what is wrong with the weights of a rank."""
    from overlay.compat.slime_on_cpu import TRAINING, stand_in

    stand_in()
    return wrong_on_ranks(partial(_wrong, int(seed) % 2**31), f"{TRAINING}.model")


def _wrong(seed: int) -> Iterator[str]:
    import torch

    from overlay.compat.megatron_on_cpu import start_megatron
    from overlay.compat.slime_on_cpu.trained import EPSILON, RATE, Reference, Trained, batches

    start_megatron()
    for flags in _CASES:
        reference = Reference(seed, torch.optim.Adam, lr=RATE, betas=(0.9, 0.99), eps=EPSILON)
        trained = Trained(seed, flags=flags, use_distributed_optimizer=True)
        for number, steps in enumerate(_ROLLOUTS):
            try:
                trained.rollout(number, steps)
            except (AssertionError, KeyError) as error:
                yield f"rollout {number} with {flags}: {type(error).__name__}: {error}"
                break
            for step in zip(*(batches(seed, number, steps, rank) for rank in range(2)), strict=True):
                reference.step(step)
            off = (trained.weights() - reference.weights()).abs().max().item()
            # Far below what one step changes: a rank that has not gathered them lacks the other's.
            if not off < 1e-3 * RATE:
                yield f"rollout {number} with {flags}: weights are off by {off:.3g}"
            if number % 2:
                trained.save()
            trained.forward_only()


CONTRACT = Contract(
    check=with_patches(wrong, "slime.overlap-again"), before=("megatron.core", "ray", "tensordict")
)
