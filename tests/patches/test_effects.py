"""What each patch counts, on drawn inputs, against what is counted by hand."""

from __future__ import annotations

import asyncio
import importlib
import os
import random
import secrets
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import pytest

from overlay.catalogue.registry import load_patches, module_of
from overlay.effect import Counts, of_module, told

pytest.importorskip("torch")
import torch

PATCHES = load_patches()
SEED = int(os.environ.get("OVERLAY_TEST_SEED") or secrets.randbelow(2**31))
NO_MODULE: Any = None
#: A patch need not count.
COUNTING = [name for name in sorted(PATCHES) if find_spec(f"{module_of(name)}.effect") is not None]


def counts_of(patch: str) -> Any:
    """Return what a patch adds to, at nothing."""
    counts = importlib.import_module(f"{module_of(patch)}.effect").EFFECT
    counts.clear()
    return counts


def fix(patch: str) -> Any:
    return importlib.import_module(f"{module_of(patch)}.fix")


@pytest.fixture
def draw() -> random.Random:
    print("seed", SEED)
    return random.Random(SEED)


@pytest.mark.parametrize("patch", COUNTING)
def test_each_patch_declares_what_it_counts(patch: str) -> None:
    counts = counts_of(patch)
    assert isinstance(counts, Counts)
    assert counts.place == f"{module_of(patch)}.effect"
    # What a sentence names is counted.
    for figure in counts.effect.figures:
        setattr(counts, figure.name, 3)
    declared = of_module(module_of(patch))
    assert declared is not None
    assert "{" not in told(declared)
    assert counts.effect.then.count("{") == 0 or "; " in told(declared)
    counts.clear()


def test_capped_partitions_of_slime(draw: random.Random) -> None:
    from overlay.patches._slime_step import current

    counts = counts_of("slime.capped-partitions")
    over, fullest, changed = 0, 0.0, 0
    for _ in range(20):
        lengths = [draw.randint(1, 60) for _ in range(12)]
        theirs = [[0, 1, 2, 3, 4, 5], [6, 7, 8], [9], [10, 11], [], []][:4]
        budget = 100
        sums = [sum(lengths[index] for index in part) for part in theirs if len(part) > 1]
        split = fix("slime.capped-partitions").make_split(lambda *_, theirs=theirs: theirs, NO_MODULE)
        token = current.set((budget, 1))
        try:
            found = split(lengths, len(theirs), False)
        finally:
            current.reset(token)
        if found is not theirs:
            changed += 1
            over += sum(one > budget for one in sums)
            fullest = max(fullest, max(sums) / budget)
    assert counts.calls == 20
    assert (counts.changed, counts.over) == (changed, over)
    if changed:
        assert counts.fullest == fullest
    split([1, 2], 1, False)  # of nobody's step
    assert counts.calls == 20


@pytest.mark.parametrize("patch", ["slime.capped-partitions", "miles.capped-partitions"])
def test_micro_batches_by_flops(patch: str) -> None:
    from overlay.patches._partition.aligned import aligned

    counts = counts_of(patch)
    lengths = [60, 70, 30, 20]

    def expand(parts: list[list[int]], count: int, _lengths: Any) -> None:
        assert len(parts) == count

    kept = [[0], [1], [2, 3]]
    assert aligned(kept, lengths, 100, lambda: lengths, 1, expand, counts) is kept
    aligned([[0, 1], [2, 3]], lengths, 100, lambda: lengths, 1, expand, counts)
    assert counts.read() == {"calls": 2, "changed": 1, "over": 1, "fullest": 1.3}


def test_vpp_ceiling() -> None:
    from overlay.patches._slime_step import current

    counts = counts_of("slime.vpp-ceiling")
    rounded = fix("slime.vpp-ceiling").rounded
    token = current.set((100, 4))
    try:
        assert rounded([90] * 7, 7) == 8  # slime takes 4
        assert rounded([90] * 8, 8) == 8
        assert rounded([90] * 3, 3) == 4  # slime takes 1, as it is no less
    finally:
        current.reset(token)
    assert counts.read() == {"calls": 3, "changed": 2, "more": 4 + 3}


@pytest.mark.parametrize("patch", ["slime.fast-partitioner", "miles.fast-partitioner"])
def test_fast_partitioner(patch: str, draw: random.Random) -> None:
    counts = counts_of(patch)
    fast = fix(patch).make_karmarkar_karp(lambda *_: "slow", NO_MODULE)
    for _ in range(3):
        fast([draw.randint(1, 99) for _ in range(9)], 3, False)
    assert fast([1, 2], 0, False) == "slow"
    assert counts.read() == {"changed": 3}


