"""What is known to be wrong in Megatron-Core and that no patch mends."""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.defect import READ, Defect, above, among, beyond, given, switched
from overlay.patch import Absent, known
from overlay.patches._defects._sources import absent, fixed, present

_CP = above("context_parallel_size", 1)
_TP = above("tensor_model_parallel_size", 1)
_AUX = above("moe_aux_loss_coeff", 0)
_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_STEP = f"{_SCHEDULES}:forward_step"
_SYNC = "megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup.start_grad_sync"
_DISTRIBUTED = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer"
_GROUPS = "megatron.core.optimizer.optimizer:param_group_identifier_keys"
_NAMES = f"{_DISTRIBUTED}._build_model_param_to_state_dict_param_map"
_LOAD = f"{_DISTRIBUTED}._set_main_param_and_optimizer_states"
_POST = "megatron.core.models.gpt.gpt_model:GPTModel._postprocess"
_MTP = "megatron.core.transformer.multi_token_prediction:process_mtp_loss"
_BLOCK = "megatron.core.transformer.multi_token_prediction:MultiTokenPredictionBlock.forward"
_NORM = "megatron.core.ssm.gated_delta_net:GatedDeltaNet._apply_gated_norm"
_COUNT = "megatron.core.transformer.moe.moe_utils:get_tokens_per_expert_and_token_count"
_SEQUENCE = "megatron.core.transformer.moe.router:TopKRouter._apply_seq_aux_loss"

