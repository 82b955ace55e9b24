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

from contextvars import ContextVar
from weakref import WeakKeyDictionary

from overlay import log
from overlay.base.settings import dynamic_cp
from overlay.compat.projects import VERL
from overlay.patch import Absent, Known, Patch, Present, Removal, Replacement, Target, Variant
from overlay.patches._dynamic_cp.groups import confirm_groups, make_device_mesh
from overlay.patches._dynamic_cp.losses import is_sum, name_of, with_width
from overlay.patches._dynamic_cp.plan import check_longest, check_plan, part_of, plan_uniform
from overlay.patches._dynamic_cp.refusals import refuse, refuse_loss
from overlay.patches._dynamic_cp.same_way import agree
from overlay.patches._dynamic_cp.whole import collect, on_whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import ModuleType
    from typing import Any

    from overlay.patches._dynamic_cp.plan import Plan

#: Under this key the plan of a micro-batch (`overlay.patches._dynamic_cp.plan`) travels with a rank's part of
#: it, behind the length of each sequence of the whole.
PLAN_KEY = "overlay_dynamic_cp_plan"
#: And under this one with the whole, if it was made along with the micro-batch.
PLANNED_KEY = "overlay_dynamic_cp_planned"
#: And under this one the whole itself, in a tuple: tensordict would take its rows for those of the part.
WHOLE_KEY = "overlay_dynamic_cp_whole"

#: While a batch runs under dynamic context parallelism: the ranks that share its token budget, the `dp_size`
#: with which its losses must be scaled, and the tokens of one sequence that a rank can hold.
_run: ContextVar[tuple[int, int, int] | None] = ContextVar("overlay_dynamic_cp_run", default=None)


# --- the replacements ---