def test_fast_partitioner_of_verl() -> None:
    counts = counts_of("verl.fast-partitioner")
    fast = fix("verl.fast-partitioner").make_partitioner(lambda *_: "slow", NO_MODULE)
    fast(torch.tensor([3, 1, 2]), 2, False)
    assert fast([1, 2], 0, False) == "slow"
    assert counts.read() == {"changed": 1}


def test_group_baseline(draw: random.Random) -> None:
    """Two prompts of two, in another order than slime takes them for."""
    counts = counts_of("slime.group-baseline")
    from overlay.patches.slime.group_baseline.rewards import by_prompt

    args = SimpleNamespace(
        advantage_estimator="reinforce_plus_plus_baseline",
        rewards_normalization=True,
        grpo_std_normalization=False,
        n_samples_per_prompt=2,
        rollout_batch_size=2,
    )
    rewards = [draw.uniform(0, 1) + 2 * index for index in range(4)]

    def samples(groups: list[int]) -> list[Any]:
        pairs = zip(rewards, groups, strict=True)
        return [
            SimpleNamespace(get_reward_value=lambda _, value=value: value, group_index=group, rollout_id=None)
            for value, group in pairs
        ]

    by_prompt(args, samples([0, 0, 1, 1]))
    assert counts.read() == {"calls": 1, "changed": 0, "rewards": 0}
    by_prompt(args, samples([0, 1, 0, 1]))
    a, b, c, d = rewards
    right = [a - (a + c) / 2, b - (b + d) / 2, c - (a + c) / 2, d - (b + d) / 2]
    theirs = [a - (a + b) / 2, b - (a + b) / 2, c - (c + d) / 2, d - (c + d) / 2]
    away = [abs(one - other) for one, other in zip(right, theirs, strict=True)]
    assert (counts.calls, counts.changed) == (2, 1)
    assert counts.rewards == sum(far > 1e-4 for far in away)
    assert counts.off == pytest.approx(max(away), abs=1e-5)


def test_partial_rollout_budget(draw: random.Random) -> None:
    counts = counts_of("slime.partial-rollout-budget")
    lengths = [0, draw.randint(1, 50), draw.randint(1, 50)]
    for length in lengths:
        sample = SimpleNamespace(response_length=length)
        assert fix("slime.partial-rollout-budget").left(sample, {"max_new_tokens": 40}) == {
            "max_new_tokens": max(40 - length, 0)
        }
    assert counts.read() == {"calls": 3, "changed": 2, "over": sum(lengths)}


def test_tool_turn_mask() -> None:
    counts = counts_of("slime.tool-turn-mask")
    tool, user = {"role": "tool"}, {"role": "user"}
    fix("slime.tool-turn-mask").turns([user, tool, tool, user, tool, user, tool, tool, tool])
    fix("slime.tool-turn-mask").turns([user, tool])
    assert counts.read() == {"calls": 2, "changed": 1, "turns": 2}


def test_value_temperature() -> None:
    counts = counts_of("slime.value-temperature")
    args = SimpleNamespace(rollout_temperature=0.5)
    fix("slime.value-temperature").at_own_temperature(torch.zeros(1, 4, 1), args)
    fix("slime.value-temperature").at_own_temperature(torch.zeros(1, 4, 8), args)
    assert counts.read() == {"changed": 1}


def test_bridge_flags() -> None:
    counts = counts_of("slime.bridge-flags")

    class Bridge:
        recompute_granularity = None
        context_parallel_size = 2

        def provide(self) -> None:
            """Make nothing."""

    args = SimpleNamespace(recompute_granularity="full", context_parallel_size=2, recompute_method=None)
    fix("slime.bridge-flags").hand_over(args, Bridge().provide)
    assert counts.read() == {"calls": 2, "changed": 1}


def test_checkpoint_step() -> None:
    counts = counts_of("slime.checkpoint-step")

    def load(self: Any, _tag: str, path: str) -> None:
        self.args.ckpt_step = int(path)

    actor = SimpleNamespace(args=SimpleNamespace(ckpt_step=7))
    for path in ("7", "9"):
        fix("slime.checkpoint-step").make_load_other(load, NO_MODULE)(actor, "ref", path)
    assert counts.read() == {"calls": 2, "changed": 1}


