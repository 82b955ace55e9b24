"""`megatron.cp-comm-type-by-layer`: each layer gets the communication type that the list has for it.

The constructor of a layer is wrapped: while it runs, the list of the configuration counts from one, as
layers do.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.megatron.cp_comm_type_by_layer.fix import make_init

_INIT = "megatron.core.transformer.transformer_layer:TransformerLayer.__init__"

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
    targets=one_target(
        MEGATRON,
        variant("0.12", replaced(_INIT, make_init)),
    ),
)
