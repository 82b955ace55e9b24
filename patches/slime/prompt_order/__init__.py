"""`slime.prompt-order`: prompts keep the order of the data when long ones are filtered out."""

from typing import Any

from overlay.compat.projects import SLIME
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

_FILTER = "slime.utils.data:filter_long_prompt"
EFFECT = effect(__name__, "data set", did="put back the order of")


@around
def filter_long_prompt(original: Any, origin_samples: Any, *given: Any, **named: Any) -> Any:
    """Return the samples whose prompts are short enough, in the order in which they came."""
    kept = original(origin_samples, *given, **named)
    places = {id(sample): place for place, sample in enumerate(origin_samples)}
    found = sorted(kept, key=lambda sample: places[id(sample)])
    EFFECT.calls += 1
    EFFECT.changed += any(one is not other for one, other in zip(found, kept, strict=True))
    return found


PATCH = Patch(
    id="slime.prompt-order",
    summary="Filtering long prompts keeps the order of the data set",
    why="With a processor, slime looks at prompts without images first, and at those with images then; what "
    "is short enough comes in that order. Without --rollout-shuffle a job trains on all text before any "
    "image, and evaluation lists its samples so. With the patch the order is that of the data. "
    "A checkpoint counts prompts in the order of its job: a job that began without the patch should get it "
    "between two epochs, or some prompts come twice in that epoch and others not at all.",
    changes=("numbers",),
    met="--rollout-max-prompt-len, or --eval-max-prompt-len, with a data set that has prompts with images "
    "among prompts without.",
    upstream=("THUDM/slime#2237",),
    evidence="slime main (after 0.3.1) sorts what it keeps in the same way.",
    targets=one_target(SLIME, variant("0.2.3", replaced(_FILTER, filter_long_prompt))),
)
