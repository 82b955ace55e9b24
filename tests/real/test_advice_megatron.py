"""What records of Megatron advise is done here, on each release that has the defect."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from advised import having
from checks import SEED, UPSTREAMS
from listed_sources import Listed, Said

from overlay.compat.ranks.findings import megatron_ranks

pytestmark = pytest.mark.real


@functools.cache
def _ran(folder: Path, patches: str) -> dict[str, list[dict[str, float]]]:
    return megatron_ranks(SEED, UPSTREAMS / "advised_cases.py", patches, release=folder)


def advised(folder: Path, start: str, patches: str = "") -> dict[str, list[dict[str, float]]]:
    found = _ran(folder, patches)
    kept = {name: ranks for name, ranks in found.items() if name.startswith(start)}
    assert kept
    return kept


@having("megatron.masked-loss-before-0-14")
def test_a_loss_per_token_is_right_in_0_13(name: str, listed: Listed) -> None:
    for case, ranks in advised(listed(name), "a loss per token").items():
        assert all(rank["error"] < 1e-5 for rank in ranks), (SEED, case, ranks)


def test_a_loss_per_token_is_harmful_in_0_12(listed: Listed) -> None:
    """Each rank divides by its own tokens there, and ranks with others get another gradient."""
    found = advised(listed("megatron-core==0.12.3"), "a loss per token, fewer")
    for case, ranks in found.items():
        assert all(rank["error"] > 0.1 for rank in ranks), (SEED, case, ranks)


@having("megatron.global-aux-loss-scale")
def test_a_coefficient_of_all_ranks_is_right(name: str, listed: Listed) -> None:
    """With `megatron.moe-aux-scale`: what else is off there is of other records."""
    for case, ranks in advised(listed(name), "a coefficient", "megatron.moe-aux-scale").items():
        for rank in ranks:
            assert rank["scale"] == pytest.approx(1, rel=1e-4), (SEED, case)
            assert rank["reported"] < 1e-4, (SEED, case)


@having("megatron.padded-z-loss-report")
def test_packed_sequences_report_the_z_loss_of_all(name: str, listed: Listed) -> None:
    for case, ranks in advised(listed(name), "packed", "megatron.moe-aux-scale").items():
        assert all(rank["reported"] < 1e-4 for rank in ranks), (SEED, case, ranks)


@having("megatron.seq-aux-loss-micro-batch-scale")
def test_one_sequence_in_a_micro_batch_weighs_as_much_as_it_should(name: str, listed: Listed) -> None:
    """Where data parallel ranks are alone: what else is off there is of other records."""
    cases = advised(listed(name), "")
    for count in (1, 2):
        found = [ranks for case, ranks in cases.items() if case.startswith(f"{count} in a micro-batch")]
        assert found
        for rank in (rank for ranks in found for rank in ranks):
            assert rank["scale"] == pytest.approx(1 / count, rel=1e-4), (SEED, count)


PACKED = """
import json, sys
from overlay.compat.contracts import megatron_parts as parts
import torch

# No number of tokens is balanced to the last: the gradient would be 0.
TOKENS, PACKED, EXPERTS, TOPK = 7, 3, 4, 2

def gradient(weight, sequences):
    own = weight.detach().double().requires_grad_()
    losses = []
    for one in sequences:
        probs = torch.softmax(one.double() @ own.T, dim=-1)
        counts = torch.zeros_like(probs).scatter(1, probs.topk(TOPK).indices, 1.0).mean(0) / TOPK
        losses.append(EXPERTS * (probs.mean(0) * counts).sum())
    torch.stack(losses).mean().backward()
    return own.grad

def errors(kind):
    config = parts.small_transformer(
        num_moe_experts=EXPERTS, moe_router_topk=TOPK, moe_aux_loss_coeff=1.0, add_bias_linear=False,
        moe_router_load_balancing_type=kind,
    )
    router = parts.router(config)
    router.weight.data.normal_()
    states = torch.randn(PACKED, TOKENS, config.hidden_size)
    found = {}
    pack, batch = states.reshape(-1, 1, config.hidden_size), states.transpose(0, 1).contiguous()
    for layout, given in (("packed", pack), ("batch", batch)):
        router.weight.grad = None
        (0 * router(given)[0].sum()).backward()
        for each, right in (("each", states), ("all", states.reshape(1, -1, config.hidden_size))):
            wanted = gradient(router.weight, right)
            found[f"{layout}, {each}"] = parts.relative_error(router.weight.grad, wanted)
    return found

