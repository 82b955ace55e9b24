"""What is known to be wrong in miles, and mended by a patch."""

from __future__ import annotations

from overlay.compat.projects import MILES
from overlay.defect import Defect, above, among, beyond, switched

_WHITENED = (switched("normalize_advantages"), above("context_parallel_size", 1))

DEFECTS = (
    Defect(
        id="miles.budget-exceeded-by-flops",
        project=MILES,
        summary="With --balance-by-flops micro-batches exceed max_tokens_per_gpu. One notices by running out "
        "of memory some steps into a run.",
        harm="out-of-memory",
        when=((switched("use_dynamic_batch_size"), switched("balance_by_flops")),),
        patch="miles.capped-partitions",
    ),
    Defect(
        id="miles.partitioner-slow",
        project=MILES,
        summary="The partitioner takes time that grows with samples times parts, up to half a minute of each "
        "step, while the device waits.",
        harm="slow",
        patch="miles.fast-partitioner",
    ),
    Defect(
        id="miles.loss-copies-logits",
        project=MILES,
        summary="Log-probabilities and entropy hold up to three times the logits at once. One notices by "
        "running out of memory in the loss.",
        harm="out-of-memory",
        when=((among("loss_type", "policy_loss", "sft_loss"), among("true_on_policy_mode", False)),),
        patch="miles.loss-memory",
    ),
    Defect(
        id="miles.whitening-by-slice",
        project=MILES,
        summary="Under context parallelism each rank normalises advantages by its own slices: tokens of one "
        "sample get different means and deviations. Nobody notices.",
        harm="silent-wrong",
        when=(_WHITENED,),
        patch="miles.whiten-over-cp",
    ),
    Defect(
        id="miles.whitening-waits",
        project=MILES,
        summary="A rank whose slices hold no response token leaves out the collective of the normalisation, "
        "and the others wait until they time out.",
        harm="hang",
        when=((*_WHITENED, beyond("some rank has no token of a response")),),
        patch="miles.whiten-over-cp",
    ),
)
