"""`megatron.param-groups-by-lr`: parameter groups that differ by their learning rate alone are resumed apart.

Two methods pair an optimizer's groups with those of a checkpoint. One is answered for where identifiers tie.
The other is part of a long one: what calls that is wrapped, and the groups that it got wrong are put right.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, Present, one_target, replaced, variant
from overlay.patches.megatron.param_groups_by_lr.fix import make_load, make_reorder

_REORDER = "megatron.core.optimizer.optimizer:MegatronOptimizer._filter_and_reorder_param_groups"
_CHAINED = "megatron.core.optimizer.optimizer:ChainedOptimizer.load_state_dict"
#: Relied on as a whole: it pairs by identifiers, keeps the order of groups, and takes the rest elsewhere.
_LOAD = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.load_state_dict"
#: By which groups are told what is theirs. Where it is missing, groups differ by identifiers alone.
_KEY = "megatron.core.optimizer.optimizer_config:ParamKey"

PATCH = Patch(
    id="megatron.param-groups-by-lr",
    summary="A resumed job keeps the learning rate of each parameter group",
    why=(
        "Megatron pairs the parameter groups of an optimizer with those of a checkpoint by four identifiers "
        "that do not include the learning rate. Since 0.16 groups may differ by that alone: with "
        "decoupled_lr, the embedding and the output layer from all other weights. Then all of them get what "
        "was saved of the last. The distributed optimizer goes on, without a word, and trains the whole "
        "model at the rate of the embedding or the other way round. Others refuse to load, or lose their "
        "moments. With the patch each group gets what was saved of it."
    ),
    changes=("numbers", "crashes"),
    met=(
        "A job that is resumed with its optimizer and decoupled_lr, or any other parameter groups that "
        "differ in max_lr, min_lr, start_wd or end_wd alone."
    ),
    evidence=(
        "megatron-core 0.19 pairs groups by their rates as well (NVIDIA/Megatron-LM#4705). What is loaded "
        "is compared with what was saved."
    ),
    upstream=("NVIDIA/Megatron-LM#4705",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.16",
            replaced(_REORDER, make_reorder),
            replaced(_CHAINED, make_load),
            _LOAD,
            Present(site=_KEY),
        ),
        tells=(_KEY,),
    ),
)
