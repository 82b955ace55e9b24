"""`megatron.cp-comm-type-by-layer`: each layer gets the communication type that the list has for it.

The constructor of a layer is wrapped: while it runs, the list of the configuration counts from one, as
layers do.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, Removal, fixed, known, one_target, replaced, variant
from overlay.patches.megatron.cp_comm_type_by_layer.fix import make_init

_INIT = "megatron.core.transformer.transformer_layer:TransformerLayer.__init__"

#: By release: 0.12, 0.13, 0.14.0rc7, 0.14, commits up to December 2025, 0.15, 0.16.
_FROM_ONE = (
    *("9c580d5e4442", "a6fc1216df6a", "f00d472b86ba", "b131d86742f6"),
    *("247efef1fc7e", "cd29d1f3c86b", "4c4d66ea1c32"),
    # Under slime's diffs: in its images up to 0.2.1, of 0.2.2 to 0.2.4, from 0.3.0 on.
    *("a007b7230a57", "45d3efba9689", "af56363af4d5"),
)

PATCH = Patch(
    id="megatron.cp-comm-type-by-layer",
    summary="Each layer gets the context parallel communication type that the list has for it",
    why=(
        "cp_comm_type may be a list with a type for each layer. Until 0.16.1 Megatron looks a layer up by "
        "its number, which counts from one, in a list that counts from zero: every layer has the type of "
        "the next one, and the last has none, an IndexError on the rank that builds it. With the patch "
        "each layer has its own, as from 0.17 on."
    ),
    changes=("crashes", "speed"),
    met="cp_comm_type as a list, with a context parallel size above 1.",
    evidence=(
        "megatron-core 0.17 takes the item of a layer at its number less one (NVIDIA/Megatron-LM#3389)."
    ),
    upstream=("NVIDIA/Megatron-LM#3389",),
    remove=Removal(
        version="0.17.0",
        when="megatron-core 0.17 counts the list from the first layer",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        MEGATRON,
        variant("0.12", ">=0.12.0.dev0,<0.17.0.dev0", replaced(_INIT, make_init, *_FROM_ONE)),
        fixed(
            "0.17",
            ">=0.16.0.dev0",
            # 0.17; 0.18; 0.19; main and dev of August 2026, and a commit before
            known(
                _INIT, *("ce48387ece35", "92ea4cd9161a", "a72f78c6f823"), *("05b792bacc75", "f9c7fefcfb34")
            ),
            reason="this Megatron counts the list from the first layer",
        ),
    ),
)
