"""The replacements: the split, the scales of losses, and what is collected of outputs, losses and metrics."""

from collections.abc import Callable
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from overlay import log
from overlay.patch import around
from overlay.patches._dynamic_cp.groups import confirm_groups
from overlay.patches._dynamic_cp.losses import is_sum, name_of, with_width
from overlay.patches._dynamic_cp.plan import check_longest, check_plan, part_of, plan_uniform
from overlay.patches._dynamic_cp.refusals import refuse, refuse_loss
from overlay.patches._dynamic_cp.whole import collect, on_whole

#: Under this key the plan of a micro-batch (`overlay.patches._dynamic_cp.plan`) travels with a rank's part of
#: it, behind the length of each sequence of the whole.
PLAN_KEY = "overlay_dynamic_cp_plan"
#: And under this one the whole itself, in a tuple: tensordict would take its rows for those of the part.
WHOLE_KEY = "overlay_dynamic_cp_whole"

#: While a batch runs under dynamic context parallelism: the ranks that share its token budget, and the
#: `dp_size` with which its losses must be scaled.
_run: ContextVar[tuple[int, int] | None] = ContextVar("overlay_dynamic_cp_run", default=None)


def make_split(_original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Replace the split: every subgroup gets a sequence, and C is always told to what follows."""
    from verl.utils import tensordict_utils as tu

    from overlay.patches.verl.dynamic_cp_loss import EFFECT

    def dynamic_cp_split_batch(batch: Any, engine_config: Any, dp_size: int, dp_rank: int) -> Any:
        lengths = batch["input_ids"].offsets().diff().tolist()
        budget = None
        if tu.get_non_tensor_data(batch, "use_dynamic_bsz", default=True):
            budget = tu.get_non_tensor_data(batch, "max_token_len_per_gpu", default=None)
        plan = plan_uniform(lengths, dp_size, engine_config.max_seqlen_per_dp_cp_rank, budget)
        check_plan(plan, len(lengths), dp_size)
        # verl divides by W once too often, and once more where there are sequences for all ranks.
        factor = dp_size ** -(2 if len(lengths) >= dp_size else 1)
        EFFECT.changed += 1
        EFFECT.least = min(EFFECT.least, factor)
        EFFECT.most = max(EFFECT.most, factor)
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
    """Wrap the making of micro-batches: W ranks share the token budget, and losses are scaled for W ranks."""
    from verl.utils import tensordict_utils as tu

    parameters = signature(original)

    @wraps(original)
    def prepare_micro_batches(*args: Any, **kwargs: Any) -> Any:
        run = _run.get()
        if run is not None:
            ranks, dp_size = run
            data = parameters.bind(*args, **kwargs).arguments["data"]
            tu.assign_non_tensor(data, sp_size=ranks, dp_size=dp_size)
        return original(*args, **kwargs)

    return prepare_micro_batches


def make_forward_backward(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Wrap the run of a batch: refuse what would be wrong, scale, and merge what the ranks report."""
    from megatron.core import parallel_state as mpu
    from megatron.core.utils import get_model_config

    def forward_backward_batch(self: Any, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
        if not self.engine_config.dynamic_context_parallel:
            return original(self, data, loss_function, forward_only)
        refuse(self, data, module)
        refuse_loss(loss_function)
        ranks = mpu.get_data_parallel_world_size()
        # Here, because further on a pipeline stage would wait for the one that has raised.
        lengths = data["input_ids"].offsets().diff().tolist()
        check_longest(lengths, ranks, self.engine_config.max_seqlen_per_dp_cp_rank)
        confirm_groups(mpu)
        dp_size = 1 if get_model_config(self.module[0]).calculate_per_token_loss else ranks
        if loss_function is not None:
            if "response_mask" in data.keys():  # noqa: SIM118 -- a TensorDict iterates over its rows
                loss_function = with_width(loss_function, _width(data["response_mask"]))
            _agree_on_loss(loss_function, mpu.get_data_parallel_group())
        token = _run.set((ranks, dp_size))
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


@around
def is_source(original: Any, self: Any) -> Any:
    """Return whether outputs are collected from this rank: of one only, as the data parallel view is one."""
    from megatron.core import parallel_state as mpu

    found = original(self)
    if not self.engine_config.dynamic_context_parallel:
        return found
    return found and mpu.get_data_parallel_rank() == 0


@around
def get_data_parallel_group(original: Any, self: Any) -> Any:
    """Return a group of one rank, as the engine's data parallel size and rank already say.

    The source of outputs enters collectives of this group alone, so the two wrappers belong together.
    """
    from megatron.core import parallel_state as mpu

    if not self.engine_config.dynamic_context_parallel:
        return original(self)
    return mpu.get_context_parallel_group()  # of this rank alone: static context parallelism is refused


#: By data parallel group, the losses on which its ranks have agreed, and whether each is a sum.
_losses: WeakKeyDictionary[Any, set[tuple[str, bool]]] = WeakKeyDictionary()


def _agree_on_loss(loss_function: Any, group: Any) -> None:
    """Raise `ValueError` on every rank unless all compute one loss in one way. Asked once for each loss."""
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


def _scaled(metric: Any, factor: float) -> Any:
    """Return a metric of the same kind with every value times `factor`."""
    scaled = metric.init_list()
    scaled.extend([value * factor for value in metric.values])
    return scaled


def _merge_reports(output: dict[str, Any], dp_size: int, group: Any) -> None:
    """Merge losses and metrics of all ranks in `output`, so that each rank of the group has the batch's.

    Losses become what each micro-batch adds to the batch's loss, which has been multiplied by `dp_size`. The
    values of a metric are put one behind the other; those of a sum are shares, and stay to be added up.
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
