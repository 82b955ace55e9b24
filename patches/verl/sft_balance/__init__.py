"""`verl.sft-balance`: the SFT trainer's data parallel ranks get equal work.

The trainer hands a global batch to its training client, which gives each rank a contiguous share of the rows.
So to balance the ranks is to reorder the rows, in the process of the trainer, before they are handed over.
verl's `fit` runs as it is; for as long as it runs, the client's `train_batch` reorders what it is given, by
the lengths that `fit` has counted.

verl 0.7 reorders nothing. From 0.8 on `fit` does so itself, if the settings say so: it takes each batch apart
to count the lengths again, and partitions a float tensor, many times slower than integers. From the count of
the lengths to the handing over, which is where it asks, it finds settings that say no.
"""

from __future__ import annotations

from overlay.compat.projects import VERL
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.verl.sft_balance.fix import ID, make_fit, make_fit_that_balances

_TRAINER = "verl.trainer.sft_trainer_ray"

_FIT = f"{_TRAINER}:SFTTrainer.fit"
_DECORATOR = "verl.single_controller.base.decorator"

#: What every release relies on: how rows come to ranks, how work is estimated, how tokens are counted.
_COMMON = (
    f"{_TRAINER}:SFTTrainer._get_batch_seqlens",
    "verl.utils.seqlen_balancing:calculate_workload",
    f"{_DECORATOR}:dispatch_lazy_compute_data_proto",
    f"{_DECORATOR}:dispatch_nd_compute",
    "verl.single_controller.base.worker:Worker._query_dispatch_info",
    "verl.single_controller.ray.base:func_generator",
    "verl.utils.tensordict_utils:get",
)

PATCH = Patch(
    id=ID,
    revision=2,
    summary="SFT on Ray: data parallel ranks that get equal work",
    why=(
        "verl 0.7's SFT trainer on Ray gives each data parallel rank whatever samples come next, so that all "
        "wait for the rank that drew the long ones. With the patch the rows of each global batch are "
        "reordered before they are handed out: the same samples, as many for each rank, with work by verl's "
        "own estimate as equal as swaps can make it, unless trainer.balance_batch is false. verl 0.8 and 0.9 "
        "do so, but count the lengths a second time, partition a float tensor, many times slower than "
        "integers, leave the ranks uneven where few samples are far longer than the rest, and take padded "
        "rows for as long as their padding. With the patch they leave that out, and the rows are reordered "
        "by the tokens that the trainer counts. The SPMD trainer (verl.trainer.sft_trainer) is left as it "
        "is: each of its ranks has a sampler and a loader of its own, and no length is known before a sample "
        "is loaded. To balance its ranks would be to send loaded samples, images included, from rank to "
        "rank, or to reshuffle the data behind the state that each loader resumes from."
    ),
    evidence=(
        "verl 0.8.0 balances the ranks of SFT by default (#5679). The contract runs verl's trainer with the "
        "patch and without, and compares samples, gradients and losses."
    ),
    changes=("speed", "numbers"),
    met="SFT on Ray, unless trainer.balance_batch is false. Each step sees the same samples, on other ranks.",
    upstream=("verl-project/verl#5679",),
    targets=one_target(
        VERL,
        variant(
            "0.8",
            *_COMMON,
            replaced(_FIT, make_fit_that_balances),
            f"{_DECORATOR}:_split_args_kwargs_data_proto",
            "verl.utils.tensordict_utils:chunk_tensordict",
            "verl.utils.tensordict_utils:index_select_tensor_dict",
        ),
        variant(
            "0.7",
            *_COMMON,
            replaced(_FIT, make_fit),
            f"{_DECORATOR}:_split_args_kwargs_data_proto",
            "verl.utils.tensordict_utils:chunk_tensordict",
            "verl.utils.tensordict_utils:index_select_tensor_dict",
            "verl.workers.engine_workers:TrainingWorker.train_batch",
        ),
        tells=(_TRAINER,),
    ),
)
