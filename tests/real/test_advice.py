"""What records of known defects advise is done here, on each release that has the defect."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checks import SEED, UPSTREAMS

from overlay.compat.ranks.findings import megatron_ranks
from records import defects

pytestmark = pytest.mark.real

#: Release to defect to what it is there.
RECORD = defects.heat()


def having(defect: str) -> pytest.MarkDecorator:
    """Run a test for each release that has a defect, by day for the last of them.

    Images and heads are judged by the same sources.
    """
    found = [name for name, row in RECORD.items() if row.get(defect) in ("open", "mended") and "==" in name]
    assert found
    left = pytest.mark.nightly("the last release stands for the others", name=found[:-1])
    return pytest.mark.parametrize("name", [pytest.param(name, marks=left) for name in found])


@pytest.fixture
def said(
    name: str, listed: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> Callable[[str], dict[str, Any]]:
    """Return the function that runs a program on the release and returns what it printed."""
    return lambda text: findings(listed(name), text, SEED)


REWARDS = """
import json, sys
from types import SimpleNamespace
from overlay.compat.verl_imports import stand_in
stand_in()
import torch
from verl.trainer.ppo.core_algos import compute_reinforce_plus_plus_outcome_advantage as advantage

def returns(place):
    draw = torch.Generator().manual_seed(int(sys.argv[1]))
    # Turns of the policy, with observations between them.
    mask = torch.tensor([[1, 1, 0, 0, 1, 1, 0], [1, 1, 1, 0, 0, 1, 0]])
    rewards = torch.zeros(2, 7)
    rewards[:, place] = torch.rand(2, generator=draw) + 1
    found = advantage(rewards, mask, config=SimpleNamespace(gamma=1.0))[1]
    right = rewards.sum(1, keepdim=True) * mask
    return [float((found - right).abs().max()), float(found.abs().max())]

print(json.dumps({"policy": returns(5), "observation": returns(6)}))
"""


@having("verl.reward-on-observation-dropped")
def test_a_reward_on_a_token_of_the_policy_is_credited(said: Callable[[str], dict[str, Any]]) -> None:
    found = said(REWARDS)
    error, _ = found["policy"]
    assert error < 1e-6, SEED
    _, largest = found["observation"]
    assert largest == 0, "the defect is not there any more"


DISTILLED = """
import json, sys
from overlay.compat.verl_imports import stand_in
stand_in()
import torch
from verl.trainer.distillation.losses import compute_distillation_loss_range as measured

def outcome(count):
    draw = torch.Generator().manual_seed(int(sys.argv[1]))
    losses, mask = torch.randn(2, 5, generator=draw), torch.zeros(2, 5)
    mask[0, :count] = 1
    try:
        found = measured(losses, mask)
    except RuntimeError as error:
        return str(error)
    ends = [one.aggregate() for one in found.values()]
    return sorted(ends) == sorted(map(float, (losses[0, :count].min(), losses[0, :count].max())))

print(json.dumps({"none": outcome(0), "one": outcome(1), "three": outcome(3)}))
"""


@having("verl.distillation-of-nothing")
def test_a_distillation_of_one_token_is_measured(said: Callable[[str], dict[str, Any]]) -> None:
    found = said(DISTILLED)
    assert found["one"] is True, SEED
    assert found["three"] is True, SEED
    assert "reduction dim" in found["none"]


MASKED = """
import json, sys
from overlay.compat.slime_on_cpu import imported
from overlay.patches.slime.tool_turn_mask.contract import _Tokenizer, rendered

TAGS = {"<s>": "<|im_start|>", "<e>": "<|im_end|>"}

def tagged(text):
    for short, full in TAGS.items():
        text = text.replace(short, full)
    return text

class Tokenizer(_Tokenizer):
    def __call__(self, text, **options):
        text = tagged(text)
        return {"input_ids": list(map(ord, text)), "offset_mapping": [(i, i + 1) for i in range(len(text))]}

    def apply_chat_template(self, messages, **options):
        found = super().apply_chat_template(messages, **options)
        return tagged(found) if isinstance(found, str) else found

module = imported("slime.utils.mask_utils")
messages = [
    {"role": "system", "content": "S"}, {"role": "user", "content": "U"},
    {"role": "assistant", "content": "CALL"}, {"role": "tool", "content": "1"},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "A"},
]
right = [(ord(letter), mask) for text, mask in rendered(messages) for letter in tagged(text)]
found = {}
for kind in ("qwen", "qwen3", "qwen3_5"):
    try:
        tokens, mask = module.MultiTurnLossMaskGenerator(Tokenizer(), kind).get_loss_mask(messages)
    except (ValueError, AttributeError) as error:
        found[kind] = f"{type(error).__name__}: {error}"
    else:
        found[kind] = "right" if list(zip(tokens, mask)) == right else "".join(map(chr, tokens))
