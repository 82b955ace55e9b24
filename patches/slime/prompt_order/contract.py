"""Of the prompts of a data set, those that are short enough come in the order of the data."""

import random
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

from overlay.compat.contracts.slime import BEFORE
from overlay.compat.slime_on_cpu import imported
from overlay.patch import Contract
from overlay.testing import with_patches

_LONGEST = 20


def wrong(seed: str) -> str:
    """Return which prompts come in another order than in the data."""
    data = imported("slime.utils.data")
    draw = random.Random(seed)
    vision: Any = ModuleType("slime.utils.processing_utils")
    vision.process_vision_info = lambda *_: {}
    sys.modules["slime.utils.processing_utils"] = vision

    def tokenizer(prompts: Any, **_options: Any) -> Any:
        return {"input_ids": [[0] * int(prompt) for prompt in prompts]}

    def processor(text: str, **_images: Any) -> Any:
        return {"input_ids": [[0] * int(text)]}

    for images in (0.0, 0.5, 1.0):
        for reader in (processor, None):
            samples = [
                SimpleNamespace(
                    prompt=str(draw.randint(1, 2 * _LONGEST)),
                    multimodal_inputs={"images": [1] if draw.random() < images else None},
                )
                for _ in range(30)
            ]
            for longest in (_LONGEST, 1, None):
                wanted = [one for one in samples if longest is None or int(one.prompt) <= longest]
                found = data.filter_long_prompt(samples, tokenizer, reader, longest)
                # Equal prompts are still others.
                if [*map(id, found)] != [*map(id, wanted)]:
                    places = [next(at for at, one in enumerate(samples) if one is kept) for kept in found]
                    return f"with images in {images:.0%} of the prompts they come in the order {places}"
    return ""


CONTRACT = Contract(check=with_patches(wrong, "slime.prompt-order"), before=BEFORE)
