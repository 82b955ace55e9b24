"""What is known to be wrong in Megatron-Core and that no patch mends."""

from __future__ import annotations

from overlay.compat.projects import MEGATRON
from overlay.defect import READ, Defect, above, among, beyond, given, switched
from overlay.patch import Absent, known
from overlay.patches._defects._sources import absent, fixed, present

_CP = above("context_parallel_size", 1)
_AUX = above("moe_aux_loss_coeff", 0)
_SCHEDULES = "megatron.core.pipeline_parallel.schedules"
_STEP = f"{_SCHEDULES}:forward_step"
_SYNC = "megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucketGroup.start_grad_sync"
_DISTRIBUTED = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer"
_NAMES = f"{_DISTRIBUTED}._build_model_param_to_state_dict_param_map"
_LOAD = f"{_DISTRIBUTED}._set_main_param_and_optimizer_states"
_POST = "megatron.core.models.gpt.gpt_model:GPTModel._postprocess"
_MTP = "megatron.core.transformer.multi_token_prediction:process_mtp_loss"
_BLOCK = "megatron.core.transformer.multi_token_prediction:MultiTokenPredictionBlock.forward"
_COUNT = "megatron.core.transformer.moe.moe_utils:get_tokens_per_expert_and_token_count"
_BUCKET = "megatron.core.distributed.param_and_grad_buffer:_ParamAndGradBucket.__init__"
_CROSS = "megatron.core.transformer.attention:CrossAttention.__init__"
_MTP_LAYER = (
    "megatron.core.transformer.multi_token_prediction:MultiTokenPredictionLayer._checkpointed_forward"
)
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
    Defect(
        id="megatron.mxfp8-offsets-unaligned",
        project=MEGATRON,
        summary="Weights in MXFP8 are copied from their buffer at offsets that leave out its alignment: "
        "behind a size that is no multiple of 64 each is shifted. Nobody notices.",
        harm="silent-wrong",
        met="reuse_grad_buf_for_mxfp8_param_ag with the distributed optimizer, and parameters whose sizes "
        "are no multiples of 64.",
        when=(
            (
                switched("reuse_grad_buf_for_mxfp8_param_ag"),
                beyond("the size of a parameter is no multiple of 64"),
            ),
        ),
        variants=(
            present("0.14", ">=0.14.0.dev0", known(_BUCKET, "c45daa222bac")),
            fixed(
                "0.17",
                ">=0.16.0.dev0",
                known(_BUCKET, "a7492ab38f0b", "85c35ca602a3", "b3082e6be9fc"),
                reason="offsets are those of the buffer",
            ),
            absent(
                "before 0.14",
                "<0.14.0.dev0",
                known(_BUCKET, "1a42db3e8efd", "c45daa222bac"),
                reason="nothing reads these offsets",
            ),
        ),
        upstream=("NVIDIA/Megatron-LM#3007",),
        fixed="0.17.0",
        shown=READ,
        way_out="leave --reuse-grad-buf-for-mxfp8-param-ag out",
    ),
    Defect(
        id="megatron.own-groups-mtp-recompute",
        project=MEGATRON,
        summary="Recomputation of multi-token prediction in FP8 asks for Megatron's global tensor parallel "
        "group, whatever group the layer was given: AssertionError where there is none.",
        harm="crash",
        met="Process groups of one's own, with mtp_num_layers, recomputation and FP8.",
        when=(
            (
                given("mtp_num_layers"),
                given("recompute_granularity"),
                beyond("FP8, and process groups of one's own"),
            ),
        ),
        variants=(
            present(
                "0.14",
                ">=0.14.0.dev0",
                known(_MTP_LAYER, "9a1489f4588a", "d5851abfa356", "61b11bd605fc", "19a72628b433"),
            ),
            absent("before 0.14", "<0.14.0", Absent(site=_MTP_LAYER), reason="there is no such method"),
        ),
        upstream=("NVIDIA/Megatron-LM#7452",),
        shown=READ,
        way_out="initialize Megatron's own groups too: parallel_state.initialize_model_parallel",
    ),
    Defect(
        id="megatron.own-groups-cross-attention",
        project=MEGATRON,
        summary="The projections of cross attention are built on Megatron's global tensor parallel group, "
        "whatever group the layer was given: shapes do not fit, or there is no such group.",
        harm="crash",
        met="Process groups of one's own, and a model with cross attention.",
        when=((beyond("the model has cross attention and process groups of one's own"),),),
        variants=(
            present(
                "0.13",
                ">=0.13.0.dev0",
                known(_CROSS, "4dec56ca44be", "bc484f3b90ea", "2cccc7b88496", "e15a36b70dc3", "16a94a32e998"),
            ),
            absent("0.12", "<0.13.0.dev0", known(_CROSS, "261c10dd8745"), reason="it takes no groups"),
        ),
        upstream=("NVIDIA/Megatron-LM#7452",),
        shown=READ,
        way_out="initialize Megatron's own groups too: parallel_state.initialize_model_parallel",
    ),
)
