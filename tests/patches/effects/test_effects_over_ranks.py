"""What patches count that work over the ranks of a group, on one process that stands for two."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from effect_cases import NO_MODULE, counts_of, fix

from overlay.effect import told

pytest.importorskip("torch")
import torch

if TYPE_CHECKING:
    import random

#: Of two ranks, of which this is the first.
PAIR = SimpleNamespace(size=lambda: 2, rank=lambda: 0)


@pytest.fixture
def twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the other rank have what this one has."""

    def all_reduce(tensor: Any, op: Any = torch.distributed.ReduceOp.SUM, **_group: Any) -> None:
        if op == torch.distributed.ReduceOp.SUM:
            tensor.mul_(2)

    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)


def test_agreement(monkeypatch: pytest.MonkeyPatch) -> None:
    import overlay
    from overlay.compat import agreement

    counts = counts_of("megatron.agreement")
    monkeypatch.setattr(overlay, "agree", lambda: None)
    make = fix("megatron.agreement").compare(lambda: None, NO_MODULE)
    for distributed in (True, False, True):
        monkeypatch.setattr(agreement, "is_distributed", lambda distributed=distributed: distributed)
        make()
    assert counts.read() == {"changed": 2}


def test_gated_norm_over_tp(draw: random.Random) -> None:
    counts = counts_of("megatron.gated-norm-over-tp")
    number = draw.randint(1, 5)
    layer = type("GatedDeltaNet", (), {"__module__": "megatron.core.ssm.gated_delta_net"})()
    layer.out_norm = SimpleNamespace(parameters=lambda: [torch.ones(1)])
    chunk = SimpleNamespace(modules=lambda: [layer, object()] * number, ddp_config=None)
    shown: list[Any] = []

    def original(model: Any, config: Any, group: Any = None) -> None:
        shown.extend(one for part in model if part is not chunk for one in part.named_parameters())

    reduce = fix("megatron.gated-norm-over-tp").allreduce(original, NO_MODULE)
    for parallel in (True, False):
        reduce([chunk], SimpleNamespace(sequence_parallel=parallel))
    assert counts.read() == {"changed": number}
    assert len(shown) == number


@pytest.mark.usefixtures("twice")
def test_mla_rotary_key_over_tp() -> None:
    counts = counts_of("megatron.mla-rotary-key-over-tp")
    config = SimpleNamespace(qk_head_dim=3, qk_pos_emb_head_dim=2, kv_lora_rank=4, sequence_parallel=False)
    down = torch.nn.Linear(7, 6, bias=False)
    layer = SimpleNamespace(config=config, pg_collection=SimpleNamespace(tp=PAIR), linear_kv_down_proj=down)
    key = torch.rand(5, 4, 5, requires_grad=True)
    tensors = fix("megatron.mla-rotary-key-over-tp").tensors(lambda *_: (None, key, None), NO_MODULE)
    made = tensors(layer)[1]
    config.sequence_parallel = True  # with a projection that is whole here, Megatron sums it
    assert tensors(layer)[1] is key
    assert counts.read() == {"changed": 1}
    weight = torch.rand(5, 4, 5)
    (made * weight).sum().backward()
    assert torch.equal(key.grad[..., :3], weight[..., :3])
    # Of both ranks and all heads, on the first of them.
    assert torch.allclose(key.grad[:, 0, 3:], 2 * weight[..., 3:].sum(1))
    assert not key.grad[:, 1:, 3:].any()


@pytest.mark.usefixtures("twice")
def test_label_smoothing_over_tp() -> None:
    counts = counts_of("megatron.label-smoothing-over-tp")
    loss = fix("megatron.label-smoothing-over-tp").loss(lambda *_: torch.zeros(3), NO_MODULE)
    logits, target = torch.rand(3, 4), torch.zeros(3, dtype=torch.long)
    for smoothing in (0.0, 0.1, 0.2):
        loss(logits, target, smoothing, PAIR)
    assert counts.read() == {"changed": 2}


def test_masked_loss_cp(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("megatron.core")
    from megatron.core import parallel_state

    counts = counts_of("megatron.masked-loss-cp")
    monkeypatch.setattr(parallel_state, "get_context_parallel_world_size", lambda: 2)
    monkeypatch.setattr(parallel_state, "get_context_parallel_group", lambda: None)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda total, group: total.add_(2))
    outputs: list[Any] = [(torch.ones(()), torch.tensor(6), {}), (torch.ones(()), {})]
    for given in outputs:  # the second counts its tokens itself
        fix("megatron.masked-loss-cp")._over_all_ranks(lambda given=given: given, 2)()
    assert counts.read() == {"changed": 1}