@parts.on_one_rank
def found(seed):
    from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
    MoEAuxLossAutoScaler.set_loss_scale(torch.ones(1))
    return {kind: errors(kind) for kind in ("seq_aux_loss", "aux_loss")}

print(json.dumps(found(sys.argv[1])))
"""


@having("megatron.packed-sequence-balance")
def test_aux_loss_balances_the_same_packed_or_not(said: Said) -> None:
    """It says that it balances all tokens of a micro-batch, and does; seq_aux_loss says each sequence."""
    found = said(PACKED)
    each = found["seq_aux_loss"]
    assert each["batch, each"] < 1e-4, SEED
    assert each["packed, each"] > 1e-2, "the defect is not there any more"
    assert each["packed, all"] < 1e-4, SEED
    assert found["aux_loss"]["packed, all"] < 1e-4, SEED
    assert found["aux_loss"]["batch, all"] < 1e-4, SEED


FLOAT32 = """
import json, sys
from overlay.compat.contracts import megatron_parts as parts, offloaded
import torch

def stepped(kind):
    # Whether a step of an offloaded optimizer is that of Adam, or what it is refused with.
    plain = torch.randn
    torch.randn = lambda *size, **named: plain(*size, **{**named, "dtype": kind})
    try:
        trained = offloaded.Trained(1.0, aware=True)
    except ValueError as error:
        return str(error)
    finally:
        torch.randn = plain
    reference, gradients = offloaded.Reference(trained.weights()), trained.gradients()
    trained.step(gradients)
    return all(map(torch.equal, trained.weights(), reference.step(gradients)))

@parts.on_one_rank
def found(seed):
    with offloaded.two_memories():
        return {str(kind): stepped(kind) for kind in (torch.bfloat16, torch.float32)}

print(json.dumps(found(sys.argv[1])))
"""


@having("megatron.offloaded-float32")
def test_an_offloaded_optimizer_steps_weights_in_bfloat16(said: Said) -> None:
    found = said(FLOAT32)
    assert found["torch.bfloat16"] is True, SEED
    assert "can't optimize a non-leaf Tensor" in found["torch.float32"]


CROSS = """
import json, sys
from overlay.compat.contracts.forked import wrong_on_ranks

def error(groups, tp, data):
    import torch
    import torch.distributed as dist
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.attention import CrossAttention, CrossAttentionSubmodules
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from overlay.compat.contracts import megatron_parts as parts

    kinds = CrossAttentionSubmodules(
        linear_q=ColumnParallelLinear, linear_kv=ColumnParallelLinear, core_attention=DotProductAttention,
        linear_proj=RowParallelLinear,
    )
    config = parts.small_transformer(tensor_model_parallel_size=2, add_bias_linear=False)
    layer = CrossAttention(config, kinds, 1, **groups)
    hidden, states, gradient = (torch.randn(5, 1, 8, generator=data, requires_grad=True) for _ in range(3))
    layer(hidden, None, key_value_states=states)[0].backward(gradient)

    def whole(weight, dim):
        each = [torch.empty_like(weight) for _ in range(2)]
        dist.all_gather(each, weight.detach().contiguous(), group=tp)
        return torch.cat(each, dim).double()

    own, other = (one.detach().double().requires_grad_() for one in (hidden, states))
    queries = (own @ whole(layer.linear_q.weight, 0).T).view(5, 2, 4).transpose(0, 1)
    both = (other @ whole(layer.linear_kv.weight, 0).T).view(5, 2, 8).transpose(0, 1)
    keys, values = both.split(4, -1)
    found = torch.nn.functional.scaled_dot_product_attention(queries, keys, values)
    found = found.transpose(0, 1).reshape(5, 1, 8) @ whole(layer.linear_proj.weight, 1).T
    found.backward(gradient.detach().double())
    return max(parts.relative_error(hidden.grad, own.grad), parts.relative_error(states.grad, other.grad))

