"""`slime.tool-turn-mask`: results of tools that follow each other are one turn, as in the chat template.

slime tokenises a conversation message by message. The method that does so for Qwen3 is wrapped: it gets such
results as one message, and a tokenizer that takes that apart again.
"""

from __future__ import annotations

from overlay.compat.projects import SLIME
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.slime.tool_turn_mask.fix import make_mask

_MASK = "slime.utils.mask_utils:MultiTurnLossMaskGenerator.gen_multi_turn_loss_mask_qwen3"

PATCH = Patch(
    id="slime.tool-turn-mask",
    summary="Qwen3 SFT: results of tools that follow each other are one turn",
    why=(
        "For SFT with --loss-mask-type qwen3, slime tokenises a conversation message by message. Qwen3's "
        "template puts the results of tools that follow each other into one user turn, and slime gives each "
        "a turn of its own: after parallel tool calls the model is trained on a conversation that it never "
        "sees at inference. With the patch the tokens are those of the template, as in slime after 0.3.1. "
        "--loss-mask-type qwen, which has the same habit there too, is not changed."
    ),
    changes=("numbers",),
    met="SFT with --loss-mask-type qwen3 on conversations in which results of tools follow each other.",
    upstream=("THUDM/slime#2264", "THUDM/slime#2263"),
    evidence=(
        "slime's commit f033ebf (#2264, after 0.3.1) renders results of tools that follow each other in "
        "one call of the chat template."
    ),
    targets=one_target(
        SLIME,
        variant(
            "0.2.0",
            replaced(_MASK, make_mask),
        ),
        variant("0.2.2", replaced(_MASK, make_mask)),
    ),
)
