"""What `verl.dynamic-cp-loss` is held to: two ranks have the gradient, loss and outputs of one process."""

from overlay.patch import Contract

TRAININGS = ("fresh/0", "pairs", "mixed", "per token loss", "ppo token-mean", "ppo entropy and KL")
OUTPUTS = ("outputs", "outputs, pairs", "outputs, dynamic micro-batches")


def check(seed: str) -> str:
    """Gradients, the loss that is reported and the outputs of two ranks are those of one process."""
    from overlay.compat.ranks.findings import TOLERANCE, fault_of_training, on_ranks

    found = on_ranks(seed, f"{__name__}.cases", (*TRAININGS, *OUTPUTS, "roles"))
    if isinstance(found, str):
        return found
    for name in TRAININGS:
        if wrong := fault_of_training(found[name]):
            return f"{name}: {wrong}"
    for name in OUTPUTS:
        for row in found[name]:
            for kind in ("with loss", "without loss"):
                if not (row[kind]["error"] < TOLERANCE and row[kind]["lengths"] == row["lengths"]):
                    return f"{name}, {kind}: {row[kind]}"
    roles = [(row["source"], row["group"]) for row in found["roles"]]
    return "" if roles == [(True, 1), (False, 1)] else f"sources of outputs, and their groups: {roles}"


#: Megatron has the groups of a micro-batch from 0.16 on: before that the patch refuses the option.
_GROUPS = "megatron.core.pipeline_parallel.hybrid_cp_schedule"
CONTRACT = Contract(check=check, starts=True, before=(_GROUPS,))