@pytest.mark.usefixtures("twice")
def test_mtp_loss_scale() -> None:
    counts = counts_of("megatron.mtp-loss-scale")

    def roll_tensor(tensor: Any, cp_group: Any = None) -> Any:
        return tensor, tensor.sum()

    roll = fix("megatron.mtp-loss-scale").mean_roll(roll_tensor, NO_MODULE)
    for group in (None, PAIR, SimpleNamespace(size=lambda: 1)):
        roll(torch.ones(3), cp_group=group)
    assert counts.read() == {"calls": 3, "changed": 1}


def test_mtp_without_tokens() -> None:
    counts = counts_of("megatron.mtp-without-tokens")
    make = fix("megatron.mtp-without-tokens").roll_tensor
    roll = make(lambda tensor: (tensor, tensor.sum()), NO_MODULE)
    for mask in (torch.ones(3), torch.zeros(3), torch.zeros(3, dtype=torch.bfloat16)):
        roll(mask)
    # Labels are shifted by the same function, and words may have the number zero.
    assert roll(torch.zeros(3, dtype=torch.long))[1] == 1
    assert counts.read() == {"calls": 3, "changed": 2}
    assert "found without a token 2 of 3 shifted masks" in told(of_counts(counts))
    # Of a device that must not be waited for, nothing is claimed.
    counts.changed = torch.zeros((), device="meta")
    assert told(of_counts(counts, wait=False)).startswith("looked at 3 shifted masks; how many")


def of_counts(counts: Any, *, wait: bool = True) -> Any:
    return counts.effect.replace(values=counts.read(wait=wait))


def test_hf_attention_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counts_of("slime.hf-attention-gradient")
    monkeypatch.setattr(torch.distributed, "reduce_scatter_tensor", lambda *_, **__: None)
    backward = fix("slime.hf-attention-gradient").make_backward(None, NO_MODULE)
    backward(SimpleNamespace(rank=1, group=None), torch.ones(2), torch.ones(2))
    assert counts.read() == {"changed": 1}

    def forward(self: Any, states: Any) -> Any:
        return states * 2

    for ranks in (1, 4):
        mpu = SimpleNamespace(get_tensor_model_parallel_world_size=lambda ranks=ranks: ranks)
        own = fix("slime.hf-attention-gradient").make_forward(forward, SimpleNamespace(mpu=mpu))
        layer = SimpleNamespace(args=SimpleNamespace(sequence_parallel=True))
        own(layer, torch.ones(2, requires_grad=True)).sum().backward()
    assert counts.read() == {"changed": 2}


@pytest.mark.parametrize("patch", ["slime.whiten-over-cp", "miles.whiten-over-cp"])
def test_whitening_without_a_token_of_this_rank(patch: str) -> None:
    counts = counts_of(patch)
    module: Any = SimpleNamespace(
        distributed_masked_whiten=lambda *_: None, get_advantages_and_returns_batch=print
    )
    if patch.startswith("slime"):

        def advantages(args: Any, data: Any) -> None:
            data["advantages"] = [torch.zeros(0)]

        compute = fix(patch).make_advantages(advantages, module)
        for normalize in (True, False):
            compute(SimpleNamespace(normalize_advantages=normalize), {})
    else:
        normalize_advantages = fix(patch).make_normalize(lambda *_, **__: None, module)
        normalize_advantages(None, [torch.zeros(0)], [], [], [])
    assert counts.read() == {"calls": 0, "changed": 0, "empty": 1}


def test_moe_aux_scale_of_verl(monkeypatch: pytest.MonkeyPatch, draw: random.Random) -> None:
    pytest.importorskip("megatron.core")
    from megatron.core import parallel_state, utils

    counts = counts_of("verl.moe-aux-scale")
    own = fix("verl.moe-aux-scale")
    data, context = draw.randint(2, 5), draw.randint(2, 5)

    def size(with_context_parallel: bool = False) -> int:
        return data * context if with_context_parallel else data

    monkeypatch.setattr(parallel_state, "get_data_parallel_world_size", size)

    def config_of(model: str) -> Any:
        return SimpleNamespace(calculate_per_token_loss=model == "per token")

    monkeypatch.setattr(utils, "get_model_config", config_of)
    monkeypatch.setattr(own, "_told", lambda *_call, **_shared: {})
    for make, times in ((own.get_shared, data), (own.get, data * context)):
        counts.clear()
        schedule = make(lambda: lambda **_call: None, NO_MODULE)()
        for model, only in (("per token", False), ("per token", True), ("per batch", False)):
            call: dict[str, Any] = {"forward_step_func": None, "data_iterator": None, "num_microbatches": 1}
            schedule(model=model, forward_only=only, **call)
        assert counts.read() == {"changed": 1, "times": times}
