"""What patches count, against what is counted by hand, on small functions with the seams of upstreams'.

Of a patch that counts nothing but how often it changed something, its contract shows that it does, and that
it does not always (`tests/real/test_contracts.py`).
"""

from __future__ import annotations

import asyncio
import importlib
import random
import sys
from collections.abc import Callable
from importlib.util import find_spec
from queue import Queue
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from checks import SEED

from overlay import log
from overlay.effect import Counts, effect_of, told
from overlay.source.registry import load_patches, module_of

pytest.importorskip("torch")
import torch
import torch.distributed as dist

#: Gets the functions of the patch, what is drawn from, and what undoes; returns what is to be counted.
By = Callable[[Any, random.Random, pytest.MonkeyPatch], dict[str, Any]]

#: For a factory that reads nothing of its module.
NO_MODULE: Any = None
#: Of two ranks, of which this is the first.
PAIR = SimpleNamespace(size=lambda: 2, rank=lambda: 0)
BY_HAND: list[tuple[str, By]] = []


def counting(*patches: str) -> Callable[[By], By]:
    """Let a function count by hand what some patches count."""

    def noted(by: By) -> By:
        BY_HAND.extend((patch, by) for patch in patches)
        return by

    return noted


def part(patch: str, name: str) -> Any:
    """Return the module that has a part of a patch: a file of its own, or that of the patch."""
    own = f"{module_of(patch)}.{name}"
    return importlib.import_module(own if find_spec(own) is not None else module_of(patch))


@pytest.mark.parametrize("patch", sorted(load_patches()))
def test_each_patch_declares_what_it_counts(patch: str) -> None:
    counts = part(patch, "effect").EFFECT
    assert isinstance(counts, Counts)
    assert counts.place == part(patch, "effect").__name__
    # What a sentence names is counted.
    for figure in counts.effect.figures:
        setattr(counts, figure.name, 3)
    declared = effect_of(module_of(patch))
    assert declared is not None
    assert "{" not in told(declared)
    assert counts.effect.then.count("{") == 0 or "; " in told(declared)
    counts.clear()


def others_have_the_same(undo: pytest.MonkeyPatch) -> None:
    """Let a sum over ranks be one over two that have the same."""

    def all_reduce(tensor: Any, op: Any = torch.distributed.ReduceOp.SUM, **_group: Any) -> None:
        if op == torch.distributed.ReduceOp.SUM:
            tensor.mul_(2)

    undo.setattr(torch.distributed, "all_reduce", all_reduce)


# -- Megatron ----------------------------------------------------------------------------------------------


@counting("megatron.reduce-contiguous")
def _(fix: Any, _draw: Any, _undo: Any) -> dict[str, Any]:
    pytest.importorskip("megatron.core")
    reduce = fix.reduce(lambda given, group: given, NO_MODULE)
    whole = torch.rand(3, 4)
    assert reduce(whole, PAIR) is whole
    assert torch.equal(reduce(whole.T, PAIR), whole.T)
    turned = whole.T
    assert reduce(turned, group=SimpleNamespace(size=lambda: 1)) is turned  # of one rank there is no sum
    return {"changed": 1}


@counting("megatron.moe-aux-scale")
def _(fix: Any, draw: random.Random, _undo: Any) -> dict[str, Any]:
    pytest.importorskip("megatron.core")
    ranks = draw.randint(2, 8)
    group = SimpleNamespace(size=lambda: ranks)
    router = SimpleNamespace(calculate_per_token_loss=True, tp_cp_group=group, cp_group=group)
    assert fix._factor(router, context=False) == ranks
    router.calculate_per_token_loss = False
    assert fix._factor(router, context=False) == 1
    return {"calls": 2, "changed": 1, "factor": ranks}


@counting("megatron.grad-norm")
def _(fix: Any, draw: random.Random, _undo: Any) -> dict[str, Any]:
    class TELinear(torch.nn.Linear):
        parallel_mode = None

    whole, other = TELinear(draw.randint(2, 9), 3), torch.nn.Linear(4, 4)
    for parameter in whole.parameters():
        parameter.tensor_model_parallel = True  # type: ignore[attr-defined]
    fix.marked(lambda *_: None, NO_MODULE)([torch.nn.ModuleList([whole, other])])
    return {"changed": 2}