print(json.dumps(found))
"""


@having("slime.qwen-tool-results-split")
def test_slimes_other_masks_keep_the_results_of_tools_in_one_turn(
    name: str, said: Callable[[str], dict[str, Any]]
) -> None:
    """Of `qwen3` with the patch the contract of `slime.tool-turn-mask` asks the same."""
    found = said(MASKED)
    assert found["qwen"] != "right", "the defect is not there any more"
    old = name.partition("==")[2] in ("v0.1.0", "v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2", "v0.2.3")
    assert (found["qwen3_5"] == "right") is not old, found
    assert (found["qwen3"].startswith("ValueError")) is (name == "slime==v0.1.0"), found


@functools.cache
def _ran(folder: Path, patches: str) -> dict[str, list[dict[str, float]]]:
    return megatron_ranks(SEED, UPSTREAMS / "advised_cases.py", patches, release=folder)


def advised(folder: Path, start: str, patches: str = "") -> dict[str, list[dict[str, float]]]:
    found = _ran(folder, patches)
    kept = {name: ranks for name, ranks in found.items() if name.startswith(start)}
    assert kept
    return kept


@having("megatron.masked-loss-before-0-14")
def test_a_loss_per_token_is_right_in_0_13(name: str, listed: Callable[[str], Path]) -> None:
    for case, ranks in advised(listed(name), "a loss per token").items():
        assert all(rank["error"] < 1e-5 for rank in ranks), (SEED, case, ranks)


def test_a_loss_per_token_is_harmful_in_0_12(listed: Callable[[str], Path]) -> None:
    """Each rank divides by its own tokens there, and ranks with others get another gradient."""
    found = advised(listed("megatron-core==0.12.3"), "a loss per token, fewer")
    for case, ranks in found.items():
        assert all(rank["error"] > 0.1 for rank in ranks), (SEED, case, ranks)


@having("megatron.global-aux-loss-scale")
def test_a_coefficient_of_all_ranks_is_right(name: str, listed: Callable[[str], Path]) -> None:
    """With `megatron.moe-aux-scale`: what else is off there is of other records."""
    for case, ranks in advised(listed(name), "a coefficient", "megatron.moe-aux-scale").items():
        for rank in ranks:
            assert rank["scale"] == pytest.approx(1, rel=1e-4), (SEED, case)
            assert rank["reported"] < 1e-4, (SEED, case)


@having("megatron.padded-z-loss-report")
def test_packed_sequences_report_the_z_loss_of_all(name: str, listed: Callable[[str], Path]) -> None:
    for case, ranks in advised(listed(name), "packed", "megatron.moe-aux-scale").items():
        assert all(rank["reported"] < 1e-4 for rank in ranks), (SEED, case, ranks)


@having("megatron.seq-aux-loss-micro-batch-scale")
def test_one_sequence_in_a_micro_batch_weighs_as_much_as_it_should(
    name: str, listed: Callable[[str], Path]
) -> None:
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
def test_aux_loss_balances_the_same_packed_or_not(said: Callable[[str], dict[str, Any]]) -> None:
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
def test_an_offloaded_optimizer_steps_weights_in_bfloat16(said: Callable[[str], dict[str, Any]]) -> None:
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
def test_cross_attention_with_the_groups_of_the_state_is_right(said: Callable[[str], dict[str, Any]]) -> None:
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
    right = {name: one if masters else one.bfloat16().float() for name, one in weights.items()}
    gradients = {name: torch.randn(4, 3) for name in names}
    for name, one in model.module.named_parameters():
        one.main_grad.copy_(gradients[name])
    optimizer.step()
    adam = torch.optim.AdamW(list(right.values()), lr=0.05, eps=1e-6, weight_decay=0.0)
    for name, one in right.items():
        one.grad = gradients[name]
    adam.step()
    return max(
        float((one.detach() - right[name].bfloat16()).abs().max())
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
def test_masters_that_are_not_loaded_begin_with_the_weights(said: Callable[[str], dict[str, Any]]) -> None:
    found = said(MASTERS)
    assert found["loaded"] == "Parameter weight has 2 matches in state dict"
    assert found["apart"] == 0, SEED
    assert found["left out"] == 0, SEED


CORRECT = """
import json, random, sys
from argparse import Namespace
from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.slime_on_cpu import import_slime
import torch