def test_allgather_cp_models() -> None:
    counts = counts_of("slime.allgather-cp-models")
    validate = fix("slime.allgather-cp-models").make_validate(lambda *_: None, NO_MODULE)
    args = SimpleNamespace(allgather_cp=True, context_parallel_size=2)
    with pytest.raises(ValueError, match="allgather-cp"):
        validate(args, SimpleNamespace(architectures=["Qwen3ForCausalLM"]))
    validate(args, SimpleNamespace(architectures=["DeepseekV32ForCausalLM"]))
    assert counts.read() == {"changed": 1}


def test_sft_balance(draw: random.Random) -> None:
    counts = counts_of("verl.sft-balance")
    module = fix("verl.sft-balance")
    works = [draw.randint(1, 9) for _ in range(8)]
    order = list(range(8))
    module._count(works, order, 2)
    draw.shuffle(order)
    order = order if order != sorted(order) else order[::-1]
    module._count(works, order, 2)
    given = max(sum(works[:4]), sum(works[4:]))
    found = max(sum(works[index] for index in order[:4]), sum(works[index] for index in order[4:]))
    assert counts.read() == {"calls": 2, "changed": 1, "most_work": given / found}


def test_strict_token_budget(draw: random.Random) -> None:
    """Two of 60 and two of 50 under 120 tokens: verl takes two micro-batches of two, by work of their own."""
    counts = counts_of("verl.strict-token-budget")
    settle = fix("verl.strict-token-budget").settle
    settle(4, 60, [60, 60, 50, 50], [6, 6, 5, 5], cap=120, agree=list)
    assert counts.read() == {"calls": 1, "changed": 0, "over": 0}
    # 70 and 70 are over 120, and 240 tokens need two micro-batches as verl counts them.
    settle(4, 70, [70, 70, 70, 30], [7, 7, 7, 3], cap=120, agree=list)
    assert counts.read() == {"calls": 2, "changed": 1, "over": 1, "fullest": 140 / 120}


def test_dynamic_cp_loss_has_the_factor_of_verls_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verl")
    from verl.utils import tensordict_utils as tu

    counts = counts_of("verl.dynamic-cp-loss")
    split = fix("verl.dynamic-cp-loss").make_split(None, NO_MODULE)
    config = SimpleNamespace(max_seqlen_per_dp_cp_rank=8)

    def batch(*lengths: int) -> Any:
        rows = torch.nested.as_nested_tensor([torch.arange(one) for one in lengths], layout=torch.jagged)
        return tu.get_tensordict({"input_ids": rows}, {"use_dynamic_bsz": False})

    split(batch(5, 3, 4, 2, 3), config, 4, 0)
    assert counts.read() == {"changed": 1, "least": 1 / 16, "most": 1 / 16}
    split(
        batch(20, 3), config, 4, 0
    )  # fewer sequences than ranks: docs/dynamic-cp.md has both factors measured
    assert counts.read() == {"changed": 2, "least": 1 / 16, "most": 1 / 4}


def test_distillation_loss_scale() -> None:
    counts = counts_of("verl.distillation-loss-scale")
    told: dict[str, Any] = {}
    config = SimpleNamespace(global_batch_info=told, loss_scale_factor=None)
    loss = fix("verl.distillation-loss-scale").make_distillation_loss(lambda *_: None, NO_MODULE)
    for tokens in (10, 10, 12):
        loss(config, None, None, {"dp_size": 2, "batch_num_tokens": tokens, "global_batch_size": 4})
    assert counts.read() == {"calls": 3, "changed": 2}


def test_multi_turn_returns() -> None:
    counts = counts_of("verl.multi-turn-returns")
    estimator = fix("verl.multi-turn-returns").over_turns(lambda rewards, mask, **_: (rewards, rewards))
    for mask in ([[1, 1, 0], [1, 0, 0]], [[1, 0, 1], [1, 1, 1]], [[0, 1, 1], [1, 1, 0]]):
        estimator(torch.rand(2, 3), torch.tensor(mask))
    assert counts.read() == {"calls": 3, "changed": 2}


def test_weight_transfer_order() -> None:
    counts = counts_of("verl.weight-transfer-order")

    async def original(_self: Any) -> str:
        return "metadata"

    cuda = SimpleNamespace(synchronize=lambda: None)
    wait = fix("verl.weight-transfer-order").make_wait(
        original, SimpleNamespace(torch=SimpleNamespace(cuda=cuda))
    )
    assert asyncio.run(wait(None)) == "metadata"
    assert counts.read() == {"changed": 1}


