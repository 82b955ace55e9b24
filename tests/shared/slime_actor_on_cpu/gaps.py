"""What slime and Megatron take for granted of the image that they come in.

* slime's process groups hand on each of torch's collectives by its name to the group that they hold. A name
  that torch has got since slime's image is not handed on, and is found on torch's own class, with no backend.
* The router of Megatron's experts asks for a name that is only there with Transformer Engine.
* Megatron's interleaved pipeline lets go of an activation while it is being sent (NVIDIA/Megatron-LM#4047).
  gloo reads it when the receiver asks for it, and may find other numbers there: the gradient of one run in
  dozens was off by 3e-2. Here the last ones are kept.
"""

from __future__ import annotations

from collections import deque
from typing import Any

#: Of torch 2.13; slime's images have 2.9 and 2.11.
NEWER = ("all_gather_single", "reduce_scatter_single", "all_to_all_single")


def fill() -> None:
    """Fill the gaps, for as long as the process lasts."""
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer.moe import moe_utils
    from slime.utils.reloadable_process_group import ReloadableProcessGroup

    for name in NEWER:
        if name not in vars(ReloadableProcessGroup):
            setattr(ReloadableProcessGroup, name, _handed(name))
    vars(moe_utils).setdefault("te_general_gemm", None)
    schedules.deallocate_output_tensor = _kept(schedules.deallocate_output_tensor)


def _kept(deallocate: Any) -> Any:
    """Return the function that frees an activation, with the last ones held until they have been sent."""
    sent: deque[Any] = deque(maxlen=64)

    def deallocate_output_tensor(out: Any, *given: Any, **more: Any) -> None:
        if out is not None:
            sent.append(out.data)
        deallocate(out, *given, **more)

    return deallocate_output_tensor


def _handed(name: str) -> Any:
    def collective(self: Any, *args: Any, **more: Any) -> Any:
        return getattr(self.group, name)(*args, **more)

    collective.__name__ = name
    return collective