(data,) = import_slime("data")
own = random.Random(sys.argv[1]).sample(range(3, 30), 4)

def logged(rewards, **settings):
    told = {}
    data.gather_log_data = lambda name, args, number, found: told.update(found)
    args = Namespace(
        ci_test=False, log_multi_turn=False, log_passrate=False, log_correct_samples=False, qkv_format="thd",
        rollout_max_response_len=32,
    )
    vars(args).update(settings)
    # As slime deals it out to one of two ranks: all is its own, but for the rewards.
    rollout = {
        "response_lengths": own, "total_lengths": own, "raw_reward": rewards, "global_batch_sizes": [8],
        "loss_masks": [torch.ones(one) for one in own], "log_probs": [-torch.ones(one) for one in own],
    }
    try:
        data.log_rollout_data(0, args, rollout)
    except IndexError as error:
        return str(error)
    told = {name: one[0] / one[1] if isinstance(one, tuple) else one for name, one in told.items()}
    return {"told": told, "correct": rollout.get("correct_response_lengths"), "own": own}

@parts.on_one_rank
def found(seed):
    # The rank has the last four of the batch: all of them are correct, or one of the other rank's.
    last, first = [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0, 0, 0]
    return {
        "last": logged(last, log_correct_samples=True), "first": logged(first, log_correct_samples=True),
        "off": logged(last),
    }

print(json.dumps(found(sys.argv[1])))
"""


@having("slime.correct-samples-mispaired")
def test_without_correct_samples_slime_reports_a_ranks_own(said: Callable[[str], dict[str, Any]]) -> None:
    found = said(CORRECT)
    assert found["last"] == "list index out of range"
    # Another rank's sample is correct, and the second of its own is taken for it.
    assert found["first"]["correct"] == [found["first"]["own"][1]]
    assert found["off"]["correct"] is None
    assert found["off"]["told"]["response_lengths"] == sum(found["off"]["own"]) / 4, SEED
    assert found["off"]["told"]["log_probs"] < 0


HEADS = """
import functools, json, sys
from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.cuda_on_cpu import replaced
from overlay.compat.slime_on_cpu import stand_in
stand_in()
import torch

def responses(batch):
    # Of one sequence: of it slime up to 0.2.1 makes a mask for the heads.
    tokens = batch["tokens"] = batch["tokens"][:1]
    batch.update(dict.fromkeys(("total_lengths", "response_lengths"), [tokens.numel()]))
    batch["loss_masks"] = [torch.ones(tokens.numel())]
    return batch

def trained(heads, draw):
    from megatron.core.transformer.multi_token_prediction import MTPLossLoggingHelper as helper
    from overlay.compat.slime_on_cpu.trained import Trained
    helper.tracker.clear()
    one = Trained(int(sys.argv[1]) % 1000)
    one.args.enable_mtp_training = True
    losses = torch.rand(2, heads, generator=draw)
    batches, plain = iter(losses), one.model.forward

    def forward(*given, **named):
        # What Megatron's model does with each head.
        for head, loss in enumerate(next(batches)):
            helper.save_loss_to_tracker(loss, head, heads)
        return plain(*given, **named)

    @functools.wraps(one.module.train)
    def train(*given, **named):
        get = one.module.get_batch
        one.module.get_batch = lambda *args, **more: responses(get(*args, **more))
        return train.__wrapped__(*given, **named)

    one.model.forward = forward
    one.module.slice_with_cp = lambda tokens, *_: tokens
    try:
        with replaced(one.module, "train", train):
            one.rollout(0, [2])
    except RuntimeError as error:
        return str(error)
    log = getattr(one.module, "logging_utils", None) or one.module.tracking_utils
    told = [call.args[1] for call in log.log.call_args_list if "train/mtp_loss" in call.args[1]]
    return abs(told[0]["train/mtp_loss"] - float(losses.mean()))

@parts.on_one_rank
def found(seed):
    draw = torch.Generator().manual_seed(int(seed) % 2**31)
    return {heads: trained(heads, draw) for heads in (1, 2)}

print(json.dumps(found(sys.argv[1])))
"""


@having("slime.mtp-heads-not-logged")
def test_the_loss_of_one_head_is_logged(said: Callable[[str], dict[str, Any]]) -> None:
    found = said(HEADS)
    assert found["1"] < 1e-6, SEED
    assert "cannot be converted to Scalar" in found["2"]


ENTROPY = """
import json, sys
from overlay.compat.verl_imports import stand_in
stand_in()
import torch
from verl.utils.experimental.torch_functional import FusedLinearForPPO

