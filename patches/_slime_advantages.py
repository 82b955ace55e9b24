"""Where the patches of slime's advantages meet: two patches cannot claim one site.

`slime.whiten-over-cp` stands around slime's `compute_advantages_and_returns`. `slime.masked-gae` is asked
there, before slime puts rewards on tokens: its estimator has under `RUN` what is to be run instead.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

RUN = "overlay_slime_run"


def compute(original: Callable[..., Any], module: ModuleType, args: Any, rollout_data: Any) -> Any:
    """Run slime's `compute_advantages_and_returns`, or what the estimator of another patch makes of it."""
    run = getattr(module.get_advantages_and_returns_batch, RUN, None)
    return original(args, rollout_data) if run is None else run(original, args, rollout_data)
