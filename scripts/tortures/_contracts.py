"""The contracts of patches, each as a function that takes seconds on a CPU and says what does not hold.

They run in a process of their own, with one release first on the path and `tests/real` on it: what they look
at is what the tests of the patches look at, with fewer inputs. An exception is not caught here: a run that
ends with an error is not silent.
"""

from __future__ import annotations

import random
from typing import Any

import overlay
from overlay.catalogue.registry import contract_of, load_patches
from overlay.patch import Contract
from tortures import _contracts_of_processes as of_processes


def _enabled(*patches: str) -> None:
    overlay.enable(list(patches), strict=True)


def _applied(*patches: str) -> None:
    """Raise unless the patches are in place: what overlay says of them is not silent."""
    states = {one.patch: one.state for one in overlay.status().patches}
    for patch in patches:
        if states[patch] != "applied":
            raise overlay.PatchError(f"{patch} is {states[patch]}")


def verl_partitioner(seed: str) -> str:
    """The same partitions as this very upstream makes without the patch, in less than half the calls."""
    from token_budget_check import partitioned, partitioner_calls

    _enabled("verl.fast-partitioner")
    from verl.utils import seqlen_balancing

    _applied("verl.fast-partitioner")
    ours = partitioned(seqlen_balancing, random.Random(seed), 60)
    fast = partitioner_calls(seqlen_balancing, 256, 48)
    overlay.disable()
    theirs = partitioned(seqlen_balancing, random.Random(seed), 60)
    if ours != theirs:
        return "other partitions than without the patch"
    return "" if fast < partitioner_calls(seqlen_balancing, 256, 48) / 2 else "as slow as without the patch"


def verl_budget(seed: str) -> str:
    """Each sample once, none of the micro-batches over the budget, and the number that was asked for."""
    import inspect

    from token_budget_check import divide, draw_case, keeps

    _enabled("verl.strict-token-budget")
    from verl.utils import seqlen_balancing

    _applied("verl.strict-token-budget")
    draw = random.Random(seed)
    known = inspect.signature(seqlen_balancing.rearrange_micro_batches).parameters
    for case in [
        {"lengths": [7] * 8, "width": None, "arguments": {"max_token_len": 8}},
        *(draw_case(draw) for _ in range(60)),
    ]:
        if not known.keys() >= case["arguments"].keys():
            continue
        found = divide(seqlen_balancing, case)
        if "error" in found and "TokenBudgetError" not in found["error"]:
            raise RuntimeError(f"{found['error'][0]}: {found['message']}")
        if "error" not in found and not keeps(case, found):
            return f"{case} became {found}"
    return ""


def verl_offload(seed: str) -> str:
    """No value is lost, and what nobody else holds is freed when this very upstream frees it."""
    from offload_check import import_verl, look

    _enabled("verl.offload-shared-storage")
    module = import_verl()
    _applied("verl.offload-shared-storage")
    ours = look(module, seed, 20)
    overlay.disable()
    theirs = look(module, seed, 20)
    if ours["lost"] or ours["again"]["lost"]:
        return "values were lost"
    return "" if ours["live"] == theirs["live"] else "memory is freed at another time"


def megatron_agreement(seed: str) -> str:
    """Ranks are compared once as the model parallel state is initialised, and all of it is there by then."""
    import torch.distributed as dist

    from overlay.compat import megatron_on_cpu  # noqa: F401 -- before Megatron
    from overlay.compat.cuda_on_cpu import cuda_on_cpu
    from overlay.compat.no_triton import no_triton

    _enabled("megatron.agreement")
    compared: list[dict[str, int]] = []
    with cuda_on_cpu(), no_triton():
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        from megatron.core import parallel_state

        _applied("megatron.agreement")
        import overlay.compat.agreement as ours

        def state() -> dict[str, int]:
            found = vars(parallel_state).items()
            return {name: id(value) for name, value in found if name.startswith("_")}

        def agree(*_: Any) -> None:
            compared.append(state())

        ours.is_distributed = lambda: True
        overlay.agree = agree  # type: ignore[assignment]
        parallel_state.initialize_model_parallel()
    if len(compared) != 1:
        return f"compared {len(compared)} times"
    # Against what there is in the end: a Megatron that makes no groups is not the patch's doing.
    late = sorted(name for name, value in state().items() if compared[0].get(name) != value)
    return f"compared before there was {', '.join(late)}" if late else ""


def megatron_recompute(seed: str) -> str:
    """The gradients of the stock backward, nothing retained, no alias touched, and the flags as they were."""
    from overlay.compat.megatron_on_cpu import megatron

    _enabled("megatron.recompute")
    with megatron():
        import recompute_check as check

        _applied("megatron.recompute")
        ours = [*_recomputed(seed), check.flags(), check.without_output_inside()]
        retained, unchanged = _retained(), check.alias_run()["unchanged"]
        overlay.disable()
        theirs = [*_recomputed(seed), check.flags(), check.without_output_inside()]
        if retained:
            return f"{retained} bytes of the input are retained"
        if not unchanged:
            return "an alias of the input was touched"
        return "" if ours == theirs else "other gradients or flags than without the patch"


def _recomputed(seed: str) -> list[Any]:
    """Return the gradients of a checkpointed function of two drawn inputs, of which one is dropped out."""
    import torch
    from recompute_check import checkpointed

    torch.manual_seed(int(seed) % 2**31)
    one, other = (torch.randn(4, 3, requires_grad=True) for _ in range(2))
    out = checkpointed(
        lambda x, y: (torch.nn.functional.dropout(x, 0.5) @ y.T).tanh(), one * 1.0, other * 2.0
    )
    (out * torch.randn(4, 4)).sum().backward()
    assert one.grad is not None
    assert other.grad is not None
    return [*one.grad.flatten().tolist(), *other.grad.flatten().tolist()]


def _retained() -> int:
    """Return the bytes of a checkpoint's input that are held by what keeps the recomputed graph."""
    import torch
    from recompute_check import checkpointed

    kept: list[Any] = []
    leaves: list[Any] = []

    def layer(x: torch.Tensor) -> Any:
        # As a token dispatcher does: an attribute that holds the graph until the next forward.
        kept[:] = [x * 2.0]
        if torch.is_grad_enabled():
            leaves.append(kept[0].grad_fn.next_functions[0][0])
        return x * 2.0 + kept[0]

    checkpointed(layer, torch.ones(5, requires_grad=True) * 1.0).sum().backward()
    return sum(node.variable.untyped_storage().nbytes() for node in leaves if hasattr(node, "variable"))


#: Of patches that have none in their folder yet.
_HERE: dict[str, Contract] = {
    "megatron.agreement": Contract(check=megatron_agreement, before=("torch",)),
    "megatron.dynamic-cp-names": Contract(check=of_processes.megatron_dynamic_cp, starts=True),
    "megatron.recompute": Contract(check=megatron_recompute, before=("torch",)),
    "verl.dynamic-cp-loss": Contract(check=of_processes.verl_dynamic_cp, starts=True),
    "verl.fast-partitioner": Contract(check=verl_partitioner, before=("verl.protocol",)),
    "verl.offload-shared-storage": Contract(check=verl_offload, before=("verl.protocol",)),
    "verl.sft-balance": Contract(check=of_processes.verl_sft, starts=True),
    "verl.strict-token-budget": Contract(check=verl_budget, before=("verl.protocol",)),
}

#: Of each patch that comes with overlay, by its id.
CONTRACTS: dict[str, Contract] = {
    patch: found
    for patch in sorted(load_patches())
    if (found := contract_of(patch) or _HERE.get(patch)) is not None
}