@counting("megatron.reshardable-checkpoint")
def _(fix: Any, draw: random.Random, _undo: Any) -> dict[str, Any]:
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

    fix.save(lambda self: self.get_parameter_state_dp_zero(), NO_MODULE)(Optimizer())
    # What ends a bucket shifts those after it alone.
    return {"calls": 2, "changed": 1}


@counting("megatron.dynamic-cp-names")
def _(fix: Any, _draw: Any, undo: pytest.MonkeyPatch) -> dict[str, Any]:
    for name, held in {"_ranks": lambda _: 2, "confirm_attention": list, "warm_up": lambda *_: None}.items():
        undo.setattr(fix, name, held)

    def initialize_model_parallel(hybrid_context_parallel: bool = False) -> None:
        assert hybrid_context_parallel in (True, False)

    initialize = fix.make_initialize(initialize_model_parallel, NO_MODULE)
    for dynamic in (True, False, True):
        initialize(dynamic_context_parallel=dynamic)
    return {"changed": 2}


@counting("megatron.gated-norm-over-tp")
def _(fix: Any, draw: random.Random, undo: Any) -> dict[str, Any]:
    number = draw.randint(1, 5)
    layer = type("GatedDeltaNet", (), {"__module__": "megatron.core.ssm.gated_delta_net"})()
    own = [torch.ones(1, requires_grad=True), torch.ones(1)]  # the other one is frozen
    layer.out_norm = SimpleNamespace(parameters=lambda: own)
    chunk = SimpleNamespace(modules=lambda: [layer, object()] * number, ddp_config=None)
    shown: list[Any] = []

    def allreduce(model: Any, _config: Any, _group: Any) -> None:
        shown.extend(one for part in model for one in part.named_parameters())

    names = ("megatron", "megatron.core", "megatron.core.utils", fix._FINALIZE.partition(":")[0])
    megatron, core, utils, finalizes = (ModuleType(name) for name in names)
    for one in (megatron, core, utils, finalizes):
        undo.setitem(sys.modules, one.__name__, one)
    vars(core)["parallel_state"], vars(utils)["get_model_config"] = None, lambda chunk: chunk.config
    vars(finalizes)["_allreduce_non_tensor_model_parallel_grads"] = allreduce
    finalize = fix.finalize(lambda model, num_tokens=None, pg_collection=None: None, NO_MODULE)
    for chunk.config in (SimpleNamespace(sequence_parallel=one) for one in (True, False)):
        finalize([chunk], None, SimpleNamespace(tp=PAIR))
    assert len(shown) == number
    return {"changed": number}


@counting("megatron.mla-rotary-key-over-tp")
def _(fix: Any, _draw: Any, undo: pytest.MonkeyPatch) -> dict[str, Any]:
    others_have_the_same(undo)
    config = SimpleNamespace(qk_head_dim=3, qk_pos_emb_head_dim=2, kv_lora_rank=4, sequence_parallel=False)
    down = torch.nn.Linear(7, 6, bias=False)
    layer = SimpleNamespace(config=config, pg_collection=SimpleNamespace(tp=PAIR), linear_kv_down_proj=down)
    key = torch.rand(5, 4, 5, requires_grad=True)
    tensors = fix.tensors(lambda *_: (None, key, None), NO_MODULE)
    made = tensors(layer)[1]
    config.sequence_parallel = True  # with a projection that is whole here, Megatron sums it
    assert tensors(layer)[1] is key
    weight = torch.rand(5, 4, 5)
    (made * weight).sum().backward()
    grad: Any = key.grad
    assert torch.equal(grad[..., :3], weight[..., :3])
    # Of both ranks and all heads, on the first of them.
    assert torch.allclose(grad[:, 0, 3:], 2 * weight[..., 3:].sum(1))
    assert not grad[:, 1:, 3:].any()
    return {"changed": 1}