def test_seeded_validation() -> None:
    counts = counts_of("verl.seeded-validation")
    bootstrap = fix("verl.seeded-validation").make_bootstrap_metric(lambda *_: 1, NO_MODULE)
    bootstrap([1.0], 1, [])
    assert counts.read() == {"changed": 1}


def test_reduce_contiguous() -> None:
    counts = counts_of("megatron.reduce-contiguous")
    reduce = fix("megatron.reduce-contiguous").make_reduce(lambda given, _: given, NO_MODULE)
    whole = torch.rand(3, 4)
    assert reduce(whole, None) is whole
    assert torch.equal(reduce(whole.T, None), whole.T)
    assert counts.read() == {"changed": 1}


def test_sigmoid_aux_scores() -> None:
    counts = counts_of("megatron.sigmoid-aux-scores")
    scores = fix("megatron.sigmoid-aux-scores").make_scores(lambda *_: None, NO_MODULE)
    for kind in (torch.bfloat16, torch.float32, torch.float64):
        scores(torch.zeros(2, dtype=kind), 1, "sigmoid")
    scores(torch.zeros(2, dtype=torch.bfloat16), 1, "softmax")
    assert counts.read() == {"calls": 3, "changed": 1}


def test_cp_comm_type_by_layer() -> None:
    counts = counts_of("megatron.cp-comm-type-by-layer")
    types = ["p2p", "p2p", "a2a"]

    def init(_self: Any, config: Any, number: int) -> None:
        assert config.cp_comm_type[number] == types[number - 1]

    made = fix("megatron.cp-comm-type-by-layer").make_init(init, NO_MODULE)
    for number in (1, 2, 3):  # Megatron reads the one after: the same, another, and none
        made(None, SimpleNamespace(cp_comm_type=types), number)
    assert counts.read() == {"calls": 3, "changed": 2}


def test_resumed_weight_decay(draw: random.Random) -> None:
    counts = counts_of("megatron.resumed-weight-decay")
    before, after = draw.random(), draw.random()

    class Scheduler:
        optimizer = SimpleNamespace(param_groups=[{"weight_decay": before}, {}])

        def step(self, increment: int) -> None:
            self.optimizer.param_groups[0]["weight_decay"] = after + increment

    load = fix("megatron.resumed-weight-decay").make_load(lambda *_: None, NO_MODULE)
    load(Scheduler(), {})
    load(Scheduler(), {})
    assert counts.read() == {"calls": 2, "changed": 1, "off": abs(before - after)}


def test_moe_aux_scale(draw: random.Random) -> None:
    counts = counts_of("megatron.moe-aux-scale")
    pytest.importorskip("megatron.core")
    ranks = draw.randint(2, 8)
    group = SimpleNamespace(size=lambda: ranks)
    router = SimpleNamespace(calculate_per_token_loss=True, tp_cp_group=group, cp_group=group)
    factor = fix("megatron.moe-aux-scale")._factor
    assert factor(router, context=False) == ranks
    router.calculate_per_token_loss = False
    assert factor(router, context=False) == 1
    assert counts.read() == {"calls": 2, "changed": 1, "factor": ranks}


def test_grad_norm(draw: random.Random) -> None:
    counts = counts_of("megatron.grad-norm")

    class TELinear(torch.nn.Linear):
        parallel_mode = None

    wide = draw.randint(2, 9)
    whole, other = TELinear(wide, 3), torch.nn.Linear(4, 4)
    for parameter in whole.parameters():
        parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
    chunk = torch.nn.ModuleList([whole, other])
    fix("megatron.grad-norm").make_param_groups(lambda *_: None, NO_MODULE)([chunk])
    assert counts.read() == {"calls": 4, "changed": 2, "elements": 3 * wide + 3}


def test_recompute(draw: random.Random) -> None:
    """What nothing else holds is let go of, and counted in bytes; what somebody holds stays."""
    counts = counts_of("megatron.recompute")
    release = fix("megatron.recompute").make_release(counts)
    size = draw.randint(1, 99)
    held = torch.rand(3, requires_grad=True)
    release([torch.rand(size, requires_grad=True), torch.rand(size), held])
    release([held])
    assert counts.read() == {"calls": 2, "changed": 1, "released": 4 * size, "held": 2}
    assert held.numel() == 3


def test_eps_clip_c() -> None:
    counts = counts_of("slime.eps-clip-c")

    def policy_loss_function(args: Any, batch: Any, logits: Any, sum_of_sample_mean: Any) -> Any:
        return None

    loss = fix("slime.eps-clip-c").make_policy_loss(
        policy_loss_function, SimpleNamespace(compute_policy_loss=print)
    )
    loss(SimpleNamespace(eps_clip_c=None), None, None, None)
    loss(SimpleNamespace(eps_clip_c=3.0), None, None, None)
    assert counts.read() == {"changed": 1}


