"""`slime.memory-probe`: slime asks for free memory before one collective in 64, not before each."""

from functools import wraps
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, Present, one_target, replaced, variant
from overlay.patches._rebound import rebound

_GROUPS = "slime.utils.reloadable_process_group"
_FORWARD = f"{_GROUPS}:ReloadableProcessGroup._fwd"
_PROBE = f"{_GROUPS}:_wrap_low_level_call"
#: Of how many collectives one is probed before.
_EVERY = 64
EFFECT = effect(__name__, "collective", did="asked for no free memory before")


def _now_and_then(module: Any) -> Any:
    """Return slime's context of a collective, which probes before the first, and then before each 64th."""

    def wrap_low_level_call(check_memory: bool = True) -> Any:
        probed = check_memory and EFFECT.calls % _EVERY == 0
        EFFECT.calls += check_memory
        EFFECT.changed += check_memory and not probed
        return module._wrap_low_level_call(check_memory=probed)  # noqa: SLF001 -- it tells of errors too

    return wrap_low_level_call


def make(original: Any, module: Any) -> Any:
    """Build slime's own function over another probe."""

    @wraps(original)
    def replacement(*given: Any, **named: Any) -> Any:
        return own(*given, **named)

    own = rebound(original, module, _wrap_low_level_call=_now_and_then(module))
    return replacement


PATCH = Patch(
    id="slime.memory-probe",
    summary="slime asks for free memory before one collective in 64, not before each",
    why="Before each collective slime asks the device and torch's allocator for free memory, and clears "
    "caches below 3 GB. With expandable segments that takes longer the more segments there are: a weight "
    "update of 143 s was reported to grow to 1,596 s, and micro-batches to take twice as long. With the "
    "patch it asks before the first collective, and then before each 64th.",
    changes=("speed",),
    opt_in=True,
    met="Training on Megatron with process groups of NCCL, most of all with "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
    upstream=("THUDM/slime#2268", "THUDM/slime#2269"),
    evidence="It trades speed for a check that may come up to 63 collectives late, where NCCL needs memory "
    "that torch's caches hold.",
    targets=one_target(
        SLIME,
        variant(
            "0.3.1",
            replaced(f"{_GROUPS}:monkey_patch_torch_dist", make),
            replaced(_FORWARD, make),
            # Before it, slime.group-timeouts replaces one of them.
            Present(site=f"{_GROUPS}:register_default_process_group"),
        ),
        tells=(_GROUPS,),
    ),
)