@counting("megatron.label-smoothing-over-tp")
def _(fix: Any, _draw: Any, undo: pytest.MonkeyPatch) -> dict[str, Any]:
    others_have_the_same(undo)
    loss = fix.loss(lambda *_: torch.zeros(3), NO_MODULE)
    for smoothing in (0.0, 0.1, 0.2):
        loss(torch.rand(3, 4), torch.zeros(3, dtype=torch.long), smoothing, PAIR)
    return {"changed": 2}


@counting("megatron.mtp-loss-scale")
def _(fix: Any, _draw: Any, undo: pytest.MonkeyPatch) -> dict[str, Any]:
    others_have_the_same(undo)

    def roll_tensor(tensor: Any, cp_group: Any = None) -> Any:
        return tensor, tensor.sum()

    roll = fix.mean_roll(roll_tensor, NO_MODULE)
    for group in (None, PAIR, SimpleNamespace(size=lambda: 1)):
        roll(torch.ones(3), cp_group=group)
    return {"calls": 3, "changed": 1}


@counting("megatron.mtp-without-tokens")
def _(fix: Any, _draw: Any, _undo: Any) -> dict[str, Any]:
    roll = fix.roll_tensor(lambda tensor: (tensor, tensor.sum()), NO_MODULE)
    for mask in (torch.ones(3), torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16)):
        roll(mask)
    # Labels are shifted by the same function, and words may have the number zero.
    assert roll(torch.zeros(3, dtype=torch.long))[1] == 1
    return {"calls": 4}  # how many are without a token, only the device knows


@counting("megatron.recompute")
def _(fix: Any, draw: random.Random, _undo: Any) -> dict[str, Any]:
    """What nothing else holds is let go of, and counted in bytes; what somebody holds stays."""
    release = fix.make_release(part("megatron.recompute", "effect").EFFECT)
    size = draw.randint(1, 99)
    held = torch.rand(3, requires_grad=True)
    release([torch.rand(size, requires_grad=True), torch.rand(size), held])
    release([held])
    assert held.numel() == 3
    return {"calls": 2, "changed": 1, "released": 4 * size, "held": 2}


@counting("megatron.vpp-send-before-free")
def _(fix: Any, draw: random.Random, _undo: Any) -> dict[str, Any]:
    send = fix.p2p_ops(lambda **_words: [], NO_MODULE)
    sent = [draw.choice([None, torch.ones(1)]) for _ in range(9)]
    for tensor in sent:
        send(tensor_send_next=tensor)
    return {"changed": sum(tensor is not None for tensor in sent)}


# -- slime and miles: rewards, rollouts, what resumes ------------------------------------------------------


@counting("slime.group-baseline")
def _(_fix: Any, _draw: Any, _undo: Any) -> dict[str, Any]:
    """Two prompts of two, in the order that slime takes them for, and in another."""
    from overlay.patches.slime.group_baseline.rewards import by_prompt

    args = SimpleNamespace(
        advantage_estimator="reinforce_plus_plus_baseline", rewards_normalization=True,
        grpo_std_normalization=False, n_samples_per_prompt=2, rollout_batch_size=2,
    )  # fmt: skip
    for groups in ((0, 0, 1, 1), (0, 1, 0, 1)):
        by_prompt(args, [
            SimpleNamespace(get_reward_value=lambda _, value=value: value, group_index=group, rollout_id=None)
            for value, group in zip((0.0, 1.0, 2.0, 3.0), groups, strict=True)
        ])  # fmt: skip
    # By prompt -1, -1, 1 and 1, and as slime takes them -0.5, 0.5, -0.5 and 0.5.
    return {"calls": 2, "changed": 1, "rewards": 4, "off": pytest.approx(1.5)}


@counting("slime.partial-rollout-budget")
def _(fix: Any, draw: random.Random, _undo: Any) -> dict[str, Any]:
    lengths = [0, draw.randint(1, 50), draw.randint(1, 50)]
    for length in lengths:
        left = fix.left(SimpleNamespace(response_length=length), {"max_new_tokens": 40})
        assert left == {"max_new_tokens": max(40 - length, 0)}
    return {"calls": 3, "changed": 2, "over": sum(lengths)}


