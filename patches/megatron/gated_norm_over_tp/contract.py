"""Each tensor parallel rank has the gradients of the layer that one process computes, the norm's too."""

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.contracts.forked import wrong_on_ranks

RANKS = 2
SLIMES = "slime.backends.megatron_utils.megatron_patch"
#: Tokens, sequences, hidden size; heads of keys and of values, and the size of each.
TOKENS, SEQUENCES, HIDDEN = 12, 3, 16
KEYS, VALUES, KEY_SIZE, VALUE_SIZE = 2, 4, 6, 5


def wrong(seed: str) -> str:
    """Return what a rank finds wrong, empty if none finds anything."""
    from overlay.compat import fla_on_cpu

    fla_on_cpu.stand_in()
    modules = ["megatron.core.ssm.gated_delta_net", "megatron.core.distributed"]
    found = wrong_on_ranks(partial(_rank, seed), *modules, ranks=RANKS)  # in a job without slime
    if not found and find_spec("slime") is not None:
        from overlay.compat import slime_on_cpu

        slime_on_cpu.stand_in()
        if find_spec(SLIMES) is not None:  # it replaces a function of Megatron's
            found = wrong_on_ranks(partial(_rank, seed), *modules, SLIMES, ranks=RANKS)
    return found


def _rank(seed: str) -> Iterator[str]:
    """Yield what is wrong on one of the ranks, which all draw the same."""
    import torch
    import torch.distributed as dist

    from overlay.compat import megatron_on_cpu

    megatron_on_cpu.start_megatron(tensor_model_parallel_size=RANKS)
    alone = [dist.new_group([rank]) for rank in range(RANKS)][dist.get_rank()]
    torch.manual_seed(int(seed) % 2**31)
    for parallel in (False, True):
        whole, part = _layer(alone, sequence_parallel=False), _layer(None, sequence_parallel=parallel)
        with torch.no_grad():
            for parameter in whole.parameters():
                parameter.copy_(torch.randn_like(parameter) / 2)
            for parameter, own in zip(part.parameters(), _own(whole.named_parameters()), strict=True):
                parameter.copy_(own)
        states = torch.randn(TOKENS, SEQUENCES, HIDDEN)
        weights = torch.randn(TOKENS, SEQUENCES, HIDDEN)
        (whole(states, None)[0] * weights).sum().backward()
        if parallel:
            states, weights = (one.chunk(RANKS)[dist.get_rank()] for one in (states, weights))
        chunk = parts.data_parallel(part)
        (part(states, None)[0] * weights).sum().backward()
        part.config.finalize_model_grads_func([chunk])
        wanted = _own((name, one.grad) for name, one in whole.named_parameters())
        for (name, parameter), grad in zip(part.named_parameters(), wanted, strict=True):
            if not torch.allclose(parameter.main_grad, grad, rtol=1e-3, atol=1e-4 * float(grad.abs().max())):
                mode = "with" if parallel else "without"
                share = float(parameter.main_grad.norm() / grad.norm())
                yield f"{mode} sequence parallelism the gradient of {name} has {share:.2f} of its size"


def _layer(group: Any, *, sequence_parallel: bool) -> Any:
    """Build Megatron's layer over the ranks of a group, `None` for the tensor parallel group."""
    import torch
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.process_groups_config import ProcessGroupCollection
    from megatron.core.ssm import gated_delta_net

    class Norm(torch.nn.RMSNorm):
        """An RMS norm by Megatron's keywords, marked as Transformer Engine's are."""

        def __init__(self, config: Any, hidden_size: int, eps: float) -> None:
            super().__init__(hidden_size, eps)
            vars(self.weight)["sequence_parallel"] = config.sequence_parallel

    config = parts.small_transformer(
        hidden_size=HIDDEN, activation_func=torch.nn.functional.silu, sequence_parallel=sequence_parallel,
        tensor_model_parallel_size=1 if group else RANKS, deterministic_mode=True, linear_conv_kernel_dim=3,
        linear_key_head_dim=KEY_SIZE, linear_value_head_dim=VALUE_SIZE, linear_num_key_heads=KEYS,
        linear_num_value_heads=VALUES,
    )  # fmt: skip
    groups = ProcessGroupCollection()
    groups.tp = group or parallel_state.get_tensor_model_parallel_group()
    groups.cp = parallel_state.get_context_parallel_group()
    submodules = gated_delta_net.GatedDeltaNetSubmodules(
        in_proj=tensor_parallel.ColumnParallelLinear,
        out_norm=Norm,
        out_proj=tensor_parallel.RowParallelLinear,
    )
    return gated_delta_net.GatedDeltaNet(config, submodules, layer_number=1, pg_collection=groups)


def _own(named: Any) -> Any:
    """Yield of each parameter of the whole layer, or its gradient, what this rank has of it."""
    import torch
    import torch.distributed as dist

    keys, values = KEYS * KEY_SIZE, VALUES * VALUE_SIZE
    sections = {
        "in_proj.weight": [keys, keys, values, values, VALUES, VALUES],
        "conv1d.weight": [keys, keys, values],
    }
    for name, one in named:
        if name == "out_norm.weight":
            yield one
        elif name == "out_proj.weight":
            yield one.chunk(RANKS, dim=1)[dist.get_rank()]
        else:
            rows = one.split(sections.get(name, [len(one)]))
            yield torch.cat([part.chunk(RANKS)[dist.get_rank()] for part in rows])


CONTRACT = parts.contract("megatron.gated-norm-over-tp", wrong)
