"""The gradient of a layer's input is that of one process, on two ranks of each kind."""

from __future__ import annotations

from collections.abc import Iterator

from overlay.patch import Contract
from overlay.patches.slime.hf_attention_gradient import PATCH
from overlay.testing import assert_applied, enable


def check(seed: str) -> str:
    """Run slime's layer with a causal mixing in it, on ranks that are forked from here."""
    import os
    import tempfile
    from pathlib import Path

    import overlay.compat.megatron_on_cpu  # noqa: F401 -- before Megatron
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.forked_ranks import run
    from overlay.compat.no_triton import no_triton

    enable(PATCH.id)
    with no_triton(), cuda_on_cpu(), tempfile.TemporaryDirectory() as folder:
        from overlay.compat.slime_on_cpu import import_slime
        from overlay.compat.slime_on_cpu.hf_attention import MODULE

        import_slime("cp_utils")
        __import__(MODULE)
        assert_applied(PATCH.id)

        def rank() -> int:
            found = "; ".join(_wrong(int(seed)))
            Path(folder, os.environ["RANK"]).write_text(found, encoding="utf-8")
            return 0

        status = run(2, rank)
        told = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).iterdir())]
    if status or len(told) != 2:
        return f"ranks ended with {status}"
    return next(filter(None, told), "")


def _wrong(seed: int) -> Iterator[str]:
    """Yield what is wrong on this rank."""
    import torch.distributed as dist
    from megatron.core import parallel_state

    from overlay.compat.slime_on_cpu.hf_attention import TOLERANCE, gradient, mixing

    dist.init_process_group("gloo")
    for tensor, context, parallel in ((1, 2, False), (2, 1, True), (2, 1, False)):
        parallel_state.initialize_model_parallel(
            tensor, context_parallel_size=context, create_gloo_process_groups=False
        )
        found = gradient(mixing(seed), [16, 8], seed, sequence_parallel=parallel)
        parallel_state.destroy_model_parallel()
        if not max(found["output"], found["gradient"]) <= TOLERANCE:
            yield f"tp{tensor}, cp{context}, sequence parallel {parallel}: {found}"


CONTRACT = Contract(check=check, before=("megatron.core", "ray", "tensordict"))
