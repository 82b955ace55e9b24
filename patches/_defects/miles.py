"""What is known to be wrong in miles, and mended by a patch."""

from __future__ import annotations

from functools import partial

from overlay.compat.projects import MILES
from overlay.defect import Defect, above, among, beyond, switched
from overlay.patches._defects._short_forms import all_of

_WHITENED = (switched("normalize_advantages"), above("context_parallel_size", 1))

_defect = partial(Defect, project=MILES)

DEFECTS = (
    _defect(
        id="miles.budget-exceeded-by-flops",
        summary="With --balance-by-flops micro-batches exceed max_tokens_per_gpu. One notices by running out "
        "of memory some steps into a run.",
        harm="out-of-memory",
        when=all_of(switched("use_dynamic_batch_size"), switched("balance_by_flops")),
        patch="miles.capped-partitions",
    ),
    _defect(
        id="miles.partitioner-slow",
        summary="The partitioner takes time that grows with samples times parts, up to half a minute of each "
        "step, while the device waits.",
        harm="slow",
        when=(
            (switched("balance_data"),),
            (switched("balance_by_flops"),),
            (switched("use_dynamic_batch_size"), beyond("ranks cut their own micro-batches, as under FSDP")),
        ),
        patch="miles.fast-partitioner",
    ),
    _defect(
        id="miles.loss-copies-logits",
        summary="Log-probabilities and entropy hold up to three times the logits at once. One notices by "
        "running out of memory in the loss.",
        harm="out-of-memory",
        when=all_of(among("loss_type", "policy_loss", "sft_loss"), among("true_on_policy_mode", False)),
        patch="miles.loss-memory",
    ),
    _defect(
        id="miles.whitening-by-slice",
        summary="Under context parallelism each rank normalises advantages by its own slices: tokens of one "
        "sample get different means and deviations. Nobody notices.",
        harm="silent-wrong",
        when=(_WHITENED,),
        patch="miles.whiten-over-cp",
    ),
    _defect(
        id="miles.whitening-waits",
        summary="A rank whose slices hold no response token leaves out the collective of the normalisation, "
        "and the others wait until they time out.",
        harm="hang",
        when=all_of(*_WHITENED, beyond("some rank has no token of a response")),
        patch="miles.whiten-over-cp",
    ),
)