@counting("slime.eps-clip-c")
def _(fix: Any, _draw: Any, _undo: Any) -> dict[str, Any]:
    def policy_loss_function(args: Any) -> Any:
        if args.eps_clip_c and args.advantage_estimator != "cispo":
            return compute_policy_loss(args)  # type: ignore[name-defined]  # noqa: F821 -- slime's own
        return None

    module = SimpleNamespace(compute_policy_loss=lambda _args, eps_clip_c=None: eps_clip_c)
    loss = fix.make_policy_loss(policy_loss_function, module)
    for bound, estimator in ((None, "grpo"), (3.0, "grpo"), (3.0, "cispo")):
        found = loss(SimpleNamespace(eps_clip_c=bound, advantage_estimator=estimator))
        assert found == (bound if estimator == "grpo" else None)
    module.compute_policy_loss = lambda _args: "a user's"
    assert loss(SimpleNamespace(eps_clip_c=3.0, advantage_estimator="grpo")) == "a user's"
    return {"changed": 1}


#: A function with the seams of slime's.
SOURCE = """
async def _generate_rollout_async(args, rollout_id, data_buffer):
    return _get_global_worker().get_completed_groups()
"""


@counting("slime.async-groups")
def _(fix: Any, draw: random.Random, _undo: Any) -> dict[str, Any]:
    slime: Any = ModuleType("fake_slime")
    exec(SOURCE, vars(slime))  # noqa: S102 -- the text above
    waiting = [0, draw.randint(1, 9), draw.randint(1, 9)]
    rollout = fix.make_rollout(slime._generate_rollout_async, slime)
    for number in waiting:
        queue: Queue[int] = Queue()
        for group in range(2 + number):
            queue.put(group)
        slime._get_global_worker = lambda queue=queue: SimpleNamespace(output_queue=queue)
        assert asyncio.run(rollout(SimpleNamespace(rollout_batch_size=2), 0, None)) == [0, 1]
    return {"calls": 3, "changed": 2, "kept": sum(waiting), "most": max(waiting)}


@counting("slime.masked-gae")
def _(fix: Any, draw: random.Random, undo: pytest.MonkeyPatch) -> dict[str, Any]:
    import sys

    mpu = SimpleNamespace(get_context_parallel_world_size=lambda: 1)
    utils = SimpleNamespace(chunked_gae=lambda rewards, values, gamma, lambd: (rewards, None))
    held = {"megatron": {}, "megatron.core": {"mpu": mpu}, "slime": {}, "slime.utils": {"ppo_utils": utils}}
    for name, values in held.items():
        module = ModuleType(name)
        vars(module).update(values)
        undo.setitem(sys.modules, name, module)

    def upstream(
        totals: Any, responses: Any, values: Any, rewards: Any, gamma: Any, lambd: Any, chunked: bool = True
    ) -> Any:
        raise NotImplementedError

    batch = fix.make_batch(upstream, NO_MODULE)
    masked = draw.randint(1, 4)
    for masks in ([[1, 1], [1]], [[1, *[0] * masked], [0, 1]]):
        args = SimpleNamespace(kl_coef=0, use_rollout_logprobs=False)
        token = fix._current.set((args, {"loss_masks": list(map(torch.tensor, masks))}, [1.0, 1.0]))
        try:
            batch([9, 9], [len(mask) for mask in masks], [torch.zeros(len(one)) for one in masks], [], 1, 1)
        finally:
            fix._current.reset(token)
    return {"calls": 2, "changed": 1, "masked": masked + 1}


@counting("slime.hf-attention-gradient")
def _(fix: Any, _draw: Any, undo: pytest.MonkeyPatch) -> dict[str, Any]:
    undo.setattr(torch.distributed, "reduce_scatter_tensor", lambda *_, **__: None)
    fix.make_backward(None, NO_MODULE)(SimpleNamespace(rank=1, group=None), torch.ones(2), torch.ones(2))

    def forward(self: Any, states: Any) -> Any:
        return states * 2

    for ranks in (1, 4):
        mpu = SimpleNamespace(get_tensor_model_parallel_world_size=lambda ranks=ranks: ranks)
        layer = SimpleNamespace(args=SimpleNamespace(sequence_parallel=True))
        own = fix.make_forward(forward, SimpleNamespace(mpu=mpu))
        given = torch.ones(2, requires_grad=True)
        own(layer, given).sum().backward()
        assert given.grad is not None
        assert given.grad.tolist() == [2 / ranks] * 2
    return {"changed": 2}


