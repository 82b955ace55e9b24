"""`verl.dynamic-cp-loss`: right gradients, losses and outputs under dynamic context parallelism.

W is the number of data parallel ranks, all of which see the whole batch. Each micro-batch is dealt out to
subgroups of ranks, and a subgroup of C ranks computes its sequences with context parallelism C. Three facts
of upstream decide every factor:

* `postprocess_thd_engine` completes a sequence with the other ranks' detached outputs. So the loss of a rank
  is that of its whole subgroup, but its gradient is only that of its own shard, and the gradients of all
  W ranks add up to the gradient of the micro-batch, whatever C is.
* Megatron's data parallelism then averages over the W ranks (or adds up, with `calculate_per_token_loss`).
* Most of verl's losses are sums over sequences times `dp_size`, divided by
  `batch_num_tokens` or `global_batch_size`.

Hence the gradient of such a sum is right for every C with `batch_num_tokens` counted once and `dp_size` = W
(or 1), and a rank's share of a loss is that loss divided by C. Any other loss (`_dynamic_cp/losses.py` knows
which are sums) is computed by each rank from the whole micro-batch, as one process does, times the same
factor (`_dynamic_cp/whole.py`), and its share is that loss divided by W.
"""

from overlay.compat.projects import VERL
from overlay.effect import Figure, effect
from overlay.patch import Absent, Patch, one_target, replaced, variant
from overlay.patches._dynamic_cp.groups import make_device_mesh
from overlay.patches.verl.dynamic_cp_loss.fix import (
    get_data_parallel_group,
    is_source,
    make_forward_backward,
    make_postprocess,
    make_prepare,
    make_split,
)

_IMPL = "verl.workers.engine.megatron.transformer_impl"

EFFECT = effect(
    __name__,
    "micro-batch",
    Figure(name="least", says="the least factor that verl's gradient would have had", combine="min"),
    Figure(name="most", says="the greatest", combine="max"),
    did="scaled",
    always=True,
    then="without it gradients of {least} to {most} times their size",
)

#: What is replaced, and what the patch relies on. Losses are not here: one is looked at when the engine is
#: given it, and if it is not known to be a sum, it is computed from the whole.
_COMMON = (
    replaced("verl.utils.megatron_utils:dynamic_cp_split_batch", make_split),
    replaced(f"{_IMPL}:prepare_micro_batches", make_prepare),
    replaced(f"{_IMPL}:MegatronEngine.forward_backward_batch", make_forward_backward),
    replaced(f"{_IMPL}:MegatronEngineWithLMHead.postprocess_micro_batch_func", make_postprocess),
    replaced(f"{_IMPL}:MegatronEngine.is_mp_src_rank_with_outputs", is_source),
    replaced(f"{_IMPL}:MegatronEngine.get_data_parallel_group", get_data_parallel_group),
    replaced(f"{_IMPL}:MegatronEngine._init_device_mesh", make_device_mesh),
    f"{_IMPL}:MegatronEngine.get_data_parallel_size",
    f"{_IMPL}:MegatronEngine.get_data_parallel_rank",
    "verl.workers.engine.utils:prepare_micro_batches",
    "verl.workers.engine.utils:postprocess_batch_func",
    "verl.utils.metric.utils:Metric",
    f"{_IMPL}:MegatronEngineWithLMHead.forward_step",
    "verl.models.mcore.util:preprocess_thd_engine",
    "verl.models.mcore.util:postprocess_thd_engine",
    "verl.models.mcore.model_forward:gptmodel_forward_model_engine",
    "verl.workers.engine_workers:TrainingWorker._postprocess_output",
)
#: Methods of their own on main: from 30 June 2026 on what becomes of logits, and from 13 July on, with a loss
#: per token, how many tokens Megatron is told of.
_LOGITS = f"{_IMPL}:MegatronEngineWithLMHead._lm_head_logits_processor"
_ROUTED = f"{_IMPL}:MegatronEngine._routed_num_tokens"

PATCH = Patch(
    id="verl.dynamic-cp-loss",
    summary="Right gradients, losses and outputs under dynamic context parallelism",
    why="With dynamic_context_parallel=True on W data parallel ranks, verl 0.8 trains with a gradient that "
    "is W times (few sequences) or W squared times too small, reports a wrong loss, fails when a subgroup "
    "gets no sequence, runs small batches without context parallelism, and collects outputs W times. With "
    "the patch each subgroup has work, every scale is right for any mix of sizes, and outputs, losses and "
    "metrics are collected once. Settings that dynamic context parallelism cannot honour are refused.",
    evidence="Gradients, losses and outputs are compared with one process that computes the whole batch, on "
    "2 to 8 gloo ranks (tests/distributed/test_dynamic_cp.py).",
    changes=("numbers", "crashes"),
    met="dynamic_context_parallel=True in the Megatron engine.",
    upstream=tuple(f"verl-project/verl#{number}" for number in (5057, 5869, 6786, 6555)),
    targets=one_target(
        VERL,
        variant("0.8", *_COMMON, Absent(site=_LOGITS)),
        variant("0.9.dev, July 2026", *_COMMON, _LOGITS, Absent(site=_ROUTED)),
        variant("0.9.dev, August 2026", *_COMMON, _LOGITS, _ROUTED),
        # Megatron's own scheduler, on 11 August.
        tells=("verl.utils.dynamic_cp_scheduler",),
    ),
)
