"""What the patches of Megatron count, against what is counted by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from effect_cases import NO_MODULE, counts_of, fix

pytest.importorskip("torch")
import torch

if TYPE_CHECKING:
    import random


def test_reduce_contiguous() -> None:
    counts = counts_of("megatron.reduce-contiguous")
    reduce = fix("megatron.reduce-contiguous").reduce(lambda given, _: given, NO_MODULE)
    whole = torch.rand(3, 4)
    assert reduce(whole, None) is whole
    assert torch.equal(reduce(whole.T, None), whole.T)
    assert counts.read() == {"changed": 1}


def test_sigmoid_aux_scores() -> None:
    counts = counts_of("megatron.sigmoid-aux-scores")
    scores = fix("megatron.sigmoid-aux-scores").scores(lambda *_: None, NO_MODULE)
    for kind in (torch.bfloat16, torch.float32, torch.float64):
        scores(torch.zeros(2, dtype=kind), 1, "sigmoid")
    scores(torch.zeros(2, dtype=torch.bfloat16), 1, "softmax")
    assert counts.read() == {"calls": 3, "changed": 1}


def test_cp_comm_type_by_layer() -> None:
    counts = counts_of("megatron.cp-comm-type-by-layer")
    types = ["p2p", "p2p", "a2a"]

    def init(_self: Any, config: Any, number: int) -> None:
        assert config.cp_comm_type[number] == types[number - 1]

    made = fix("megatron.cp-comm-type-by-layer").init(init, NO_MODULE)
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

    load = fix("megatron.resumed-weight-decay").load(lambda *_: None, NO_MODULE)
    load(Scheduler(), {})
    load(Scheduler(), {})
    assert counts.read() == {"calls": 2, "changed": 1}


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
    fix("megatron.grad-norm").marked(lambda *_: None, NO_MODULE)([chunk])
    assert counts.read() == {"changed": 2}


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

    save = fix("megatron.reshardable-checkpoint").save(
        lambda self: self.get_parameter_state_dp_zero(), NO_MODULE
    )
    save(Optimizer())
    # What ends a bucket shifts those after it alone.
    assert counts.read() == {"calls": 2, "changed": 1}


def test_async_checkpoint_pin() -> None:
    counts = counts_of("megatron.async-checkpoint-pin")

    class Request(NamedTuple):
        preload_fn: Any

    def original(self: Any, request: Any) -> int:
        self.async_calls.append(
            SimpleNamespace(async_caller=SimpleNamespace(process=SimpleNamespace(it=request.preload_fn())))
        )
        return 0

    schedule = fix("megatron.async-checkpoint-pin").schedule(original, NO_MODULE)
    for persistent in (True, False, False):
        schedule(SimpleNamespace(persistent=persistent, async_calls=[]), Request(lambda: "staged"))
    assert counts.read() == {"changed": 2}


def test_dynamic_cp_names(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counts_of("megatron.dynamic-cp-names")
    own = fix("megatron.dynamic-cp-names")
    for name, held in {"_ranks": lambda _: 2, "confirm_attention": list, "warm_up": lambda *_: None}.items():
        monkeypatch.setattr(own, name, held)

    def initialize_model_parallel(hybrid_context_parallel: bool = False) -> None:
        assert hybrid_context_parallel in (True, False)

    initialize = own.make_initialize(initialize_model_parallel, NO_MODULE)
    for dynamic in (True, False, True):
        initialize(dynamic_context_parallel=dynamic)
    assert counts.read() == {"changed": 2}


def test_param_groups_by_lr() -> None:
    counts = counts_of("megatron.param-groups-by-lr")
    module: Any = SimpleNamespace(param_group_identifier_keys=("wd_mult",))
    reorder = fix("megatron.param-groups-by-lr").make_reorder(lambda current, saved: saved, module)
    for decays in ((1, 1), (0, 1)):  # two that tie, and two that upstream tells apart
        groups = [{"wd_mult": decay, "max_lr": rate, "params": [rate]} for rate, decay in enumerate(decays)]
        reorder(groups, groups[::-1])
    assert counts.read() == {"changed": 1}