@counting("slime.whiten-over-cp")
def _(fix: Any, _draw: Any, undo: Any) -> dict[str, Any]:
    """A rank without a token. What is off has a test of its own: `test_slime_patches.py`."""

    def advantages(args: Any, data: Any) -> None:
        data["advantages"] = [torch.zeros(0)]

    undo.setattr(dist, "all_reduce", lambda sums, **_: sums.add_(1))
    mpu = SimpleNamespace(get_data_parallel_group=lambda **_: None, get_context_parallel_world_size=lambda: 2)
    module: Any = SimpleNamespace(torch=torch, mpu=mpu, get_advantages_and_returns_batch=print)
    compute = fix.make_advantages(advantages, module)
    for normalize in (True, False):
        compute(SimpleNamespace(normalize_advantages=normalize), {})
    return {"changed": 1, "empty": 1}


@counting("miles.whiten-over-cp")
def _(fix: Any, _draw: Any, undo: Any) -> dict[str, Any]:
    undo.setattr(dist, "all_reduce", lambda sums, **_: sums.add_(1))
    reduced = SimpleNamespace(all_reduce=lambda sums, *_, **__: sums.add_(1))
    groups: Any = ModuleType("miles.utils.ft_utils.process_group_utils")
    groups.GeneralPGUtil = SimpleNamespace(create=lambda _: reduced)
    undo.setitem(sys.modules, groups.__name__, groups)
    state = SimpleNamespace(
        effective_dp_cp=SimpleNamespace(groups_inner_to_outer=[None]),
        intra_dp_cp=SimpleNamespace(group=None),
        cp=SimpleNamespace(size=1),
    )
    module: Any = SimpleNamespace(torch=torch, get_parallel_state=lambda: state)
    fix.make_normalize(lambda *_, **__: None, module)(None, [torch.zeros(0)], [], [], [])

    # 0.0.2 has no function of its own for it.
    compute = fix.make_advantages(lambda _, data: data.update(advantages=[torch.zeros(0)]), module)
    for normalize in (True, False):
        compute(SimpleNamespace(normalize_advantages=normalize), {})
    return {"changed": 2, "empty": 2}


@counting("slime.loss-memory", "miles.loss-memory")
def _(fix: Any, draw: random.Random, _undo: Any) -> dict[str, Any]:
    """The rows of the responses, in float32; without a gradient nothing is kept by anybody."""
    from overlay.patches._packed_loss.compute import make_compute

    responses = [draw.randint(1, 4), draw.randint(1, 4)]
    totals = [one + 2 for one in responses]
    mpu = SimpleNamespace(
        get_context_parallel_world_size=lambda: 1, get_tensor_model_parallel_group=lambda: None
    )

    def get_responses(logits: Any, **_: Any) -> Any:
        end = 0
        for total, response in zip(totals, responses, strict=True):
            end += total
            yield logits[0, end - response - 1 : end - 1], torch.zeros(response, dtype=torch.long)

    effect = part(f"{fix.__name__.split('.')[2]}.loss-memory", "effect").EFFECT
    compute = make_compute(SimpleNamespace(mpu=mpu, get_responses=get_responses), effect)
    args = SimpleNamespace(allgather_cp=False, qkv_format="thd", rollout_temperature=1.0)
    for gradient in (False, True):
        logits = torch.rand(1, sum(totals), 16, requires_grad=gradient)
        tokens = [torch.zeros(total, dtype=torch.long) for total in totals]
        lengths = {"total_lengths": totals, "response_lengths": responses}
        compute(logits, args, False, unconcat_tokens=tokens, **lengths)
    return {"changed": 1, "kept_out": sum(responses) * 16 * 4}


# -- what splits samples among micro-batches and ranks -----------------------------------------------------


