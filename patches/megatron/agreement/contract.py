"""Ranks are compared once, when all of the parallel state is there."""

from overlay.compat.contracts import megatron_parts as parts


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Initialise the model parallel state anew on one rank that passes for one of several."""
    from megatron.core import parallel_state

    import overlay
    from overlay.compat import agreement

    def state() -> dict[str, int]:
        found = vars(parallel_state).items()
        return {name: id(value) for name, value in found if name.startswith("_")}

    compared: list[dict[str, int]] = []
    parallel_state.destroy_model_parallel()
    agreement.is_distributed = lambda: True
    overlay.agree = lambda *_: compared.append(state())
    parallel_state.initialize_model_parallel()
    if len(compared) != 1:
        return f"compared {len(compared)} times"
    # Against what there is in the end: a Megatron that makes no groups is not the patch's doing.
    late = sorted(name for name, value in state().items() if compared[0].get(name) != value)
    return f"compared before there was {', '.join(late)}" if late else ""


CONTRACT = parts.contract("megatron.agreement", wrong)
