"""Ranks are compared once, when all of the parallel state is there."""

from overlay.patch import Contract
from overlay.testing import with_patches


def wrong(seed: str) -> str:
    """Initialise the model parallel state on one rank that passes for one of several."""
    import torch.distributed as dist

    import overlay.compat.megatron_on_cpu  # before Megatron
    from overlay.compat import agreement
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.no_triton import no_triton

    compared: list[dict[str, int]] = []
    with cuda_on_cpu(), no_triton():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        from megatron.core import parallel_state

        def state() -> dict[str, int]:
            found = vars(parallel_state).items()
            return {name: id(value) for name, value in found if name.startswith("_")}

        agreement.is_distributed = lambda: True
        overlay.agree = lambda *_: compared.append(state())
        parallel_state.initialize_model_parallel()
    if len(compared) != 1:
        return f"compared {len(compared)} times"
    # Against what there is in the end: a Megatron that makes no groups is not the patch's doing.
    late = sorted(name for name, value in state().items() if compared[0].get(name) != value)
    return f"compared before there was {', '.join(late)}" if late else ""


CONTRACT = Contract(check=with_patches(wrong, "megatron.agreement"), before=("torch",))