DEFECTS = (
    Defect(
        id="megatron.mtp-per-token-scale",
        project=MEGATRON,
        summary="With a loss per token that of multi-token prediction is divided by the tokens of the main "
        "loss, which has more of them: its gradient is too small. Nobody notices.",
        harm="silent-wrong",
        met="mtp_num_layers with calculate_per_token_loss.",
        when=((given("mtp_num_layers"), switched("calculate_per_token_loss")),),
        variants=(
            present(
                "0.14",
                ">=0.13.1.dev0",
                known(
                    _POST,
                    "7b2412e6a21c",
                    "a7472bd757e8",
                    "22c6785b77fa",
                    "f77ff1960674",
                    "91d171e09ac3",
                    "4cc6ee8943ac",
                    "74228139b701",
                    "2102931419a5",
                    "5d6ccc1ca3d2",
                ),
            ),
            present("0.12", ">=0.12.0.dev0", known(_BLOCK, "ee35e97d89e5", "fbde6cc577d6", "b967b4b68d4c")),
            fixed(
                "0.17",
                ">=0.16.0.dev0",
                known(_MTP, "4f5c678944ef", "9c5137c44e3a", "ffa08c968313", "8176fa808c75"),
                reason="it is scaled by the tokens that both have",
            ),
        ),
        upstream=("NVIDIA/Megatron-LM#3159",),
        fixed="0.17.0",
        shown=READ,
        way_out="scale mtp_loss_scaling_factor",
    ),
    Defect(
        id="megatron.instances-stream",
        project=MEGATRON,
        summary="The reduction of gradients waits for the default stream and not for the one that computes "
        "them: it may read gradients that are not there yet. Nobody notices.",
        harm="silent-wrong",
        met="num_distributed_optimizer_instances above 1 with overlap_grad_reduce, and work on another "
        "stream.",
        when=((above("num_distributed_optimizer_instances", 1), switched("overlap_grad_reduce")),),
        variants=(
            present(
                "before 0.17",
                ">=0.11.0.dev0",
                known(_SYNC, "85da0beca44e", "c2707bd15804", "acbe8fae3e2e", "6d93262393b6", "6beae6e1bf82"),
            ),
            fixed(
                "0.17",
                ">=0.16.0.dev0",
                known(_SYNC, "bce5eff65a85", "1cedca4b9fd7", "a132f64e72f7", "fdbaf5cd4b7a"),
                reason="it waits for the current stream",
            ),
        ),
        upstream=("NVIDIA/Megatron-LM#3693",),
        fixed="0.17.0",
        shown=READ,
        way_out="leave overlap_grad_reduce off",
    ),
    Defect(
        id="megatron.main-params-by-substring",
        project=MEGATRON,
        summary="Master weights are looked up in a checkpoint by a part of their names: a name within "
        "another ends the job in an AssertionError.",
        harm="crash",
        met="--load-main-params-from-ckpt, with a parameter whose name is part of another's.",
        when=((switched("load_main_params_from_ckpt"), beyond("a name is part of another")),),
        variants=(
            present("0.14", ">=0.13.1.dev0", known(_NAMES, "febe2fc88cba")),
            fixed(
                "0.17",
                ">=0.16.0.dev0",
                known(_NAMES, "1242aef9ec6c", "03d404afb4d9", "d67933af5da4"),
                reason="names are compared from their ends",
            ),
            absent("before 0.14", "<0.14.0.dev0", Absent(site=_NAMES), reason="there is no such option"),
        ),
        upstream=("NVIDIA/Megatron-LM#3569",),
        fixed="0.17.0",
        shown=READ,
        way_out="leave --load-main-params-from-ckpt out",
    ),
    Defect(
        id="megatron.param-groups-collide",
        project=MEGATRON,
        summary="Parameter groups that differ in their greatest or least learning rate alone overwrite each "
        "other when a checkpoint is loaded. Nobody notices.",
        harm="silent-wrong",
        met="A resume, with learning rates of their own for some parameters.",
        when=((beyond("the job resumes, and parameter groups differ in max_lr or min_lr alone"),),),
        variants=(
            present("0.13", ">=0.13.0.dev0", known(_GROUPS, "6cc770aaf681")),
            fixed(
                "0.19",
                ">=0.19.0.dev0",
                known(_GROUPS, "f31f76c582d1"),
                reason="groups are told apart by them",
            ),
            absent(
                "before 0.13", "<0.13.0.dev0", Absent(site=_GROUPS), reason="groups are not looked up by keys"
            ),
        ),
        upstream=("NVIDIA/Megatron-LM#4705",),
        fixed="0.19.0",
        shown=READ,
        way_out="give all parameters one max_lr and min_lr",
    ),
    Defect(
        id="megatron.gdn-norm-gradient",
        project=MEGATRON,
        summary="The norm at the end of Megatron's Gated DeltaNet has on each tensor parallel rank the "
        "gradient of its own heads, which nothing sums without sequence parallelism: copies drift "
        "apart. Nobody notices.",
        harm="silent-wrong",
        met="Megatron's own Gated DeltaNet with tensor parallelism and without sequence parallelism.",
        when=((_TP, among("sequence_parallel", False), beyond("the model has Megatron's Gated DeltaNet")),),
        variants=(
            present("0.16", ">=0.16.0.dev0", known(_NORM, "b7d2f9261984")),
            absent("before 0.16", "<0.16.0.dev0", Absent(site=_NORM), reason="there is no such layer"),
        ),
        upstream=("NVIDIA/Megatron-LM#7452",),
        shown=READ,
        way_out="sequence parallelism",
    ),
    Defect(
        id="megatron.masked-tokens-overcounted",
        project=MEGATRON,
        summary="With a padding mask an all-reduce overwrites a rank's number of tokens with that of all, "
        "and the auxiliary losses are scaled by it. Nobody notices.",
        harm="silent-wrong",
        met="Auxiliary losses of a router with a padding mask and calculate_per_token_loss.",
        when=(
            (
                _AUX,
                given("num_experts"),
                switched("calculate_per_token_loss"),
                beyond("there is a padding mask"),
            ),
        ),
        variants=(
            present("0.16", ">=0.16.0.dev0", known(_COUNT, "e1f3c743e783")),
            absent("before", "<0.17.0.dev0", Absent(site=_COUNT), reason="routers know no padding mask"),
        ),
        upstream=("NVIDIA/Megatron-LM#7481", "NVIDIA/Megatron-LM#7452"),
        shown="tests/real/test_megatron_moe_aux.py::test_a_padding_mask_makes_the_count_of_a_rank_that_of_all",
        way_out="pack sequences instead of padding them",
    ),
    Defect(
        id="megatron.seq-aux-loss-micro-batch-scale",
        project=MEGATRON,
        summary="With a loss per token the gradient of seq_aux_loss is too small by the number of sequences "
        "in a micro-batch. Nobody notices: what is logged is right.",
        harm="silent-wrong",
        met="seq_aux_loss with calculate_per_token_loss and several sequences in a micro-batch, on the dev "
        "branch.",
        when=(
            (
                given("num_experts"),
                among("moe_router_load_balancing_type", "seq_aux_loss"),
                _AUX,
                switched("calculate_per_token_loss"),
                above("micro_batch_size", 1),
            ),
        ),
        variants=(
            present("dev", ">=0.16.0.dev0", known(_SEQUENCE, "3e433714469a")),
            # Those of the releases count otherwise, and `megatron.moe-aux-scale` mends them with the rest.
            absent(
                "releases",
                ">=0.13.1.dev0",
                known(_SEQUENCE, "ef35efac69a6", "56ddc1f9e8d7", "3f96c4fa47cc"),
                reason="the method counts in another way",
            ),
            absent("before 0.14", "<0.14.0.dev0", Absent(site=_SEQUENCE), reason="there is no such method"),
        ),
        upstream=("NVIDIA/Megatron-LM#5798",),
        shown=READ,
        way_out="one sequence in a micro-batch",
    ),
    Defect(
        id="megatron.masked-loss-before-0-14",
        project=MEGATRON,
        summary="A masked loss is divided by the tokens of a rank's own slices; one without any makes the "
        "loss NaN. Else nobody notices.",
        harm="silent-wrong",
        met="Context parallelism without calculate_per_token_loss, and a loss function that returns a number "
        "of tokens.",
        when=(
            (
                _CP,
                among("calculate_per_token_loss", False),
                beyond("the loss function returns a sum, a number of tokens and a report"),
            ),
        ),
        variants=(
            present(
                "0.12",
                ">=0.11.0.dev0,<0.14.0.dev0",
                known(_STEP, "eb112126da5b", "241ca4edb8d8", "faf3bdaa7af9"),
            ),
            absent(
                "0.14",
                ">=0.13.1.dev0",
                known(_STEP, "c095b46581e7", "009aefd53383"),
                reason="see another record",
            ),
        ),
        upstream=("NVIDIA/Megatron-LM#7513", "NVIDIA/Megatron-LM#1764"),
        shown=READ,
        way_out="--calculate-per-token-loss; or move to 0.14, where megatron.masked-loss-cp mends it",
    ),
    Defect(
        id="megatron.reshardable-without-fused-adam",
        project=MEGATRON,
        summary="A fully reshardable checkpoint cannot be loaded into torch's own Adam: KeyError: 'step'.",
        harm="crash",
        met="A resume with dist_ckpt_optim_fully_reshardable, where neither Transformer Engine nor Apex is "
        "installed.",
        when=(
            (
                switched("dist_ckpt_optim_fully_reshardable"),
                beyond("the job resumes, with neither Transformer Engine nor Apex"),
            ),
        ),
        variants=(
            present("0.15", ">=0.15.0.dev0", known(_LOAD, "205ab9853a7c", "54793d359f10")),
            absent("before 0.15", "<0.15.0.dev0", reason="there is no such format"),
        ),
        shown=READ,
        way_out="install Transformer Engine or Apex",
    ),
)