class Scheduler:
    """Of slime's and of verl's: how far the schedule has come."""

    num_steps = 0

    def step(self, increment: int) -> None:
        self.num_steps += increment


def test_resumed_lr_schedule_of_verl(draw: random.Random) -> None:
    counts = counts_of("verl.resume-lr-schedule")
    steps = draw.randint(1, 500)

    def original(self: Any, *_: Any) -> None:
        self.lr_scheduler.num_steps += steps

    manager = SimpleNamespace(use_checkpoint_opt_param_scheduler=False, lr_scheduler=Scheduler())
    fix("verl.resume-lr-schedule").make_load_checkpoint(original, NO_MODULE)(manager, "here")
    manager.use_checkpoint_opt_param_scheduler = True  # verl does so itself
    fix("verl.resume-lr-schedule").make_load_checkpoint(original, NO_MODULE)(manager, "here")
    assert counts.read() == {"calls": 1, "changed": 1, "steps": steps}


def test_resume_epoch_boundary() -> None:
    counts = counts_of("verl.resume-epoch-boundary")

    class Loader:
        """Of three batches, which goes on after the one in its state."""

        at = 0

        def load_state_dict(self, state: int) -> None:
            self.at = state

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            return iter(range(self.at, 3))

    for step in (2, 3):
        loader = Loader()
        with fix("verl.resume-epoch-boundary").past_the_end(loader, lambda step=step: step):
            loader.load_state_dict(step)
    assert counts.read() == {"calls": 2, "changed": 1}


def test_reshardable_checkpoint(draw: random.Random) -> None:
    counts = counts_of("megatron.reshardable-checkpoint")
    pad = draw.randint(1, 99)

    def bucket(padding: int) -> Any:
        return SimpleNamespace(grad_data=torch.zeros(100 + padding), numel_unpadded=100)

    class Optimizer:
        buffers = (
            SimpleNamespace(
                buckets=[bucket(pad), bucket(7)], param_index_map={1: (0, 50, 0), 2: (200, 250, 1)}
            ),
            SimpleNamespace(buckets=[bucket(pad)], param_index_map={3: (0, 50, 0)}),
        )

        def get_parameter_state_dp_zero(self) -> Any:
            return {0: {}, 1: {}}

    save = fix("megatron.reshardable-checkpoint").make_save(
        lambda self: self.get_parameter_state_dp_zero(), NO_MODULE
    )
    save(Optimizer())
    # What ends a bucket shifts those after it alone.
    assert counts.read() == {"calls": 2, "changed": 1, "padding": pad}


def test_critic_loss_scale() -> None:
    counts = counts_of("verl.critic-loss-scale")
    module = SimpleNamespace(Metric=dict, AggregationType=SimpleNamespace(SUM="sum"))
    loss = fix("verl.critic-loss-scale").make_value_loss(lambda *_: (1.0, {}), module)
    data = {"dp_size": 1, "batch_num_tokens": 2, "global_batch_size": 3}
    loss(SimpleNamespace(), None, data)
    loss(SimpleNamespace(), None, data)
    assert counts.read() == {"changed": 2}


def test_fsdp_output_memory() -> None:
    counts = counts_of("verl.fsdp-output-memory")

    class Loop:
        def forward_backward_batch(self) -> None:
            """Run."""

    class Step(Loop):
        def forward_step(self) -> None:
            """Step."""

    Loop.forward_backward_batch.__module__ = "verl.workers.engine"
    module = SimpleNamespace(FSDPEngineWithLMHead=Step, FSDPEngine=Loop)
    leaf = torch.rand(2, requires_grad=True)
    output = {"model_output": {"a": leaf * 2, "b": leaf.detach(), "c": 1}, "loss": 0.0}
    step = fix("verl.fsdp-output-memory").make_forward_step(lambda *_: (None, output), module)
    step(Step(), None, None, True)
    assert counts.read() == {"changed": 1, "outputs": 1}


