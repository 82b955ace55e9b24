"""The arguments of a job decide which known defects it is told of: none is named that they exclude."""

import random
import typing
from collections.abc import Mapping
from types import SimpleNamespace

import overlay
from overlay.compat.contracts import megatron_parts as parts

#: A job that meets none of the defects by its arguments, and what turns it into one that meets several, with
#: a loss per token or not: some are met by the one, and some by the other.
QUIET = {
    "context_parallel_size": 1, "tensor_model_parallel_size": 1, "num_experts": None, "mtp_num_layers": None,
    "moe_aux_loss_coeff": 0.0, "moe_z_loss_coeff": None, "sequence_parallel": False, "micro_batch_size": 1,
    "rollout_batch_size": None,
}  # fmt: skip
LOUD = {
    "context_parallel_size": 2, "tensor_model_parallel_size": 2, "num_experts": 8, "mtp_num_layers": 1,
    "moe_aux_loss_coeff": 0.01, "moe_z_loss_coeff": 0.001, "recompute_granularity": "full",
    "recompute_method": "uniform", "multi_latent_attention": True, "softmax_type": "learnable",
    "moe_router_load_balancing_type": "aux_loss", "async_save": True,
}  # fmt: skip


@parts.on_one_rank
def wrong(seed: str) -> str:
    """Return what is wrong in what the arguments of drawn jobs are said to meet."""
    import typing_extensions

    # From 0.18 on the trainer takes what Python has from 3.12 on.
    vars(typing).setdefault("override", typing_extensions.override)
    from megatron.training import global_vars

    def told(arguments: Mapping[str, object]) -> set[str]:
        args = SimpleNamespace(**arguments)
        global_vars._GLOBAL_ARGS = None
        global_vars.set_args(args)
        if global_vars.get_args() is not args:
            raise RuntimeError("Megatron does not have the arguments")
        met = overlay.status().met
        if any(one.state != "mended" and not one.way_out for one in met):
            raise RuntimeError(f"a defect without a way out: {met}")
        return {one.defect for one in met}

    draw = random.Random(seed)
    quiet = {**QUIET, "calculate_per_token_loss": draw.random() < 0.5}
    if found := told(quiet):
        return f"a job with nothing switched on is told of {sorted(found)}"
    loud = told(quiet | LOUD)
    if not loud:
        return "a job with everything switched on is told of nothing"
    switched = {name: value for name, value in LOUD.items() if draw.random() < 0.5}
    more = told(quiet | switched) - loud
    return f"{sorted(more)} are met by {switched}, and not by more" if more else ""


CONTRACT = parts.contract("megatron.known-defects", wrong)
