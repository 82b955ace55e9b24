"""`verl.dynamic-cp-loss`: right gradients, losses and outputs under dynamic context parallelism.

W is the number of data parallel ranks, all of which see the whole batch. Each micro-batch is dealt out to
subgroups of ranks, and a subgroup of C ranks computes its sequences with context parallelism C. C may differ
from one subgroup to the next: nothing below takes it to be the same. Three facts of upstream decide every
factor:

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

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import (
    Absent,
    Known,
    Patch,
    Present,
    Removal,
    Replacement,
    Variant,
    not_affected,
    one_target,
    superseded,
)
from overlay.patches._dynamic_cp.groups import make_device_mesh
from overlay.patches.verl.dynamic_cp_loss.fix import (
    make_forward_backward,
    make_group,
    make_is_source,
    make_postprocess,
    make_prepare,
    make_split,
)

_IMPL = "verl.workers.engine.megatron.transformer_impl"

_UTIL, _FORWARD = "verl.models.mcore.util", "verl.models.mcore.model_forward:gptmodel_forward_model_engine"
_STEP = f"{_IMPL}:MegatronEngineWithLMHead.forward_step"
_BATCH = f"{_IMPL}:MegatronEngine.forward_backward_batch"
_POSTPROCESS = f"{_IMPL}:MegatronEngineWithLMHead.postprocess_micro_batch_func"

#: What the patch was written against, replaced or relied on (`overlay digest`). Losses are not here: one is
#: looked at when the engine is given it, and if it is not known to be a sum, it is computed from the whole.
_COMMON = {
    "verl.utils.megatron_utils:dynamic_cp_split_batch": ("cfcf4b7f5ee5",),
    f"{_IMPL}:MegatronEngine._init_device_mesh": ("c24edd396148",),
    f"{_IMPL}:MegatronEngine.is_mp_src_rank_with_outputs": ("3800e6ca46bb",),
    f"{_IMPL}:MegatronEngine.get_data_parallel_group": ("04fdb43748c4",),
    f"{_IMPL}:MegatronEngine.get_data_parallel_size": ("d1f42d0c1815",),
    f"{_IMPL}:MegatronEngine.get_data_parallel_rank": ("96c93824ecac",),
    f"{_IMPL}:prepare_micro_batches": ("a0b85c0eb86b",),
    "verl.workers.engine.utils:prepare_micro_batches": ("36bffe65723e",),
    "verl.workers.engine.utils:postprocess_batch_func": ("c067465b78e0",),
    "verl.utils.metric.utils:Metric": ("0bf8a789efc9",),
}
#: verl 0.8, and its main branch from 10 April to 30 June 2026.
_DIGESTS_0_8 = {
    **_COMMON,
    _BATCH: ("cd35af82f0ca",),
    _STEP: ("5f210cda7557", "84d0b1baba44", "20236087ea08", "f58d1af130a9"),
    _POSTPROCESS: ("2786d4859a7c",),
    f"{_UTIL}:preprocess_thd_engine": ("fd583ef1bff7", "dc33c06b6ed2"),
    f"{_UTIL}:postprocess_thd_engine": ("6af3a56cc2b2",),
    _FORWARD: ("295a23563376", "4e36274b307f", "fddd675eb05d"),
    "verl.workers.engine_workers:TrainingWorker._postprocess_output": (
        *("a0eb14c7e14e", "0856001e2ada", "252c34fbaaa6"),
    ),
}
#: The main branch until 13 July: what becomes of logits is a method of its own.
_DIGESTS_JULY = {
    **_COMMON,
    _BATCH: ("8baa91f4fb72", "a2603d4f997c"),
    _STEP: ("306feb74a7f5", "49dbe58068f8"),
    f"{_IMPL}:MegatronEngineWithLMHead._lm_head_logits_processor": ("0dd8c70d83a5",),
    _POSTPROCESS: ("2786d4859a7c", "db254313eee7"),
    f"{_UTIL}:preprocess_thd_engine": ("dc33c06b6ed2",),
    f"{_UTIL}:postprocess_thd_engine": ("6af3a56cc2b2",),
    _FORWARD: ("fddd675eb05d", "e471b4a68a23"),
    "verl.workers.engine_workers:TrainingWorker._postprocess_output": ("252c34fbaaa6",),
}
#: Until Megatron's own scheduler came on 11 August: with a loss per token Megatron is told of how many.
_DIGESTS_AUGUST = {
    **_DIGESTS_JULY,
    _BATCH: ("8fcd6d7f850e",),
    _STEP: ("49dbe58068f8", "70a69ea92c97", "8dffd29cc749"),
    f"{_IMPL}:MegatronEngine._routed_num_tokens": ("46ed9942465e",),
    _POSTPROCESS: ("536d38643b8a",),
    f"{_UTIL}:preprocess_thd_engine": (
        *("dc33c06b6ed2", "4a4abedb52a6", "063870dfb94d", "3f84dfa97e18", "d75f3281e48e"),
    ),
    f"{_UTIL}:postprocess_thd_engine": ("6af3a56cc2b2", "68dcb1a87193"),
    _FORWARD: ("e471b4a68a23", "3b26af0140ac"),
}


def _variant(name: str, versions: str, digests: dict[str, tuple[str, ...]]) -> Variant:
    """Return the patch as it is made for one of the shapes that have a split."""
    return Variant(
        name=name,
        versions=versions,
        shape=tuple(Known(site=site, digests=known) for site, known in digests.items()),
        replacements=(
            Replacement(site="verl.utils.megatron_utils:dynamic_cp_split_batch", make=make_split),
            Replacement(site=f"{_IMPL}:prepare_micro_batches", make=make_prepare),
            Replacement(site=_BATCH, make=make_forward_backward),
            Replacement(site=_POSTPROCESS, make=make_postprocess),
            Replacement(site=f"{_IMPL}:MegatronEngine.is_mp_src_rank_with_outputs", make=make_is_source),
            Replacement(site=f"{_IMPL}:MegatronEngine.get_data_parallel_group", make=make_group),
            Replacement(site=f"{_IMPL}:MegatronEngine._init_device_mesh", make=make_device_mesh),
        ),
    )


PATCH = Patch(
    id="verl.dynamic-cp-loss",
    revision=3,
    summary="Right gradients, losses and outputs under dynamic context parallelism",
    why=(
        "With dynamic_context_parallel=True on W data parallel ranks, verl 0.8 trains with a gradient "
        "that is W times (few sequences) or W squared times too small, reports a loss that is wrong by "
        "another factor, fails when a subgroup gets no sequence, runs small batches without context "
        "parallelism, and collects outputs W times. With the patch every micro-batch is split so that "
        "each subgroup has work, every scale is right for any mix of context parallel sizes, and outputs, "
        "losses and metrics are collected once. Settings that dynamic context parallelism cannot honour "
        "are refused, not computed wrongly."
    ),
    evidence=(
        "Gradients, losses and outputs are compared with one process that computes the whole batch, on 2 to "
        "8 gloo ranks (tests/distributed/test_dynamic_cp.py)."
    ),
    changes=("numbers", "crashes"),
    met="dynamic_context_parallel=True in the Megatron engine.",
    upstream=(
        "verl-project/verl#5057",
        "verl-project/verl#5869",
        "verl-project/verl#6786",
        "verl-project/verl#6555",
    ),
    remove=Removal(
        version="0.9.0",
        when="verl 0.9.0 schedules dynamic context parallelism with Megatron's own scheduler instead",
        test="tests/distributed/test_dynamic_cp.py::test_upstream_alone_is_right",
    ),
    targets=one_target(
        VERL,
        _variant("0.8", ">=0.8.0.dev0,<0.11.0.dev0", _DIGESTS_0_8),
        _variant("0.9.dev, July 2026", ">=0.9.0.dev0,<0.10.0.dev0", _DIGESTS_JULY),
        _variant("0.9.dev, August 2026", ">=0.9.0.dev0,<0.10.0.dev0", _DIGESTS_AUGUST),
        superseded(
            "0.9",
            ">=0.9.0.dev0",
            Absent(site="verl.utils.megatron_utils:dynamic_cp_split_batch"),
            Present(site="verl.utils.dynamic_cp_scheduler"),
            reason="verl 0.9 has replaced the split and its scales by Megatron's own scheduler",
        ),
        not_affected(
            "0.7",
            "<0.9.0.dev0",
            Absent(site="verl.utils.megatron_utils:dynamic_cp_split_batch"),
            Absent(site="verl.utils.dynamic_cp_scheduler"),
            reason="dynamic context parallelism came with verl 0.8",
        ),
    ),
)
