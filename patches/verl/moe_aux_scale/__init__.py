"""`verl.moe-aux-scale`: with Megatron's loss per token, too, gradients have the scale that verl counts on.

With `calculate_per_token_loss` Megatron adds gradients up over all ranks and micro-batches, and divides them
by the number of tokens that the loss function told it. The losses of a router come multiplied by their
tokens for that. verl tells it nothing, so nothing is divided. The schedule is handed a loss function that
tells it the tokens that the routers see, and a loss that is multiplied by them.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.verl.moe_aux_scale.fix import make_get, make_get_shared

_ENGINE = "verl.workers.engine.megatron.transformer_impl"
_SCHEDULE = f"{_ENGINE}:get_forward_backward_func"
_POSTPROCESS = f"{_ENGINE}:MegatronEngineWithLMHead.postprocess_micro_batch_func"
_COUNT = f"{_ENGINE}:MegatronEngine._routed_num_tokens"

PATCH = Patch(
    id="verl.moe-aux-scale",
    summary="With calculate_per_token_loss, too, gradients and router losses have their scale",
    why=(
        "With calculate_per_token_loss Megatron adds gradients up over all ranks and divides them by the "
        "tokens that the loss function told it. verl up to 0.8 tells it none. So the gradient of verl's loss "
        "is too large by the data parallel size (from 0.7 on times the context parallel size), and that of a "
        "router's auxiliary losses and z-loss by the number of all tokens, so that little is left of the "
        "loss of the policy beside them. Adam hides a size that stays the same, but not that balance. "
        "With the patch Megatron is told the tokens that the routers see, as in verl 0.9, and gets the loss "
        "times these: the gradient of verl's loss is as without the setting, and router losses are the mean "
        "over micro-batches, each by its tokens, so that a z-loss is the mean over all. Tokens that fill up "
        "packed sequences for tensor or context parallelism are not counted; without use_remove_padding, "
        "which verl 0.9 refuses here, the padding is. The losses of multi-token prediction are divided by "
        "the same number, and weigh less than their coefficient says where few tokens are trained on. "
        "Under tensor or context parallelism Megatron before 0.19 makes router losses too small besides: "
        "megatron.moe-aux-scale. Left alone are dynamic context parallelism, whose scale is that of "
        "verl.dynamic-cp-loss, and the legacy workers (0.7 with use_legacy_worker_impl other than disable)."
    ),
    evidence=(
        "verl 0.9.0 tells Megatron the tokens that the routers see too (#6836). Gradients are compared with "
        "one process (tests/distributed/test_verl_scales.py)."
    ),
    changes=("numbers",),
    met=(
        "calculate_per_token_loss=True in verl's Megatron engine, with several data or context parallel "
        "ranks, or with moe_aux_loss_coeff or moe_z_loss_coeff. override_transformer_config sets it, and "
        "Megatron-Bridge does for Qwen-VL models under context parallelism."
    ),
    upstream=("verl-project/verl#6836", "verl-project/verl#6609"),
    targets=one_target(
        VERL,
        variant(
            "0.6",
            replaced(_SCHEDULE, make_get_shared),
            _POSTPROCESS,
        ),
        variant(
            "0.7 and 0.8",
            replaced(_SCHEDULE, make_get),
            _POSTPROCESS,
        ),
        tells=(
            _COUNT,
            _ENGINE,
        ),
    ),
)