draw = torch.Generator().manual_seed(int(sys.argv[1]))
hidden, weight = torch.randn(6, 8, generator=draw), torch.randn(16, 8, generator=draw)
hidden[:, 0], weight[:, 0] = 1, -200  # so that all logits are below -88
tokens = torch.randint(16, (6,), generator=draw)

def step(fused, *given):
    given = [one.clone().requires_grad_() for one in given]
    chosen, entropy = fused(*given)
    (chosen.sum() + entropy.sum()).backward()
    return [one.detach().double() for one in (chosen, entropy, given[0].grad, given[1].grad)]

def plainly(hidden, weight):
    found = (hidden @ weight.T).log_softmax(-1)
    return found.gather(-1, tokens[:, None])[:, 0], -(found.exp() * found).sum(-1)

found = step(lambda *given: FusedLinearForPPO()(*given, tokens), hidden, weight)
right = step(plainly, hidden.double(), weight.double())
print(json.dumps({"errors": [float((a - b).norm() / b.norm()) for a, b in zip(found, right)]}))
"""


@having("verl.fused-entropy-underflow")
def test_the_entropy_of_torch_does_not_underflow(said: Callable[[str], Any]) -> None:
    # In float32 a gradient that is a difference of numbers around 200 has few digits.
    assert max(said(ENTROPY)["errors"]) < 0.01, SEED


REJECTED = """
import json, random, sys
from overlay.compat.verl_imports import stand_in
stand_in()
import torch
from tensordict import TensorDict
from overlay.compat import cpu_fsdp_engine
from overlay.patches.verl.critic_loss_scale import contract
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithValueHead as engine
from verl.workers.utils import padding

draw = random.Random(sys.argv[1])
generator = torch.Generator().manual_seed(draw.randrange(2**31))
batch = contract.draw_batch(draw, generator, 0.5)
kept = float(batch["response_mask"].sum() / batch["loss_mask"].sum())
model = cpu_fsdp_engine.Table(1, generator)
_, right = contract.reference(model.rows, batch, "token-mean")

def scale():
    loss = contract.loss_in("token-mean")
    cpu_fsdp_engine.step(engine, model, batch.clone(), loss, micro_batch_size_per_gpu=8)
    return float(model.rows.grad.norm() / right.norm())

left = scale()
ones = torch.ones(batch["response_mask"].shape, dtype=torch.long)
# flash_attn's, of rows without padding.
padding.unpad_input = lambda rows, mask: (
    rows.flatten(0, 1), torch.arange(mask.numel()), torch.arange(0, mask.numel() + 1, mask.shape[1])
)
padded = dict.fromkeys(("input_ids", "attention_mask", "position_ids"), ones)
padded["response_mask"] = batch["response_mask"]
batch["loss_mask"] = padding.left_right_2_no_padding(TensorDict(padded, len(ones)))["loss_mask"]
print(json.dumps({"kept": kept, "v1": left, "legacy": scale()}))
"""


@having("verl.rejected-tokens-counted")
def test_the_legacy_trainer_counts_no_rejected_token(said: Callable[[str], dict[str, Any]]) -> None:
    """What it hands the engine is made by the function that it calls before each update."""
    found = said(REJECTED)
    assert found["v1"] == pytest.approx(found["kept"], rel=1e-6), SEED
    assert found["kept"] < 0.9, SEED
    assert found["legacy"] == pytest.approx(1, rel=1e-6), SEED


WEIGHED = """
import functools, json, random, sys
from pathlib import Path
from overlay.compat.verl_imports import imported, stand_in
stand_in()
import torch
from verl import DataProto
from verl.workers.config import ActorConfig
from overlay.compat import cpu_fsdp_engine as cpu

SAMPLES = 8
draw = random.Random(sys.argv[1])
generator = torch.Generator().manual_seed(draw.randrange(2**31))
batch = cpu.draw_batch(draw, SAMPLES, silent=False)
shape = batch["response_mask"].shape
# All tokens of the first response count, and one of the second.
batch["response_mask"][:2] = batch["attention_mask"][:2, -shape[1]:]
batch["response_mask"][1, 1:] = 0
batch["loss_mask"] = batch["response_mask"]
model, places = cpu.Table(cpu.VOCABULARY, generator), cpu.before_responses(batch)

def log_probs(rows, samples):
    found = []
    for sample in samples:
        ids = places[sample]
        named = batch["responses"][sample][: len(ids), None]
        chosen = rows[ids].log_softmax(-1).gather(1, named)[:, 0]
        found.append(torch.nn.functional.pad(chosen, (0, shape[1] - len(ids))))
    return torch.stack(found)