@counting("slime.capped-partitions")
def _(fix: Any, _draw: Any, _undo: Any) -> dict[str, Any]:
    from overlay.patches._slime_step import current

    token = current.set((100, 1))
    try:
        # Of 110, 115 and 5 tokens, and of 100, 95 and 35.
        for theirs in ([[0, 1], [2, 3, 4], [5]], [[0, 3], [1, 2], [4, 5]]):
            split = fix.make_split(lambda *_, theirs=theirs: theirs, NO_MODULE)
            split([60, 50, 45, 40, 30, 5], 3, False)
    finally:
        current.reset(token)
    split([1, 2], 1, False)  # of nobody's step
    return {"calls": 2, "changed": 1, "over": 2, "fullest": 1.15}


@pytest.mark.parametrize("patch", ["slime.capped-partitions", "miles.capped-partitions"])
def test_micro_batches_by_flops(patch: str) -> None:
    from overlay.patches._partition.aligned import aligned

    counts = part(patch, "effect").EFFECT
    counts.clear()
    lengths, kept = [60, 70, 30, 20], [[0], [1], [2, 3]]

    def expand(parts: list[list[int]], count: int, _lengths: Any) -> None:
        assert len(parts) == count

    assert aligned(kept, lengths, 100, lambda: lengths, 1, expand, counts) is kept
    aligned([[0, 1], [2, 3]], lengths, 100, lambda: lengths, 1, expand, counts)
    assert counts.read() == {"calls": 2, "changed": 1, "over": 1, "fullest": 1.3}


@counting("slime.vpp-ceiling")
def _(fix: Any, _draw: Any, _undo: Any) -> dict[str, Any]:
    from overlay.patches._slime_step import current

    token = current.set((100, 4))
    try:
        assert fix.rounded([90] * 7 + [1], 7) == 8  # slime takes 4
        assert fix.rounded([90] * 8, 8) == 8
        assert fix.rounded([90] * 7, 7) == 4  # as slime: there are too few samples for 8
        assert fix.rounded([90] * 3, 3) == 4  # slime takes 1, as it is no less
    finally:
        current.reset(token)
    return {"calls": 4, "changed": 2, "more": 4 + 3}


@counting("slime.fast-partitioner", "miles.fast-partitioner")
def _(fix: Any, draw: random.Random, _undo: Any) -> dict[str, Any]:
    fast = fix.make_karmarkar_karp(lambda *_: "slow", NO_MODULE)
    for _ in range(3):
        fast([draw.randint(1, 99) for _ in range(9)], 3, False)
    assert fast([1, 2], 0, False) == "slow"
    return {"changed": 3}


@counting("verl.fast-partitioner")
def _(fix: Any, _draw: Any, _undo: Any) -> dict[str, Any]:
    fast = fix.make_partitioner(lambda *_: "slow", NO_MODULE)
    fast(torch.tensor([3, 1, 2]), 2, False)
    assert fast([1, 2], 0, False) == "slow"
    return {"changed": 1}


@counting("verl.sft-balance")
def _(fix: Any, draw: random.Random, _undo: Any) -> dict[str, Any]:
    works, order = [draw.randint(1, 9) for _ in range(8)], list(range(8))
    fix._count(works, order, 2)
    draw.shuffle(order)
    order = order if order != sorted(order) else order[::-1]
    fix._count(works, order, 2)
    given = max(sum(works[:4]), sum(works[4:]))
    found = max(sum(works[index] for index in order[:4]), sum(works[index] for index in order[4:]))
    return {"calls": 2, "changed": 1, "most_work": given / found}


@counting("verl.strict-token-budget")
def _(fix: Any, _draw: Any, _undo: Any) -> dict[str, Any]:
    """Two of 60 and two of 50 under 120 tokens: verl takes two micro-batches of two, by work of their own."""
    fix.settle(4, 60, [60, 60, 50, 50], [6, 6, 5, 5], cap=120, agree=int)
    # 70 and 70 are over 120, and 240 tokens need two micro-batches as verl counts them.
    fix.settle(4, 70, [70, 70, 70, 30], [7, 7, 7, 3], cap=120, agree=int)
    return {"calls": 2, "changed": 1, "over": 1, "fullest": 140 / 120}


# -- verl --------------------------------------------------------------------------------------------------