def make_split(_original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Replace the split: every subgroup gets a sequence, and C is always told to what follows."""
    from verl.utils import tensordict_utils as tu

    def dynamic_cp_split_batch(batch: Any, engine_config: Any, dp_size: int, dp_rank: int) -> Any:
        lengths = batch["input_ids"].offsets().diff().tolist()
        budget = None
        if tu.get_non_tensor_data(batch, "use_dynamic_bsz", default=True):
            budget = tu.get_non_tensor_data(batch, "max_token_len_per_gpu", default=None)
        plan = tu.get_non_tensor_data(batch, PLANNED_KEY, default=None)
        if plan is None:
            plan = make_plan(lengths, dp_size, engine_config.max_seqlen_per_dp_cp_rank, budget)
        check_plan(plan, len(lengths), dp_size)
        _, size, indices = part_of(plan, dp_rank)
        if size == dp_size:
            part = batch.clone(recurse=False)
        else:
            part = tu.index_select_tensor_dict(batch, list(indices))
        tu.assign_non_tensor_data(part, "local_cp_size", size)
        tu.assign_non_tensor_data(part, PLAN_KEY, (tuple(lengths), plan))
        tu.assign_non_tensor_data(part, WHOLE_KEY, (batch,))
        return part

    return dynamic_cp_split_batch


def make_prepare(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the making of micro-batches: W ranks share the token budget, and losses are scaled for W ranks.

    With `OVERLAY_DCP=mixed` micro-batches are made along with their plans.
    """
    from verl.utils import tensordict_utils as tu

    def prepare_micro_batches(
        data: Any,
        dp_group: Any = None,
        num_batches_divided_by: int | None = None,
        same_micro_num_in_dp: bool = True,
        min_num_micro_batch: int | None = None,
        use_dynamic_bsz_balance: bool = True,
    ) -> Any:
        run = _run.get()
        if run is not None:
            ranks, dp_size, cap = run
            tu.assign_non_tensor(data, sp_size=ranks, dp_size=dp_size)
            # Where their number or who goes together is prescribed, micro-batches are verl's.
            free = num_batches_divided_by is None and min_num_micro_batch is None
            if free and dynamic_cp() == "mixed" and _by_tokens(data):
                return _planned(data, ranks, cap)
        return original(
            data,
            dp_group,
            num_batches_divided_by,
            same_micro_num_in_dp,
            min_num_micro_batch,
            use_dynamic_bsz_balance,
        )

    return prepare_micro_batches


def make_forward_backward(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Wrap the run of a batch: refuse what would be wrong, scale, and merge what the ranks report."""
    from megatron.core import parallel_state as mpu
    from megatron.core.utils import get_model_config

    def forward_backward_batch(
        self: Any,
        data: Any,
        loss_function: Any,
        forward_only: bool = False,
    ) -> Any:
        if not self.engine_config.dynamic_context_parallel:
            return original(self, data, loss_function, forward_only)
        refuse(self, data, module)
        refuse_loss(loss_function)
        ranks = mpu.get_data_parallel_world_size()
        # Here, because further on a pipeline stage would wait for the one that has raised.
        lengths = data["input_ids"].offsets().diff().tolist()
        cap = self.engine_config.max_seqlen_per_dp_cp_rank
        check_longest(lengths, ranks, cap)
        confirm_groups(mpu)
        agree(mpu.get_data_parallel_group())
        dp_size = 1 if get_model_config(self.module[0]).calculate_per_token_loss else ranks
        if loss_function is not None:
            if "response_mask" in data.keys():  # noqa: SIM118 -- see `_by_tokens`
                loss_function = with_width(loss_function, _width(data["response_mask"]))
            _agree_on_loss(loss_function, mpu.get_data_parallel_group())
        token = _run.set((ranks, dp_size, cap))
        try:
            output = original(self, data, loss_function, forward_only)
        finally:
            _run.reset(token)
        if loss_function is not None and mpu.is_pipeline_last_stage(ignore_virtual=True):
            _merge_reports(output, dp_size, mpu.get_data_parallel_group())
        return output

    return forward_backward_batch


def make_postprocess(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap what is kept of a micro-batch: a rank's share of the losses, and outputs only if they are used.

    From July 2026 on verl's main branch tells Megatron the tokens of a micro-batch as well, with
    `calculate_per_token_loss`: each sequence is counted on one rank.
    """
    import torch
    from megatron.core import parallel_state as mpu
    from verl.utils import tensordict_utils as tu
    from verl.utils.metric import AggregationType, Metric

    def postprocess_micro_batch_func(
        self: Any,
        output: Any,
        data: Any,
        forward_only: bool,
        loss_function: Any,
        local_cp_size: int | None = None,
    ) -> Any:
        if local_cp_size is None:
            return original(self, output, data, forward_only, loss_function, local_cp_size)
        lengths, plan = tu.get_non_tensor_data(data, PLAN_KEY, default=None)
        ranks = mpu.get_data_parallel_world_size()
        holders, factor = local_cp_size, 1.0
        if loss_function is not None and not is_sum(loss_function):
            (whole,) = tu.get_non_tensor_data(data, WHOLE_KEY, default=None)
            holders, factor = ranks, data["dp_size"]
            loss_function = on_whole(loss_function, whole, plan, data["dp_size"])
        # Without a size the original skips its own collection, which pickles, and also runs in training.
        scaled_loss, *tokens, report = original(self, output, data, forward_only, loss_function, None)
        if loss_function is not None:
            report["loss"] /= holders
            for name, metric in report["metrics"].items():
                if isinstance(metric, Metric) and metric.aggregation is AggregationType.SUM:
                    report["metrics"][name] = _scaled(metric, factor / holders)
        if not forward_only:
            report["model_output"] = {}
        elif local_cp_size < ranks:
            report["model_output"] = collect(report["model_output"], lengths, plan)
        rank = mpu.get_data_parallel_rank()
        if rank != part_of(plan, rank)[0]:
            # Megatron divides by what all ranks count, and each of a subgroup counts all its tokens.
            tokens = [torch.zeros_like(count) for count in tokens]
        return scaled_loss, *tokens, report

    return postprocess_micro_batch_func


def make_is_source(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the choice of ranks whose outputs are collected: one, as the data parallel view is one rank."""
    from megatron.core import parallel_state as mpu

    def is_mp_src_rank_with_outputs(self: Any) -> Any:
        is_source = original(self)
        if not self.engine_config.dynamic_context_parallel:
            return is_source
        return is_source and mpu.get_data_parallel_rank() == 0

    return is_mp_src_rank_with_outputs


def make_group(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Wrap the engine's data parallel group: one rank, as its data parallel size and rank already say.

    The source of outputs enters collectives of this group alone, so the two wrappers belong together.
    """
    from megatron.core import parallel_state as mpu

    def get_data_parallel_group(self: Any) -> Any:
        if not self.engine_config.dynamic_context_parallel:
            return original(self)
        return mpu.get_context_parallel_group()  # of this rank alone: static context parallelism is refused

    return get_data_parallel_group


# --- what they share ---

#: By data parallel group, the losses on which its ranks have agreed, and whether each is a sum.
_losses: WeakKeyDictionary[Any, set[tuple[str, bool]]] = WeakKeyDictionary()


def _agree_on_loss(loss_function: Any, group: Any) -> None:
    """Make sure that all ranks compute one loss in one way. Once for each loss and group.

    Raises:
        ValueError: They do not, on every rank.

    """
    import torch.distributed as dist

    agreed = _losses.setdefault(group, set())
    loss = (name_of(loss_function), is_sum(loss_function))
    if loss in agreed:
        return
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, loss, group=group)
    if len(set(everyone)) > 1:
        seen = "; ".join(
            f"rank {rank}: {name}, {_WAYS[known]}" for rank, (name, known) in enumerate(everyone)
        )
        msg = f"the loss differs between data parallel ranks ({seen}): install and register the same on all"
        raise ValueError(msg)
    agreed.add(loss)
    name, known = loss
    if not known and dist.get_rank(group) == 0:
        log.info(
            f"verl.dynamic-cp-loss: {name} is {_WAYS[known]}: every rank computes it from whole micro-batches"
        )


_WAYS = {True: "a sum over sequences", False: "not known to be a sum over sequences"}


def _width(mask: Any) -> int:
    """Return the width to which all rows of a batch are padded."""
    return int(mask.offsets().diff().max()) if mask.is_nested else int(mask.shape[-1])


def make_plan(lengths: Sequence[int], ranks: int, cap: int, budget: int | None) -> Plan:
    """Plan a micro-batch as `OVERLAY_DCP` says. See `plan_uniform` for the arguments."""
    if dynamic_cp() == "uniform":
        return plan_uniform(lengths, ranks, cap, budget)
    from overlay.patches._dynamic_cp.mixed import plan_mixed

    return plan_mixed(lengths, ranks, cap, budget)


def _by_tokens(data: Any) -> bool:
    """Return whether micro-batches are limited by their tokens, and each sequence may go to any of them."""
    from verl.utils import tensordict_utils as tu

    if not tu.get_non_tensor_data(data, "use_dynamic_bsz", default=True):
        return False
    # Without a limit verl says what is missing.
    limited = "max_token_len_per_gpu" in data.keys()  # noqa: SIM118 -- a TensorDict iterates over its rows
    return limited and bool(tu.get_non_tensor_data(data, "force_group_size", default=1) == 1)


def _planned(data: Any, ranks: int, cap: int) -> tuple[list[Any], list[list[int]]]:
    """Return the micro-batches of a batch, each with its plan, and the places of their sequences in it."""
    from verl.utils import tensordict_utils as tu

    from overlay.patches._dynamic_cp.mixed import plan_step

    lengths = data["input_ids"].offsets().diff().tolist()
    step = plan_step(lengths, ranks, cap, data["max_token_len_per_gpu"])
    parts = []
    for indices, plan in step:
        part = tu.index_select_tensor_dict(data, indices)
        tu.assign_non_tensor(part, **{PLANNED_KEY: plan})
        parts.append(part)
    return parts, [indices for indices, _ in step]


def _scaled(metric: Any, factor: float) -> Any:
    """Return a metric of the same kind with every value times `factor`."""
    scaled = metric.init_list()
    scaled.extend([value * factor for value in metric.values])
    return scaled


def _merge_reports(output: dict[str, Any], dp_size: int, group: Any) -> None:
    """Merge the losses and metrics of all data parallel ranks in `output`, so that each rank has the batch's.

    Losses become the contribution of each micro-batch to the batch's loss. The values of a metric are
    put one behind the other; those of a sum are shares (`make_postprocess`) and stay to be added up.

    Args:
        output: Of `forward_backward_batch`, on the last pipeline stage; changed in place.
        dp_size: The factor by which the loss function has multiplied.
        group: The W data parallel ranks, all of which must call this.

    """
    import torch.distributed as dist
    from verl.utils.metric import AggregationType, Metric

    # The same collective, on the same kind of data and once per batch, with which verl merges metrics itself.
    parts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, (output["loss"], output["metrics"]), group=group)
    output["loss"] = [sum(shares) / dp_size for shares in zip(*(losses for losses, _ in parts), strict=True)]
    merged: dict[str, Any] = {}
    for _, metrics in parts:
        for name, values in metrics.items():
            if not isinstance(values, Metric):
                merged.setdefault(name, []).extend(values)
                continue
            factor = 1 / dp_size if values.aggregation is AggregationType.SUM else 1
            merged.setdefault(name, values.init_list()).extend(_scaled(values, factor))
    output["metrics"] = merged


# --- the patch ---

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
        "a0eb14c7e14e",
        "0856001e2ada",
        "252c34fbaaa6",
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
        "dc33c06b6ed2",
        "4a4abedb52a6",
        "063870dfb94d",
        "3f84dfa97e18",
        "d75f3281e48e",
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
    targets=(
        Target(
            project=VERL,
            variants=(
                _variant("0.8", ">=0.8.0.dev0,<0.11.0.dev0", _DIGESTS_0_8),
                _variant("0.9.dev, July 2026", ">=0.9.0.dev0,<0.10.0.dev0", _DIGESTS_JULY),
                _variant("0.9.dev, August 2026", ">=0.9.0.dev0,<0.10.0.dev0", _DIGESTS_AUGUST),
                Variant(
                    name="0.9",
                    versions=">=0.9.0.dev0",
                    verdict="superseded",
                    shape=(
                        Absent(site="verl.utils.megatron_utils:dynamic_cp_split_batch"),
                        Present(site="verl.utils.dynamic_cp_scheduler"),
                    ),
                    reason="verl 0.9 has replaced the split and its scales by Megatron's own scheduler",
                ),
                Variant(
                    name="0.7",
                    versions="<0.9.0.dev0",
                    verdict="not-affected",
                    shape=(
                        Absent(site="verl.utils.megatron_utils:dynamic_cp_split_batch"),
                        Absent(site="verl.utils.dynamic_cp_scheduler"),
                    ),
                    reason="dynamic context parallelism came with verl 0.8",
                ),
            ),
        ),
    ),
)
