"""What the patches of slime count of rollouts and of what resumes, against what is counted by hand."""

from __future__ import annotations

import asyncio
import sys
from queue import Queue
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from effect_cases import NO_MODULE, counts_of, fix

from overlay import log

pytest.importorskip("torch")
import torch

if TYPE_CHECKING:
    import random

#: Small functions with the seams of slime's.
SOURCE = """
async def _generate_rollout_async(args, rollout_id, data_buffer):
    return _get_global_worker().get_completed_groups()

def initialize_model_and_optimizer(args, role="actor"):
    load_checkpoint(None, None, scheduler)
    scheduler.step(args.again)
    return None, None, scheduler, 1

def train_actor(self, rollout_id, rollout_data, external_data=None):
    compute_advantages_and_returns(self.args, rollout_data)
"""


@pytest.fixture
def slime() -> Any:
    module = ModuleType("fake_slime")
    exec(SOURCE, module.__dict__)  # noqa: S102 -- the text above
    return module


def test_async_groups(slime: Any, draw: random.Random) -> None:
    counts = counts_of("slime.async-groups")
    waiting = [0, draw.randint(1, 9), draw.randint(1, 9)]
    rollout = fix("slime.async-groups").make_rollout(slime._generate_rollout_async, slime)
    for number in waiting:
        queue: Queue[int] = Queue()
        for group in range(2 + number):
            queue.put(group)
        slime._get_global_worker = lambda queue=queue: SimpleNamespace(output_queue=queue)
        assert asyncio.run(rollout(SimpleNamespace(rollout_batch_size=2), 0, None)) == [0, 1]
    assert counts.read() == {"calls": 3, "changed": 2, "kept": sum(waiting), "most": max(waiting)}


def test_resumed_schedule(slime: Any, draw: random.Random) -> None:
    class Scheduler:
        num_steps = 0

        def step(self, increment: int) -> None:
            self.num_steps += increment

    counts = counts_of("slime.resumed-schedule")
    steps = draw.randint(1, 99)
    initialize = fix("slime.resumed-schedule").make_initialize(slime.initialize_model_and_optimizer, slime)
    # A checkpoint that says nothing, one after which slime goes on twice, and one after which it does not.
    for saved, again in ((0, steps), (7, steps), (7, 0)):
        slime.scheduler = Scheduler()
        slime.load_checkpoint = lambda *_, saved=saved: slime.scheduler.step(saved)
        initialize(SimpleNamespace(again=again))
    assert counts.read() == {"calls": 3, "changed": 1}


def test_one_step_log_probs(slime: Any) -> None:
    counts = counts_of("slime.one-step-log-probs")
    slime.compute_advantages_and_returns = lambda args, data: None
    train = fix("slime.one-step-log-probs").make_train_actor(slime.train_actor, slime)
    for kl, given in ((0, {}), (0.1, {}), (0, {"log_probs": [1]})):
        actor = SimpleNamespace(args=SimpleNamespace(use_rollout_logprobs=False, kl_coef=kl))
        train(actor, 0, dict(given))
    assert counts.read() == {"changed": 1}


def test_masked_gae(monkeypatch: pytest.MonkeyPatch, draw: random.Random) -> None:
    def estimate(rewards: Any, values: Any, gamma: float, lambd: float) -> Any:
        return rewards, None

    mpu = SimpleNamespace(get_context_parallel_world_size=lambda: 1)
    modules: dict[str, dict[str, Any]] = {
        "megatron": {},
        "megatron.core": {"mpu": mpu},
        "slime": {},
        "slime.utils": {"ppo_utils": SimpleNamespace(chunked_gae=estimate)},
    }
    for name, held in modules.items():
        module = ModuleType(name)
        vars(module).update(held)
        monkeypatch.setitem(sys.modules, name, module)
    counts = counts_of("slime.masked-gae")
    own = fix("slime.masked-gae")

    def upstream(
        totals: Any, responses: Any, values: Any, rewards: Any, gamma: Any, lambd: Any, chunked: bool = True
    ) -> Any:
        raise NotImplementedError

    batch = own.make_batch(upstream, NO_MODULE)
    masked = draw.randint(1, 4)
    for masks in ([[1, 1], [1]], [[1, *[0] * masked], [0, 1]]):
        masks_ = [torch.tensor(mask) for mask in masks]
        args = SimpleNamespace(kl_coef=0, use_rollout_logprobs=False)
        token = own._current.set((args, {"loss_masks": masks_}, [1.0, 1.0]))
        try:
            batch([9, 9], [len(mask) for mask in masks], [torch.zeros(len(one)) for one in masks], [], 1, 1)
        finally:
            own._current.reset(token)
    assert counts.read() == {"calls": 2, "changed": 1, "masked": masked + 1}


@pytest.mark.parametrize("patch", ["slime.metrics", "verl.metrics"])
def test_metrics(patch: str) -> None:
    counts = counts_of(patch)
    log = fix(patch).log(lambda *given: given, NO_MODULE)
    for _ in range(3):
        log(None, {"loss": 1.0}, 1)
    assert counts.read() == {"changed": 3}


def test_offload_shared_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = counts_of("verl.offload-shared-storage")
    # Of a device without memory: what counts is that it is not the CPU's, where nothing is ever freed.
    make = fix("verl.offload-shared-storage").make_can_resize
    can_resize = make(lambda tensor: True, NO_MODULE)
    alone, here = torch.zeros(3, device="meta"), torch.zeros(3)
    assert can_resize(alone)
    assert not can_resize(here)
    assert not make(lambda tensor: False, NO_MODULE)(alone)
    shared: Any = torch.zeros(5, device="meta")
    view = shared[:2]
    said: list[str] = []
    monkeypatch.setattr(log, "warning", said.append)
    assert not can_resize(shared)
    assert ["another tensor holds them" in one for one in said] == [True]
    assert counts.read() == {"calls": 2, "changed": 1, "bytes": 20}
    assert len(view) == 2