@counting("verl.agreement")
def _(fix: Any, draw: random.Random, undo: pytest.MonkeyPatch) -> dict[str, Any]:
    ranks, meshes, compared = [1, 4], draw.randint(1, 5), []
    undo.setattr(fix.agreement, "is_distributed", lambda: ranks[-1] > 1)
    undo.setattr(fix.overlay, "agree", lambda: compared.append(ranks[-1]))
    registered: list[str] = []
    register = fix.compare(lambda mesh_name, dp_rank: registered.append(mesh_name), NO_MODULE)
    for mesh in range(meshes):
        register(f"{mesh}", dp_rank=0)
    ranks.pop()  # alone there is nothing to compare
    register("alone", dp_rank=0)
    assert registered == [*map(str, range(meshes)), "alone"]
    assert compared == [4] * meshes
    return {"changed": meshes}


@counting("verl.lora-merged-sync")
def _(fix: Any, draw: random.Random, undo: pytest.MonkeyPatch) -> dict[str, Any]:
    class Layer(torch.nn.Module):
        merged = False

    def merge_or_unmerge(model: Any, merge: bool) -> None:
        for layer in model:
            layer.merged = merge

    wrapped, outside, whole, updates = Layer(), Layer(), Layer(), draw.randint(1, 5)
    undo.setattr(fix, "_shards_will_do", lambda layer: layer is not whole)
    undo.setattr(fix, "_on_whole_tensors", lambda layer, _, merge: merge_or_unmerge([layer], merge))
    utils: Any = SimpleNamespace(_merge_or_unmerge_lora_=merge_or_unmerge)
    merge = fix.make_counted_merge(lambda _, do_merge: merge_or_unmerge([wrapped], do_merge), utils)
    # Of the second, verl merges all. Of the third it sends base weights, as of DoRA.
    for layers in ((wrapped, outside), (wrapped,), (wrapped, whole)):
        for _update in range(updates):
            model = torch.nn.ModuleList(layers)
            merge(model, do_merge=True)
            assert all(one.merged for one in layers)
            merge(model, do_merge=False)
            assert not any(one.merged for one in layers)
    return {"calls": 3 * updates, "changed": 2 * updates}


@counting("verl.dynamic-cp-loss")
def _(fix: Any, _draw: Any, _undo: Any) -> dict[str, Any]:
    """The factor of verl's gradient, as docs/dynamic-cp.md has it measured."""
    pytest.importorskip("verl")
    from verl.utils import tensordict_utils as tu

    split, config = fix.make_split(None, NO_MODULE), SimpleNamespace(max_seqlen_per_dp_cp_rank=8)
    for lengths in ((5, 3, 4, 2, 3), (20, 3)):  # the second are fewer sequences than ranks
        rows = torch.nested.as_nested_tensor([torch.arange(one) for one in lengths], layout=torch.jagged)
        split(tu.get_tensordict({"input_ids": rows}, {"use_dynamic_bsz": False}), config, 4, 0)
    return {"changed": 2, "least": 1 / 16, "most": 1 / 4}


class Scheduler:
    """verl's: how far the schedule has come."""

    num_steps = 0

    def step(self, increment: int) -> None:
        self.num_steps += increment

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step(state["num_steps"])


@counting("verl.resume-lr-schedule")
def _(fix: Any, draw: random.Random, _undo: Any) -> dict[str, Any]:
    steps = draw.randint(1, 500)

    def original(self: Any, *_: Any) -> None:
        self.lr_scheduler.load_state_dict({"num_steps": steps})

    for does_so_itself in (False, True):
        manager = SimpleNamespace(
            use_checkpoint_opt_param_scheduler=does_so_itself, should_load_extra=True,
            lr_scheduler=Scheduler(),
        )  # fmt: skip
        fix.load_checkpoint(original, NO_MODULE)(manager, "here")
    return {"calls": 1, "changed": 1, "steps": steps}


#: By how their losses are divided.
MODELS = ("per token", "per batch")


