"""Steps in float16 change the weights as one process in float64 does, and those that overflow do not."""

from typing import Any

from overlay.compat.contracts.slime import contract, on_megatron

#: Two steps, of two micro-batches and of one, and then one that overflows.
_STEPS = (2, 1)


@on_megatron()
def wrong(seed: str) -> str:
    """Return with which scale of the loss, and which optimizer, what is wrong."""
    for scale in (None, 1.0, 64.0, 4096.0):
        for clip in (0.0, 0.05):
            if found := _wrong(int(seed) % 2**31, scale, clip):
                return f"scale {scale}, clipped at {clip}: {found}"
    return ""


def _wrong(seed: int, scale: float | None, clip: float) -> str:
    import torch

    from overlay.compat.slime_on_cpu.trained import RATE, Reference, Trained, batches

    # A dynamic scale, of which every second step without an overflow makes twice as much.
    scaling: dict[str, Any] = {"loss_scale": scale}
    if scale is None:
        scaling |= {"initial_loss_scale": 256.0, "loss_scale_window": 2, "hysteresis": 1}
    trained = Trained(seed, half=True, optimizer="sgd", sgd_momentum=0.0, clip_grad=clip, **scaling)
    trained.args.custom_megatron_before_train_step_hook_path = f"{__name__}.hook"
    reference = Reference(seed, torch.optim.SGD, lr=RATE)
    start = reference.weights()
    found = trained.rollout(0, _STEPS)
    norms = [reference.step([micro_batches], clip) for micro_batches in batches(seed, 0, _STEPS, 0)]
    # Without a limit, Megatron says nothing of the norm.
    if clip and not all(abs(one - right) < 0.02 * right for one, right in zip(found, norms, strict=True)):
        return f"norms of the gradient are {found}, not {norms}"
    moved = (reference.weights() - start).norm()
    off = ((trained.main_weights() - reference.weights()).norm() / moved).item()
    if not off < 0.02:  # of float16
        return f"the weights have moved otherwise than they should, by {off:.3g} of the way"
    if trained.optimizer.seen != len(_STEPS):
        return f"what a user's hook has put around steps has seen {trained.optimizer.seen} of {len(_STEPS)}"
    kept, before = trained.main_weights(), trained.optimizer.get_loss_scale().item()
    if scale is None and before != 512:
        return f"after two steps the scale of the loss is {before:g}, not 512"
    trained.rollout(1, (1,), weight=float("inf"))
    after = trained.optimizer.get_loss_scale().item()
    if not torch.equal(kept, trained.main_weights()):
        return "a step that overflows has changed the weights"
    right = scale is not None or after == before / 2
    return "" if right else f"after an overflow the scale of the loss is {after:g}, not {before / 2:g}"


def hook(*given: Any) -> None:
    """Put something of a user's around the optimizer's functions, once, as slime's hook before a step may."""
    *_, optimizer, _scheduler = given
    if hasattr(optimizer, "seen"):
        return
    optimizer.seen = 0
    step, prepare = optimizer.step, optimizer.prepare_grads

    def counted() -> Any:
        optimizer.seen += 1
        return step()

    def prepared() -> Any:
        return prepare()

    optimizer.step, optimizer.prepare_grads = counted, prepared


CONTRACT = contract(wrong, "slime.grads-once")