def test_group_timeouts(draw: random.Random) -> None:
    counts = counts_of("slime.group-timeouts")
    import os

    number = draw.randint(1, 5)
    made_with: dict[str, Any] = {"overlay_made_with": ((), {})}
    groups = [SimpleNamespace(group=None, group_info=dict(made_with)) for _ in range(number)]
    groups += [SimpleNamespace(group="there", group_info=dict(made_with))]
    module = SimpleNamespace(
        ReloadableProcessGroup=SimpleNamespace(GROUPS={os.getpid(): groups}),
        old_new_group_dict={os.getpid(): lambda: "anew"},
    )
    fix("slime.group-timeouts").make_reload(lambda: None, module)()
    assert counts.read() == {"changed": number}


@pytest.mark.parametrize("patch", ["slime.loss-memory", "miles.loss-memory"])
def test_loss_memory(patch: str, draw: random.Random) -> None:
    """The rows of the responses, in float32; without a gradient nothing is kept by anybody."""
    from overlay.patches._packed_loss.compute import make_compute

    counts = counts_of(patch)
    responses = [draw.randint(1, 4), draw.randint(1, 4)]
    totals = [one + 2 for one in responses]
    mpu = SimpleNamespace(
        get_context_parallel_world_size=lambda: 1,
        get_tensor_model_parallel_group=lambda: None,
    )

    def get_responses(logits: Any, **_: Any) -> Any:
        end = 0
        for total, response in zip(totals, responses, strict=True):
            end += total
            yield logits[0, end - response - 1 : end - 1], torch.zeros(response, dtype=torch.long)

    compute = make_compute(SimpleNamespace(mpu=mpu, get_responses=get_responses), counts)
    args = SimpleNamespace(allgather_cp=False, qkv_format="thd", rollout_temperature=1.0)
    for gradient in (False, True):
        logits = torch.rand(1, sum(totals), 16, requires_grad=gradient)
        tokens = [torch.zeros(total, dtype=torch.long) for total in totals]
        compute(logits, args, False, tokens, totals, responses)
    assert counts.read() == {"changed": 1, "kept_out": sum(responses) * 16 * 4}


def test_uniform_recompute_counts_the_forwards_that_it_cuts(draw: random.Random) -> None:
    counts = counts_of("megatron.uniform-recompute")
    forward = fix("megatron.uniform-recompute").make_forward(lambda self: None, NO_MODULE)
    cut = 0
    for _ in range(20):
        method, layers, count = draw.choice(["uniform", "block"]), draw.randint(1, 9), draw.randint(1, 4)
        config = SimpleNamespace(recompute_method=method, recompute_num_layers=count)
        forward(SimpleNamespace(config=config, num_layers_per_pipeline_rank=layers))
        cut += method == "uniform" and layers % count > 0
    assert counts.changed == cut


def test_the_logits_that_are_begun_anew_are_counted(draw: random.Random) -> None:
    counts = counts_of("megatron.attention-logit-memory")
    clip = fix("megatron.attention-logit-memory").make_clip(lambda model, log_max_only: 0, NO_MODULE)
    layers = [SimpleNamespace(current_max_attn_logits=draw.choice([None, 1.0])) for _ in range(9)]
    logged = sum(layer.current_max_attn_logits is not None for layer in layers)
    chunk = SimpleNamespace(modules=lambda: layers)
    clip([chunk], log_max_only=False)
    assert counts.changed == 0
    clip([chunk], log_max_only=True)
    clip([chunk], log_max_only=True)
    assert counts.changed == logged


def test_sends_that_keep_their_memory_are_counted(draw: random.Random) -> None:
    counts = counts_of("megatron.vpp-send-before-free")
    send = fix("megatron.vpp-send-before-free").make_p2p_ops(lambda **_words: [], NO_MODULE)
    sent = [draw.choice([None, torch.ones(1)]) for _ in range(9)]
    for tensor in sent:
        send(tensor_send_next=tensor)
    assert counts.changed == sum(tensor is not None for tensor in sent)


def test_what_offloading_left_behind_is_counted(draw: random.Random) -> None:
    counts = counts_of("verl.megatron-offload-rest")
    number, copies = draw.randint(1, 5), draw.randint(1, 5)
    state = {index: {"master_param": torch.ones(1)} for index in range(number)} | {-1: {"exp_avg": 1}}
    engine = SimpleNamespace(
        optimizer=SimpleNamespace(optimizer=SimpleNamespace(state=state)),
        module=[
            SimpleNamespace(
                modules=lambda: [SimpleNamespace(_fp8_workspaces=dict.fromkeys(range(copies))), object()]
            )
        ],
    )
    move = fix("verl.megatron-offload-rest").make_to(lambda *_given: None, NO_MODULE)
    move(engine, "cpu")
    assert counts.changed == number + copies