drawn = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2)]
batch["advantages"] = drawn[0]
batch["old_log_probs"] = log_probs(model.rows, range(SAMPLES)).detach() + 0.2 * drawn[1]

def config(size):
    return ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_mini_batch_size=SAMPLES, ppo_micro_batch_size_per_gpu=size,
        entropy_coeff=0.0,
    )

def error(found):
    rows = model.rows.detach().clone().requires_grad_()
    ratio = (log_probs(rows, range(SAMPLES)) - batch["old_log_probs"]).exp()
    worst = torch.maximum(-drawn[0] * ratio, -drawn[0] * ratio.clamp(0.8, 1.2))
    worst = torch.where(drawn[0] < 0, torch.minimum(worst, -drawn[0] * 3.0), worst)
    (worst * batch["response_mask"]).sum().div(batch["response_mask"].sum()).backward()
    return float((found - rows.grad).norm() / rows.grad.norm())

def legacy(size):
    module = imported("verl.workers.actor.dp_actor", "flash_attn")
    module.get_device_id = lambda: "cpu"
    named = 'outputs["log_probs"]' in Path(module.__file__).read_text()

    class Actor(module.DataParallelPPOActor):
        def __init__(self):
            self.config, self.actor_module, self.scaler = config(size), model, None
            self.config.use_rollout_log_probs = True  # a single mini-batch is else on the policy
            self.actor_optimizer = torch.optim.SGD(model.parameters(), 0.0)
            self.ulysses_sequence_parallel_size, self.use_prefix_grouper = 1, False

        def _forward_micro_batch(self, given, **_):
            found = log_probs(model.rows, given["position_ids"][:, 0].tolist())
            return {"log_probs": found} if named else (None, found)

        def _optimizer_step(self):
            self.found = model.rows.grad.clone()
            return torch.zeros(())

    kept = ("responses", "response_mask", "attention_mask", "old_log_probs", "advantages")
    given = {name: batch[name] for name in kept} | {"input_ids": batch["attention_mask"]}
    given["position_ids"] = torch.arange(SAMPLES)[:, None]  # which sample it is
    actor = Actor()
    actor.update_policy(DataProto.from_dict(given, meta_info={"temperature": 1.0}))
    return error(actor.found)

def engine(size):
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
    from verl.workers.utils.losses import ppo_loss
    loss = functools.partial(ppo_loss, config(size))
    cpu.step(FSDPEngineWithLMHead, model, batch.clone(), loss, micro_batch_size_per_gpu=size)
    return error(model.rows.grad)

ways = {"legacy": legacy} | ({} if sys.argv[2] == "0.6.1" else {"engine": engine})
print(json.dumps({name: [way(size) for size in (1, 2, SAMPLES)] for name, way in ways.items()}))
"""


@having("verl.legacy-workers-weigh-by-samples")
def test_the_engine_weighs_each_token_alike(
    name: str, listed: Callable[[str], Path], findings: Callable[..., dict[str, Any]]
) -> None:
    """Advised from 0.7 on: before, no setting chooses the engine."""
    found = findings(listed(name), WEIGHED, SEED, name.partition("==")[2])
    one, two, whole = found["legacy"]
    assert min(one, two) > 0.01, "the defect is not there any more"
    assert whole < 1e-6, SEED
    assert max(found.get("engine", [0])) < 1e-6, SEED
    assert ("engine" in found) is (name != "verl==0.6.1")


RESUMED = """
import contextlib, functools, json, random, sys, tempfile
from pathlib import Path
from overlay.patches.verl.resume_epoch_boundary.contract import jobs

RL = functools.partial(jobs.RL, module="verl.trainer.ppo.ray_trainer", name="RayPPOTrainer")

def goes_on(step):
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        place = Path(folder)
        whole = jobs.batches(RL(place, 0), place, 0)
        return jobs.batches(RL(place, 0), place, step, save=False) == whole[step:]

with jobs.one_rank():
    step = random.Random(sys.argv[1]).randint(1, jobs.STEPS_PER_EPOCH - 1)
    print(json.dumps({"within": goes_on(step), "end": goes_on(jobs.STEPS_PER_EPOCH)}))
"""


@having("verl.resume-repeats-order")
def test_a_job_that_was_saved_within_an_epoch_goes_on(said: Callable[[str], dict[str, Any]]) -> None:
    found = said(RESUMED)
    assert found["within"] is True, SEED
    assert found["end"] is False, "the defect is not there any more"
