"""`verl.moe-aux-scale`: with Megatron's loss per token, too, the gradient is the one that verl's losses ask for.

With `calculate_per_token_loss` Megatron adds gradients up over all ranks and micro-batches, and divides them
by the number of tokens that the loss function told it. The losses of a router come multiplied by their
tokens for that. verl tells it nothing, so nothing is divided. The schedule is handed a loss function that
tells it the tokens that the routers see, and a loss that is multiplied by them.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Absent, Patch, Present, Removal, Target, known, replaced, variant
from overlay.patches.verl.moe_aux_scale.fix import make_get

_ENGINE = "verl.workers.engine.megatron.transformer_impl"
_SCHEDULE = f"{_ENGINE}:get_forward_backward_func"
_POSTPROCESS = f"{_ENGINE}:MegatronEngineWithLMHead.postprocess_micro_batch_func"
_COUNT = f"{_ENGINE}:MegatronEngine._routed_num_tokens"

PATCH = Patch(
    id="verl.moe-aux-scale",
    revision=1,
    summary="With calculate_per_token_loss, too, gradients and router losses have their scale",
    why=("TODO"),
    changes=("numbers",),
    met=("TODO"),
    upstream=("verl-project/verl#6836", "verl-project/verl#6609"),
    remove=Removal(
        version="0.9.0",
        when="verl tells Megatron the tokens of a micro-batch",
        test="tests/real/test_verl_moe_aux.py::test_upstream_alone_has_the_gradient_of_one_process",
    ),
    targets=(
        Target(
            project=VERL,
            variants=(
                variant(
                    "0.6 to 0.8",
                    ">=0.6.0.dev0,<0.10.0.dev0",
                    replaced(_SCHEDULE, make_get, "6814d4fe2233"),
                    # Only relied on, but for what a digest alone says: that its loss is one for an average.
                    # 0.6.0; 0.6.1; 0.7.0 and 0.7.1; 0.8.0
                    known(_POSTPROCESS, "94fc38adf46e", "b560f709186d", "ed176e944e1f", "2786d4859a7c"),
                ),
                variant(
                    "0.9",
                    ">=0.9.0.dev0",
                    Present(site=_COUNT),
                    verdict="fixed-upstream",
                    reason="verl 0.9 tells Megatron the tokens of a micro-batch",
                ),
                variant(
                    "without the engine",
                    "<0.6.0.dev0",
                    Absent(site=_ENGINE),
                    verdict="not-affected",
                    reason="the Megatron engine came with verl 0.6",
                ),
            ),
        ),
    ),
)