@counting("verl.moe-aux-scale")
def _(fix: Any, draw: random.Random, undo: pytest.MonkeyPatch) -> dict[str, Any]:
    pytest.importorskip("megatron.core")
    from megatron.core import parallel_state, utils

    data, context = draw.randint(2, 5), draw.randint(2, 5)

    def size(with_context_parallel: bool = False) -> int:
        return data * context if with_context_parallel else data

    undo.setattr(parallel_state, "get_data_parallel_world_size", size)
    configs = {name: SimpleNamespace(calculate_per_token_loss=name == "per token") for name in MODELS}
    undo.setattr(utils, "get_model_config", configs.get)
    undo.setattr(fix, "_told", lambda *_call, **_shared: {})
    counts = part("verl.moe-aux-scale", "effect").EFFECT
    for make, times in ((fix.get_shared, data), (fix.get, data * context)):
        counts.clear()
        schedule = make(lambda: lambda **_call: None, NO_MODULE)()
        for model, only in ((MODELS[0], False), (MODELS[0], True), (MODELS[1], False)):
            call: dict[str, Any] = {"forward_step_func": None, "data_iterator": None, "num_microbatches": 1}
            schedule(model=model, forward_only=only, **call)
        assert counts.read() == {"changed": 1, "times": times}
    return {"changed": 1, "times": data * context}


@counting("slime.eval-settings")
def _(fix: Any, _draw: Any, _undo: Any) -> dict[str, Any]:
    asked: list[Any] = []
    module = ModuleType("rollout")
    # It is run over the names of its module, and others.
    text = "async def run(args, rollout_id, data_set):\n    generate_and_rm(sampling_params={'top_p': 1})"
    exec(text, vars(module))  # noqa: S102 -- it is written above
    vars(module)["generate_and_rm"] = lambda **said: asked.append(said["sampling_params"])
    run = fix.make_run(vars(module)["run"], module)
    for stop in (["</a>"], None):
        asyncio.run(run(SimpleNamespace(), 0, SimpleNamespace(stop=stop)))
    assert asked == [{"top_p": 1, "stop": ["</a>"]}, {"top_p": 1}]
    return {"calls": 2, "changed": 1}


@counting("verl.multimodal-caches")
def _(fix: Any, draw: random.Random, undo: pytest.MonkeyPatch) -> dict[str, Any]:
    async def done(*_: object) -> None:
        pass

    said: list[str] = []
    undo.setattr(log, "warning", said.append)
    clear, updates = fix.make_clear_kv_cache(done, NO_MODULE), draw.randint(1, 5)
    older = SimpleNamespace(reset_mm_cache=done)
    newer = SimpleNamespace(**vars(older), reset_encoder_cache=done)
    for engine, processor, node in ((newer, 1, 0), (older, 1, 0), (newer, None, 0), (newer, 1, 1)):
        told = SimpleNamespace(
            engine=engine, model_config=SimpleNamespace(processor=processor), node_rank=node
        )
        for _update in range(updates):
            asyncio.run(clear(told))
    # What cannot be cleared is told, and counts as nothing.
    assert len(said) == updates
    return {"changed": updates}


@counting("verl.offload-shared-storage")
def _(fix: Any, _draw: Any, undo: pytest.MonkeyPatch) -> dict[str, Any]:
    # Of a device without memory: what counts is that it is not the CPU's, where nothing is ever freed.
    can_resize = fix.make_can_resize(lambda tensor: True, NO_MODULE)
    alone, here = torch.zeros(3, device="meta"), torch.zeros(3)
    assert can_resize(alone)
    assert not can_resize(here)
    assert not fix.make_can_resize(lambda tensor: False, NO_MODULE)(alone)
    shared: Any = torch.zeros(5, device="meta")
    view = shared[:2]
    said: list[str] = []
    undo.setattr(log, "warning", said.append)
    assert not can_resize(shared)
    assert ["another tensor holds them" in one for one in said] == [True]
    assert len(view) == 2
    return {"calls": 2, "changed": 1, "bytes": 20}


# Some import Megatron, which warns.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("patch", "by"), BY_HAND, ids=[patch for patch, _ in BY_HAND])
def test_it_counts_what_is_counted_by_hand(patch: str, by: By, monkeypatch: pytest.MonkeyPatch) -> None:
    print(f"OVERLAY_TEST_SEED={SEED}")
    counts = part(patch, "effect").EFFECT
    counts.clear()
    assert by(part(patch, "fix"), random.Random(SEED), monkeypatch) == counts.read()
