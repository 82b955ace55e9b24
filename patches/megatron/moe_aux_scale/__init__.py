"""`megatron.moe-aux-scale`: auxiliary losses of a router weigh what their coefficients say, in every layout.

A router multiplies its loss by the tokens of one rank, and the gradient is divided by those of all. Loss and
coefficient are both multiplied by what is missing: the gradient grows, and what is reported, their quotient,
stays. Where that is one rank's, Megatron's tracker is told to average it.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.effect import Figure, effect
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.megatron.moe_aux_scale.fix import (
    make_apply_cp,
    make_attach,
    make_attach_cp,
    make_attach_masked,
    make_attach_rc,
    make_sequences,
    make_z_loss,
    make_z_loss_cp,
)

_ROUTER = "megatron.core.transformer.moe.router:TopKRouter"
_ATTACH = f"{_ROUTER}.attach_and_log_load_balancing_loss"
_Z_LOSS = f"{_ROUTER}.apply_z_loss"
_SEQUENCES = f"{_ROUTER}._apply_seq_aux_loss"
# With a padding mask it returns the tokens of all ranks for those of one: that is relied on.
_COUNT = "megatron.core.transformer.moe.moe_utils:get_tokens_per_expert_and_token_count"
# By what the schedule scales the losses of all routers decides what is missing, and is a line of either.
_STEP = "megatron.core.pipeline_parallel.schedules:forward_step"
_CALC = f"{_STEP}_calc_loss"
# What averages the report over the group that it is told.
_REDUCE = "megatron.core.transformer.moe.moe_utils:reduce_aux_losses_tracker_across_ranks"
_SYNC = "megatron.core.transformer.moe.moe_logging:MoEMetricsTracker._sync_metrics"
EFFECT = effect(
    __name__,
    "loss",
    Figure(name="factor", says="the most by which one would have been too small", combine="max"),
    did="scaled",
    then="without it up to {factor} times too small",
)

PATCH = Patch(
    id="megatron.moe-aux-scale",
    revision=3,
    summary="Auxiliary and z-losses of MoE routers with the weight that their coefficients say",
    why=(
        "The gradient of a router's auxiliary losses depends on the layout of the ranks. With "
        "calculate_per_token_loss it is too small by the tensor times the context parallel size, from 0.16 "
        "on that of seq_aux_loss by the micro-batch size as well, and from 0.19 on too large with a padding "
        "mask. Without it, it is too small by the context parallel size before 0.16. What is logged is the "
        "loss of one data parallel rank before 0.14, and the z-loss of one rank's tokens before 0.19. With "
        "the patch both are those of one process, in a running job too: scale the coefficients to keep the "
        "balance that it has. The gradient of global_aux_loss stays too small by the data parallel size, and "
        "as it is with a padding mask, as does the report of a z-loss with one."
    ),
    changes=("numbers",),
    met=(
        "moe_aux_loss_coeff or moe_z_loss_coeff with calculate_per_token_loss and tensor or context "
        "parallelism (before 0.19; later with a padding mask), or without it and with context parallelism "
        "(before 0.16). The report is off with data parallelism too (before 0.14; a z-loss in 0.16 and "
        "0.17)."
    ),
    opt_in=True,
    evidence=(
        "Takes the weight of one process for the coefficient. A running job may have chosen its coefficient "
        "against the gradient that it got."
    ),
    upstream=(
        "NVIDIA/Megatron-LM#5047",
        "NVIDIA/Megatron-LM#2217",
        "NVIDIA/Megatron-LM#5798",
        "NVIDIA/Megatron-LM#7481",
        "NVIDIA/Megatron-LM#7452",
    ),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            replaced(f"{_ROUTER}.apply_load_balancing_loss", make_apply_cp),
            replaced(_Z_LOSS, make_z_loss_cp),
            _STEP,
            _REDUCE,
        ),
        variant("0.14", replaced(_ATTACH, make_attach_cp), replaced(_Z_LOSS, make_z_loss_cp), _CALC, _REDUCE),
        variant(
            "before 0.16", replaced(_ATTACH, make_attach_rc), replaced(_Z_LOSS, make_z_loss), _CALC, _REDUCE
        ),
        variant(
            "0.16",
            replaced(_ATTACH, make_attach),
            replaced(_SEQUENCES, make_sequences),
            replaced(_Z_LOSS, make_z_loss),
            _COUNT,
            _CALC,
            _REDUCE,
        ),
        variant(
            "0.18",
            replaced(_ATTACH, make_attach),
            replaced(_SEQUENCES, make_sequences),
            replaced(_Z_LOSS, make_z_loss),
            _COUNT,
            _CALC,
            _SYNC,
        ),
        variant("0.19", replaced(_ATTACH, make_attach_masked), _COUNT),
    ),
)
