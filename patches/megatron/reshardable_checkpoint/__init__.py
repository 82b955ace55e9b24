"""`megatron.reshardable-checkpoint`: each parameter is saved with its own optimizer state.

Saving looks parameters up by their place in a buffer, in a tensor from which the padding of buckets is
gone. While it runs, what it looks them up in takes them at the place where they are. Nothing is copied.
Loading is wrapped as well, to refuse what was saved without that.
"""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.patch import Absent, Patch, Removal, fixed, known, not_affected, one_target, replaced, variant
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
    remove=Removal(
        when="a release leaves out the padding of buckets on both sides",
        test="tests/real/test_contracts.py::test_upstream_alone_keeps_the_contract",
    ),
    targets=one_target(
        MEGATRON,
        variant(
            "0.15",
            ">=0.14.0.dev0,<0.20.0.dev0",
            replaced(_SAVE, make_save, "e227fdc527c4"),
            # 0.15 and commits up to December 2025; 0.16 to 0.18; 0.19; dev
            replaced(_LOAD, make_load, "3bec482ecf9e", "df23a3440d13", "b76d628fa660", "fd457887f004"),
            known(_READ, "abb9da015abc"),
            # 0.15 to 0.18; 0.19
            known(_GATHER, "41bccbba1b76", "32e3ab27ad07"),
        ),
        fixed(
            "after 0.19",
            ">=0.16.0.dev0",
            known(_SAVE, "4a90a09119c1"),
            reason="this Megatron leaves out the padding of buckets on both sides",
        ),
        not_affected(
            "before 0.15", "<0.15.0.dev0", Absent(site=_SAVE), reason="this Megatron does not have the format"
        ),
    ),
)
