"""A checkpoint loads whose common state has the list of a rank with more weights."""

import tempfile
from pathlib import Path
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.offloaded import Trained, kinds, state_of, two_memories

KIND = "dp_reshardable"


@parts.on_one_rank
def wrong(_seed: str) -> str:
    """Return for which list a checkpoint doesn't load, or what of it is not loaded."""
    from megatron.core.dist_checkpointing.strategies import common

    if KIND not in kinds() or not hasattr(common, "TorchCommonLoadStrategy"):
        return ""  # from 0.17 on, what is common has another place
    for fraction in (1.0, 0.5):
        for chained in (False, True):
            for more in (None, 0, 3):
                with two_memories():
                    found = _resumed(fraction, more, chained=chained)
                if found:
                    weights = "none" if more is None else f"{more} weights more"
                    return f"{fraction:.0%} offloaded, a list of {weights}: {found}"
    return ""


def _resumed(fraction: float, more: int | None, *, chained: bool) -> str:
    """Save, put the list into what is common, and load; return what is wrong with what was loaded.

    A rank's list has the step of each weight, and of each space between them an entry without one.
    """
    import torch
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.strategies.common import COMMON_STATE_FNAME

    trained, other = (Trained(fraction, aware=True) for _ in range(2))
    for _ in range(3):
        trained.step(trained.gradients())
    with tempfile.TemporaryDirectory() as folder:
        try:
            state = _put(state_of(trained, KIND, is_loading=False), chained=chained)
        except AssertionError:
            return ""  # 0.15 can't save it
        dist_checkpointing.save(state, folder)
        asked = _put(state_of(other, KIND, is_loading=True), chained=chained)
        if more is not None:
            file = Path(folder, COMMON_STATE_FNAME)
            common = torch.load(file, weights_only=False)
            both = (common["optimizer"], asked["optimizer"])
            inner, own = (one[1] if chained else one for one in both)
            rows = [{"step": torch.tensor(3.0)}, {}] * (4 + more)
            buckets = own["param_state"][0]
            inner["param_state"] = {0: {key: [rows] * len(all_) for key, all_ in buckets.items()}}
            torch.save(common, file)
        try:
            loaded = dist_checkpointing.load(asked, folder)["optimizer"]
        except ValueError as error:
            return f"{type(error).__name__}: {error}"
    other.optimizer.load_state_dict(loaded[1] if chained else loaded)
    for mine, its in zip(
        *(list(one.optimizer.optimizer.state.values()) for one in (trained, other)), strict=True
    ):
        if not all(torch.equal(mine[key], its[key]) for key in ("exp_avg", "exp_avg_sq")):
            return "other moments"
    return ""


def _put(state: dict[str, Any], *, chained: bool) -> dict[str, Any]:
    """Put the state of an optimizer where it is if there are several, as of experts and the others."""
    return {**state, "optimizer": {1: state["optimizer"]}} if chained else state


CONTRACT = parts.contract("megatron.offloaded-common-state", wrong)
