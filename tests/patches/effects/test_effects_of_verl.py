"""What the patches of verl count, against what is counted by hand."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from effect_cases import NO_MODULE, counts_of, fix

pytest.importorskip("torch")
import torch

if TYPE_CHECKING:
    import random

#: Of two weights: where they lie in a bucket.
PLACES = (("first", 0), ("second", 4))


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
    loss = fix("verl.distillation-loss-scale").distillation_loss(lambda *_: None, NO_MODULE)
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


def test_lora_own_memory() -> None:
    counts = counts_of("verl.lora-own-memory")
    update = fix("verl.lora-own-memory").update_weights(lambda *_: None, NO_MODULE)
    weights = [("a", torch.zeros(2)), ("b", torch.zeros(3))]
    for adapter, synced in (({"r": 8}, True), ({"r": 8}, False), (None, True)):
        update(None, weights, adapter, synced)
    assert counts.read() == {"changed": 1}


def test_mooncake_mark() -> None:
    counts = counts_of("verl.mooncake-mark")
    module: Any = SimpleNamespace(get_torch_device=lambda: SimpleNamespace(synchronize=lambda: None))

    class Engine:
        """Receives two weights, of which a mark is over the first."""

        store: Any

        def __init__(self) -> None:
            self.buf = torch.zeros(16, dtype=torch.uint8)

        async def receive_weights(self) -> Any:
            kind = {"dtype": torch.float32, "shape": torch.Size([1])}
            meta = {name: {"offset": at, **kind} for name, at in PLACES}
            self.store.send_obj({"ptr": self.buf.data_ptr(), "bucket_meta": meta}, 2)
            for name, at in PLACES:
                yield name, self.buf[at : at + 4].view(torch.float32)

    async def received(engine: Any) -> list[str]:
        return [name async for name, _ in engine.receive_weights()]

    def original(self: Any, *_: Any) -> None:
        self.store = SimpleNamespace(send_obj=lambda *_: None)

    init = fix("verl.mooncake-mark").make_init_process_group(original, module)
    for rank in (1, 2):  # of three: the last one has nobody behind it
        engine: Any = Engine()
        init(engine, rank, 3, {})
        assert asyncio.run(received(engine)) == ["first", "second"]
    assert counts.read() == {"changed": 1}


def test_seeded_validation() -> None:
    counts = counts_of("verl.seeded-validation")
    bootstrap = fix("verl.seeded-validation").bootstrap_metric(lambda *_: 1, NO_MODULE)
    bootstrap([1.0], 1, [])
    assert counts.read() == {"changed": 1}


class Scheduler:
    """Of slime's and of verl's: how far the schedule has come."""

    num_steps = 0

    def step(self, increment: int) -> None:
        self.num_steps += increment

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step(state["num_steps"])


def test_resumed_lr_schedule_of_verl(draw: random.Random) -> None:
    counts = counts_of("verl.resume-lr-schedule")
    steps = draw.randint(1, 500)

    def original(self: Any, *_: Any) -> None:
        self.lr_scheduler.load_state_dict({"num_steps": steps})

    manager = SimpleNamespace(
        use_checkpoint_opt_param_scheduler=False, should_load_extra=True, lr_scheduler=Scheduler()
    )
    fix("verl.resume-lr-schedule").load_checkpoint(original, NO_MODULE)(manager, "here")
    manager.use_checkpoint_opt_param_scheduler = True  # verl does so itself
    fix("verl.resume-lr-schedule").load_checkpoint(original, NO_MODULE)(manager, "here")
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

    load = fix("verl.resume-epoch-boundary").load(
        lambda trainer, step: trainer.train_dataloader.load_state_dict(step), NO_MODULE
    )
    for noted in ("global_steps", "resume_global_step"):
        for step in (2, 3):
            load(SimpleNamespace(train_dataloader=Loader(), **{noted: step}), step)
    assert counts.read() == {"calls": 4, "changed": 2}


def test_critic_loss_scale() -> None:
    counts = counts_of("verl.critic-loss-scale")
    module = SimpleNamespace(Metric=dict, AggregationType=SimpleNamespace(SUM="sum"))
    loss = fix("verl.critic-loss-scale").make_value_loss(lambda *_: (1.0, {}), module)
    data = {"dp_size": 1, "batch_num_tokens": 2, "global_batch_size": 3}
    loss(SimpleNamespace(), None, data)
    loss(SimpleNamespace(), None, data)
    assert counts.read() == {"changed": 2}


def test_known_defects(monkeypatch: pytest.MonkeyPatch) -> None:
    from overlay.runtime import met

    met_by: list[Any] = []
    monkeypatch.setattr(met, "meet", lambda *given: met_by.append(list(given[-1])))
    counts = counts_of("megatron.known-defects")
    fix("megatron.known-defects").set_args(lambda args: None, NO_MODULE)(SimpleNamespace(bf16=True))
    assert counts.read() == {"changed": 1}
    counts = counts_of("verl.known-defects")
    log = fix("verl.known-defects").look_up(lambda *_given, **_named: None, NO_MODULE)
    for config in ({"optim": {"lr": 1}}, None):  # some loggers are given none
        log(None, "project", config=config)
    assert counts.read() == {"changed": 1}
    assert met_by == [[{"bf16": True}], [{"optim.lr": 1, "use_dynamic_bsz": None}]]
    log(None, "project", config={"engine": {"tensor_model_parallel_size": 2}})
    assert met_by[-1][0]["strategy"] == "megatron"
