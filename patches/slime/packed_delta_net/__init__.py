"""`slime.packed-delta-net`: a Gated DeltaNet layer starts each packed sample with an empty state."""

from functools import partial, wraps
from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches._rebound import rebound

_FORWARD = "slime_plugins.models.qwen3_next:Qwen3NextGatedDeltaNet.forward"
EFFECT = effect(__name__, "layer", did="kept samples apart in")


def make_forward(original: Any, module: Any) -> Any:
    """Tell the delta rule where samples begin, as slime tells the convolution before it."""

    @wraps(original)
    def forward(self: Any, hidden_states: Any, cu_seqlens: Any = None) -> Any:
        EFFECT.calls += 1
        EFFECT.changed += cu_seqlens is not None and len(cu_seqlens) > 2  # noqa: PLR2004 -- one sample has two bounds
        rule = partial(module.chunk_gated_delta_rule, cu_seqlens=cu_seqlens)
        return rebound(original, module, chunk_gated_delta_rule=rule)(self, hidden_states, cu_seqlens)

    return forward


PATCH = Patch(
    id="slime.packed-delta-net",
    summary="Gated DeltaNet layers of Qwen3-Next keep the samples of a micro-batch apart",
    why="slime packs samples into one row. Up to 0.2.2 it doesn't tell the gated delta rule of Qwen3-Next "
    "where they begin: the state of each sample leaks into the next one, whose log-probabilities and "
    "gradients then depend on a stranger. With the patch each sample begins with an empty state.",
    changes=("numbers",),
    met="Qwen3-Next, with several samples in a micro-batch.",
    upstream=("THUDM/slime#1686",),
    evidence="slime's commit 1d31a49 (in 0.2.3) hands on the same bounds.",
    targets=one_target(SLIME, variant("0.2", replaced(_FORWARD, make_forward))),
)
