"""`megatron.moe-aux-scale`: auxiliary losses of a router weigh what their coefficients say, in every layout.

A router multiplies its loss by the tokens of one rank, and the gradient is divided by those of all. Where a
method is given loss and coefficient, or reads the coefficient itself, both are multiplied by what is missing:
the gradient grows, and what is reported, their quotient, stays. Where that is one rank's, Megatron's tracker
is told to average it. It is selected by name alone: the coefficient of a running job has been chosen against
the gradient that it got.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, Removal, known, one_target, replaced, variant
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

PATCH = Patch(
    id="megatron.moe-aux-scale",
    revision=3,
    summary="Auxiliary and z-losses of MoE routers with the weight that their coefficients say",
    why=(
        "The gradient of a router's auxiliary losses depends on the layout of the ranks. With "
        "calculate_per_token_loss it is too small by the tensor times the context parallel size, and that of "
        "seq_aux_loss by the micro-batch size as well, from 0.16 on. Without it, it is too small by the "
        "context parallel size before 0.16. With a padding mask and calculate_per_token_loss it is too large "
        "by the tensor times the context parallel size from 0.19 on, as a rank's number of tokens has been "
        "overwritten with that of all. What is logged is the loss of one data parallel rank before 0.14, and "
        "the z-loss of one rank's tokens before 0.19. With the patch both are those of one process: the "
        "gradient is so many times as large as it was, or as small, in a running job too. Scale the "
        "coefficients by as much to keep the balance that the job has. The gradient of global_aux_loss stays "
        "too small by the data parallel size, and with a padding mask it is left as it is, as is the report "
        "of a z-loss with one: the mean of ranks' means."
    ),
    changes=("numbers",),
    met=(
        "moe_aux_loss_coeff or moe_z_loss_coeff with calculate_per_token_loss and tensor or context "
        "parallelism (before 0.19; later with a padding mask), or without it and with context parallelism "
        "(before 0.16). The report is off with data parallelism too (before 0.14; a z-loss in 0.16 and 0.17)."
    ),
    opt_in=True,
    evidence=(
        "Takes the weight of one process for the coefficient. A running job may have chosen its "
        "coefficient against the gradient that it got."
    ),
    upstream=(
        "NVIDIA/Megatron-LM#5047",
        "NVIDIA/Megatron-LM#2217",
        "NVIDIA/Megatron-LM#5798",
        "NVIDIA/Megatron-LM#7481",
        "NVIDIA/Megatron-LM#7452",
    ),
    remove=Removal(
        when="the gradient of a router's auxiliary losses is that of one process",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12",
            ">=0.12.0.dev0,<0.14.0.dev0",
            replaced(f"{_ROUTER}.apply_load_balancing_loss", make_apply_cp, "dd18e0ef404d", "9dc0d437b782"),
            replaced(_Z_LOSS, make_z_loss_cp, "63f797ce3e81", "80397b8cf131"),
            known(_STEP, "241ca4edb8d8", "faf3bdaa7af9"),
            known(_REDUCE, "dc381091e2ef", "7c3cf5108818"),
        ),
        variant(
            "0.14",
            ">=0.14.0.dev0,<0.16.0.dev0",
            replaced(_ATTACH, make_attach_cp, "3b0814abc76e"),
            replaced(_Z_LOSS, make_z_loss_cp, "80397b8cf131"),
            known(_CALC, "afc656bf025d", "b2870242a262"),
            known(_REDUCE, "211cfd790a58"),
        ),
        # Commits before 0.16, in images of slime and verl.
        variant(
            "before 0.16",
            ">=0.16.0.dev0,<0.17.0.dev0",
            replaced(_ATTACH, make_attach_rc, "3b0814abc76e"),
            replaced(_Z_LOSS, make_z_loss, "80397b8cf131"),
            known(_CALC, "72007d33f7a8"),
            known(_REDUCE, "01683de11c6c"),
        ),
        variant(
            "0.16",
            ">=0.16.0.dev0,<0.18.0.dev0",
            replaced(_ATTACH, make_attach, "cccc6604c022", "c5ddeb08145e"),
            replaced(_SEQUENCES, make_sequences, "56ddc1f9e8d7"),
            replaced(_Z_LOSS, make_z_loss, "8230790b10c3", "822c6e5279de"),
            known(_COUNT, "e1f3c743e783"),
            known(_CALC, "cc461b7035a7", "93b0f0033b2b"),
            known(_REDUCE, "33e24e04de2b", "335be2bd7025"),  # a commit before 0.16; 0.16, 0.17
        ),
        variant(
            "0.18",
            ">=0.18.0.dev0,<0.19.0.dev0",
            replaced(_ATTACH, make_attach, "778f5ca7578a"),
            replaced(_SEQUENCES, make_sequences, "56ddc1f9e8d7"),
            replaced(_Z_LOSS, make_z_loss, "924c24ceeb49"),
            known(_COUNT, "e1f3c743e783"),
            known(_CALC, "ba8c7d97ff28"),
            known(_SYNC, "9e185baa603c"),
        ),
        variant(
            "0.19",
            ">=0.19.0.dev0,<0.21.0.dev0",
            replaced(_ATTACH, make_attach_masked, "5d6309eb88df"),
            known(_COUNT, "e1f3c743e783"),
        ),
    ),
)