def look():
    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state, process_groups_config
    from overlay.compat import megatron_on_cpu
    megatron_on_cpu.start_megatron(tensor_model_parallel_size=2)
    rank, seed = dist.get_rank(), int(sys.argv[1]) % 2**31
    made = [dist.new_group(ranks) for ranks in ((0, 2), (1, 3))]
    kind = getattr(process_groups_config, "ProcessGroupCollection", None)
    name = "pg_collection" if kind else "model_comm_pgs"
    kind = kind or process_groups_config.ModelCommProcessGroups
    own = kind(tp=made[rank % 2], cp=parallel_state.get_context_parallel_group())
    torch.manual_seed(seed)
    state = parallel_state.get_tensor_model_parallel_group()
    found = {
        "the state's": error({}, state, torch.Generator().manual_seed(seed + rank // 2)),
        "its own": error({name: own}, made[rank % 2], torch.Generator().manual_seed(seed + rank % 2)),
    }
    each = [None] * 4
    dist.all_gather_object(each, found)
    if not rank:
        yield json.dumps({group: [one[group] for one in each] for group in found})

if __name__ == "__main__":
    print(wrong_on_ranks(look, "megatron.core.transformer.attention", ranks=4))
"""


@having("megatron.cross-attention-group")
def test_cross_attention_with_the_groups_of_the_state_is_right(said: Said) -> None:
    """Of four ranks two by two, and of each their own groups are across those of the state."""
    found = said(CROSS)
    assert max(found["the state's"]) < 1e-5, SEED
    assert min(found["its own"]) > 0.01, "the defect is not there any more"


MASTERS = """
import json, sys
from overlay.compat.contracts import megatron_parts as parts, offloaded
import torch

def loaded(names, *, masters):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.config = parts.small_transformer()
            for name in names:
                self.register_parameter(name, torch.nn.Parameter(torch.randn(4, 3, dtype=torch.bfloat16)))
    model = parts.data_parallel(Model(), use_distributed_optimizer=True)
    optimizer = parts.optimizer(
        model, lr=0.05, adam_eps=1e-6, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True
    )
    weights = {name: torch.randn(4, 3) for name in names}
    for name, one in model.module.named_parameters():
        one.data.copy_(weights[name])
    try:
        optimizer.reload_model_params(**({"state_dict": weights} if masters else {}))
    except AssertionError as error:
        return str(error)
    right = {name: (one if masters else one.bfloat16()).double() for name, one in weights.items()}
    gradients = {name: torch.randn(4, 3) for name in names}
    for name, one in model.module.named_parameters():
        one.main_grad.copy_(gradients[name])
    optimizer.step()
    adam = torch.optim.AdamW(list(right.values()), lr=0.05, eps=1e-6, weight_decay=0.0)
    for name, one in right.items():
        one.grad = gradients[name].double()
    adam.step()
    # Rounded to bfloat16 as the weights are: a float32 step is some 1e-8 beside the float64 one.
    return sum(
        int(((one < (right[name] - 1e-6).bfloat16()) | (one > (right[name] + 1e-6).bfloat16())).sum())
        for name, one in model.module.named_parameters()
    )

@parts.on_one_rank
def found(seed):
    inside, apart = ("weight", "weight_more"), ("one", "other")
    return {
        "loaded": loaded(inside, masters=True), "left out": loaded(inside, masters=False),
        "apart": loaded(apart, masters=True),
    }

print(json.dumps(found(sys.argv[1])))
"""


@having("megatron.main-params-by-substring")
def test_masters_that_are_not_loaded_begin_with_the_weights(said: Said) -> None:
    found = said(MASTERS)
    assert found["loaded"] == "Parameter weight has 2 matches in state dict"
    assert found["apart"] == 0, SEED
    assert found["left out"] == 0, SEED
