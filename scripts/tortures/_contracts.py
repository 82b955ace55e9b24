"""The contracts of patches, each as a function that takes seconds on a CPU and says what does not hold.

They run in a process of their own, with one release first on the path and `tests/real` on it: what they look
at is what the tests of the patches look at, with fewer inputs. An exception is not caught here: a run that
ends with an error is not silent.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import overlay
import overlay.patch
from overlay.catalogue.registry import contract_of, load_patches
from tortures import _contracts_of_processes as of_processes

if TYPE_CHECKING:
    from collections.abc import Callable


class Contract(NamedTuple):
    """How a patch is held to what it promises."""

    #: Returns what does not hold, empty if all does.
    check: Callable[[str], str]
    #: Modules that take long, imported once before anything is changed: none that is patched or changed.
    before: tuple[str, ...] = ()
    #: Whether it starts programs: these see a change on disk, and none in this process.
    starts: bool = False


def _enabled(*patches: str) -> None:
    overlay.enable(list(patches), strict=True)


def _applied(*patches: str) -> None:
    """Raise unless the patches are in place: what overlay says of them is not silent."""
    states = {one.patch: one.state for one in overlay.status().patches}
    for patch in patches:
        if states[patch] != "applied":
            raise overlay.PatchError(f"{patch} is {states[patch]}")


def slime_partitioner(seed: str, package: str = "slime") -> str:
    """The same partitions as this very upstream makes without the patch, in less than half the calls."""
    import importlib

    from slime_on_cpu import stand_in
    from slime_partitioner_check import look

    stand_in(package)
    _enabled(f"{package}.fast-partitioner")
    module = importlib.import_module(f"{package}.utils.seqlen_balancing")
    _applied(f"{package}.fast-partitioner")
    ours = look(module, seed)
    overlay.disable()
    theirs = look(module, seed)
    same = [name for name in ours if name not in ("seconds", "calls") and ours[name] != theirs[name]]
    if same:
        return f"other partitions than without the patch ({', '.join(same)})"
    return "" if ours["calls"][1] < theirs["calls"][1] / 2 else "as slow as without the patch"


def slime_micro_batches(seed: str, *patches: str) -> str:
    """The budget is held, and with `slime.vpp-ceiling` the number is right for virtual stages."""
    import slime_cases
    from slime_check import splits
    from slime_on_cpu import import_slime

    from overlay.compat.cuda_on_cpu import cuda_on_cpu

    _enabled(*patches)
    with cuda_on_cpu():
        (data,) = import_slime("data")
        _applied(*patches)
        given = [one for one in slime_cases.cases(seed, 40) if len(one["ranks"][0]) < 100]
        if len(patches) == 1:
            given = [one for one in given if one["stages"] == one["group"] == 1]
        for case, found in zip(given, splits(data, given), strict=True):
            said = next((split for split in found if "error" in split), None)
            if said is not None and not slime_cases.is_impossible(case):
                raise RuntimeError(f"{said['error']}: {said['message']}")
            wrong = slime_cases.broken(case, found) if said is None else []
            if wrong:
                return f"{case['name']}: {wrong[0]}"
    return ""


def slime_ceiling(seed: str) -> str:
    """The same with both patches, of which one needs the other."""
    return slime_micro_batches(seed, "slime.capped-partitions", "slime.vpp-ceiling")


#: With what slime refuses fewer samples than the ranks, or than a multiple of the group.
_TOO_FEW = ("below the alignment threshold", "at least one sample")


def slime_schedule(seed: str, package: str = "slime") -> str:
    """The budget is held by FLOPs too (slime 0.3.1, and its fork)."""
    import importlib

    from slime_on_cpu import stand_in
    from slime_schedule_check import broken, cases, schedule

    stand_in(package)
    _enabled(f"{package}.capped-partitions")
    module = importlib.import_module(f"{package}.utils.dp_schedule")
    _applied(f"{package}.capped-partitions")
    for case in [one for one in cases(seed) if len(one["lengths"]) < 100][:60]:
        found = schedule(module, case)
        if "error" in found:
            if any(text in found["message"] for text in _TOO_FEW):
                continue
            raise RuntimeError(f"{found['error']}: {found['message']}")
        wrong = broken(case, found)
        if wrong:
            return f"{case['lengths']}: {wrong[0]}"
    return ""


def slime_capped(seed: str) -> str:
    """Whichever of the two there is."""
    from importlib.util import find_spec

    from slime_on_cpu import stand_in

    stand_in()
    if find_spec("slime.utils.dp_schedule"):
        return slime_schedule(seed)
    return slime_micro_batches(seed, "slime.capped-partitions")


def slime_loss(seed: str) -> str:
    """Log-probabilities, entropies, gradients and the loss are those of float64 (or the loss upstream's own).

    In the memory of one tensor of the logits' size, and without a gradient of a part of it.
    """
    import os

    os.environ["OVERLAY_TEST_SEED"] = seed
    from megatron_on_cpu import megatron
    from slime_on_cpu import import_slime

    _enabled("slime.loss-memory")
    with megatron():
        (module,) = import_slime("loss")
        _applied("slime.loss-memory")
        import loss_memory_cases as cases
        from loss_memory_check import CASES, Step

        shape = [(9, 4), (6, 3), (12, 11)]
        wrong = _off_outputs(cases, shape)
        for case in CASES:
            step = Step(module, case, 1024, 2048)
            if step.peak() > (1.1 if step.gradient else 0.2):
                return f"{case}: {step.peak():.2f} times the memory of the logits"
        return wrong or _off_losses(cases, shape)


#: Ways in which a loss is computed.
_WAYS: tuple[dict[str, Any], ...] = (
    {},
    {"entropy_coef": 0.1},
    {"entropy_coef": 0.1, "log_probs_chunk_size": 3},
)


def _off_outputs(cases: Any, shape: list[tuple[int, int]]) -> str:
    """Return which log-probabilities, entropies or gradients of them are not those of float64."""
    for changed in _WAYS:
        off = _off(cases.outputs(shape, **changed)["errors"])
        if off:
            return f"outputs with {changed}: {off}"
    return ""


def _off_losses(cases: Any, shape: list[tuple[int, int]]) -> str:
    """Return which loss is not that of float64, nor what this very upstream makes of it without the patch.

    What a loss is made of is upstream's, and another formula is no fault of the patch. Nothing is patched
    any more afterwards.
    """
    found = {str(changed): _off(cases.loss(shape, **changed)["errors"]) for changed in _WAYS}
    ours = {str(changed): cases.step(shape, **changed) for changed in _WAYS if found[str(changed)]}
    overlay.disable()
    for changed in _WAYS:
        if str(changed) not in ours:
            continue
        (loss, gradient), (other, rounded) = ours[str(changed)], cases.step(shape, **changed)
        near = cases.error(loss, other.double()) < _TOLERANCE
        if not near or not cases.error(gradient, rounded.double()) < _ROUNDED:
            return f"loss with {changed}: {found[str(changed)]}"
    return ""


_TOLERANCE = 1e-5
#: Of a gradient that Megatron's cross entropy has rounded to bfloat16, which the patch does not.
_ROUNDED = 2**-7


def _off(errors: dict[str, float]) -> dict[str, float]:
    return {key: value for key, value in errors.items() if not value < _TOLERANCE}


def miles_loss(seed: str) -> str:
    """What `slime_loss` asks of slime, of its fork."""
    import os

    os.environ.update(OVERLAY_TEST_SEED=seed, SLIME_FORK="miles")
    from megatron_on_cpu import megatron
    from slime_on_cpu import import_slime

    _enabled("miles.loss-memory")
    with megatron():
        import_slime("loss")
        _applied("miles.loss-memory")
        import loss_memory_cases as cases

        shape = [(9, 4), (6, 3), (12, 11)]
        wrong = _off_outputs(cases, shape)
        peak = cases.memory()["peak"]
        if peak > 1.1:
            return f"{peak:.2f} times the memory of the logits"
        return wrong or _off_losses(cases, shape)


def slime_whitening(seed: str, package: str = "slime") -> str:
    """Advantages are those of one process in float64, on one rank: what needs several is not seen here."""
    import os

    os.environ["OVERLAY_TEST_SEED"] = seed
    os.environ["SLIME_FORK"] = package.removeprefix("slime")
    from megatron_on_cpu import megatron
    from slime_on_cpu import import_slime

    _enabled(f"{package}.whiten-over-cp")
    with megatron():
        import_slime("loss")
        _applied(f"{package}.whiten-over-cp")
        from whiten_cases import BATCHES, whiten

        for batch in BATCHES["plain"]:
            for kind in ("rewards", "large rewards"):
                found = whiten([batch], kind)
                if not (found["finite"] and found["error"] <= 1e-5):
                    return f"{kind} of {batch}: {found}"
    return ""


def megatron_agreement(seed: str) -> str:
    """Ranks are compared once as the model parallel state is initialised, and all of it is there by then."""
    import megatron_on_cpu  # noqa: F401 -- before Megatron
    import torch.distributed as dist

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
    from megatron_on_cpu import megatron

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


_SLIME = Contract(slime_capped, ("megatron.core", "ray", "tensordict"))

_BESIDE: dict[str, Contract] = {
    "megatron.agreement": Contract(megatron_agreement, ("torch",)),
    "megatron.dynamic-cp-names": Contract(of_processes.megatron_dynamic_cp, starts=True),
    "megatron.recompute": Contract(megatron_recompute, ("torch",)),
    "miles.capped-partitions": _SLIME._replace(check=functools.partial(slime_schedule, package="miles")),
    "miles.fast-partitioner": _SLIME._replace(check=functools.partial(slime_partitioner, package="miles")),
    "miles.loss-memory": _SLIME._replace(check=miles_loss),
    "miles.whiten-over-cp": _SLIME._replace(check=functools.partial(slime_whitening, package="miles")),
    "slime.capped-partitions": _SLIME,
    "slime.vpp-ceiling": _SLIME._replace(check=slime_ceiling),
    "slime.fast-partitioner": _SLIME._replace(check=slime_partitioner),
    "slime.loss-memory": _SLIME._replace(check=slime_loss),
    "slime.whiten-over-cp": _SLIME._replace(check=slime_whitening),
}

#: Of each patch: the contract in its folder, or the one that is still here.
CONTRACTS: dict[str, Contract | overlay.patch.Contract] = {
    patch: found for patch in load_patches() if (found := contract_of(patch) or _BESIDE.get(patch))
}
