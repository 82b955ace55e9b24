"""`megatron.reshardable-checkpoint`: each parameter is saved with its own optimizer state.

Saving looks parameters up by their place in a buffer, in a tensor from which the padding of buckets is
gone. While it runs, what it looks them up in takes them at the place where they are. Nothing is copied.
Loading is wrapped as well, to refuse what was saved without that.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Patch, one_target, replaced, variant
from overlay.patches.megatron.reshardable_checkpoint.fix import make_load, make_save

_OPTIMIZER = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer"
_SAVE = f"{_OPTIMIZER}.sharded_param_state_fully_reshardable"
_LOAD = f"{_OPTIMIZER}.load_state_dict"
#: What that calls is decorated. A digest, as it reads the states in the order in which they are checked.
_READ = f"{_OPTIMIZER}.load_parameter_state_from_fully_reshardable"
#: A digest: from which places of the tensors it leaves the padding out is what is mended.
_GATHER = f"{_OPTIMIZER}.get_parameter_state_dp_zero"

PATCH = Patch(
    id="megatron.reshardable-checkpoint",
    revision=2,
    summary="Fully reshardable checkpoints have each parameter's optimizer state, not its neighbour's",
    why=(
        "In the format fully_reshardable Megatron gathers master weights and moments into tensors without "
        "the padding at the end of buckets, and cuts parameters out by places that count it. From the "
        "second bucket on each parameter is saved shifted by the padding before it, into the next one, and "
        "the last are filled with zeros. Nothing shifts them back: after a resume the first step replaces "
        "the weights by what was saved. With the patch they are cut out where they are. A checkpoint that "
        "was saved without it is refused when it is loaded, if its master weights are those of the model "
        "in the first bucket and others from the second on."
    ),
    changes=("numbers", "safety"),
    met=(
        "Checkpoints with dist_ckpt_optim_fully_reshardable (verl 0.7.1: always) with overlap_grad_reduce, "
        "so that there are several buckets, and padding in them: a data parallel size that is no power of "
        "two, ddp_pad_buckets_for_high_nccl_busbw, or parameters whose sizes are no multiples of 128."
    ),
    evidence=(
        "Upstream's main branch leaves out the padding on both sides (NVIDIA/Megatron-LM#5077). What is "
        "saved is compared with each parameter's own weight and moments."
    ),
    upstream=("NVIDIA/Megatron-LM#5077",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.15",
            replaced(_SAVE, make_save),
            replaced(_LOAD, make_load),
            _READ,
            _GATHER,
        ),
    ),
)
