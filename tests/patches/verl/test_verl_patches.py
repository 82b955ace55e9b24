"""What verl's patches do and leave beside what their contracts ask of verl itself."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import overlay.patches.verl.vpp_training_hooks as hooks
from overlay.patches.verl.fast_partitioner import make_partitioner, whole
from overlay.patches.verl.rejected_in_groups import compute_advantage
from overlay.runtime.engine import Engine

# -- verl.fast-partitioner: what it takes upon itself, and what it leaves to the original ------------------


def divide(values: Any, parts: int = 2, *, equal_size: bool = False) -> Any:
    fast = make_partitioner(lambda *args: ("original", *args), SimpleNamespace())
    return fast(values, parts, equal_size)


@pytest.mark.parametrize("kind", [torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_are_divided_whether_in_a_list_or_a_tensor(kind: torch.dtype) -> None:
    assert divide([5, 1, 2]) == [[0], [2, 1]]
    assert divide(torch.tensor([5, 1, 2], dtype=kind)) == [[0], [2, 1]]


@pytest.mark.parametrize(
    "values",
    [
        [],
        torch.tensor([], dtype=torch.int64),
        [-1, 2],
        [float("nan"), 1.0],
        [torch.tensor(3), torch.tensor(2)],
        torch.tensor([3.0, 2.0]),
        torch.tensor([1, 2], dtype=torch.uint8),
        torch.tensor([True, False]),
        torch.tensor([[1, 2], [3, 4]]),
        # Their sum does not fit into what they are counted in, and verl's wraps around.
        torch.tensor([100, 100], dtype=torch.int8),
        torch.tensor([2**62, 2**62]),
    ],
)
def test_everything_else_is_the_originals(values: Any) -> None:
    name, given, parts, equal_size = divide(values, 2, equal_size=True)
    assert name == "original"
    assert given is values
    assert (parts, equal_size) == (2, True)


def test_what_fits_exactly_is_still_whole() -> None:
    assert whole(torch.tensor([100, 27], dtype=torch.int8)) == [100, 27]
    assert whole(torch.tensor([-100, 27], dtype=torch.int8)) == [-100, 27]


# -- verl.multi-turn-returns: REINFORCE++ starts anew at each token that is not the policy's ---------------


def advantages() -> list[list[float]]:
    """Return what verl's trainer makes of two rollouts of two turns, of which the first succeeds."""
    from overlay.compat.verl_imports import stand_in

    stand_in()
    from verl import DataProto
    from verl.trainer.ppo.core_algos import AdvantageEstimator
    from verl.trainer.ppo.ray_trainer import compute_advantage

    rewards = torch.zeros(2, 6)
    rewards[0, -1] = 1
    mask = torch.tensor([[1, 1, 0, 0, 1, 1]] * 2)
    data = DataProto.from_dict({"token_level_rewards": rewards, "response_mask": mask})
    config = SimpleNamespace(gamma=1.0)
    data = compute_advantage(data, AdvantageEstimator.REINFORCE_PLUS_PLUS, config=config)
    found: list[list[float]] = data.batch["advantages"].tolist()
    return found


@pytest.mark.filterwarnings("ignore")  # what verl imports warns of this and that
def test_in_verls_trainer_both_turns_of_a_success_are_credited() -> None:
    engine = Engine()
    engine.enable(["verl.multi-turn-returns"], strict=True)
    try:
        success, failure = advantages()
    finally:
        engine.disable()
    credited = 0.5 / (2 / 7) ** 0.5  # of the returns of eight tokens four are 1, and the others 0
    assert success == pytest.approx([credited, credited, 0, 0, credited, credited], abs=1e-5)
    assert failure == pytest.approx([-one for one in success], abs=1e-5)


# -- verl.rejected-in-groups: responses that are rejected only after their advantages were computed --------


@pytest.mark.parametrize(
    ("correction", "count"),
    [
        ({"rollout_rs": "seq_mean_k1", "bypass_mode": True}, 1),
        ({"rollout_rs": "seq_mean_k1", "bypass_mode": False}, 0),
        ({"rollout_rs": None, "bypass_mode": True}, 0),
        (None, 0),
    ],
)
def test_a_patch_that_comes_too_late_says_so(
    correction: Any, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    np = pytest.importorskip("numpy")
    batch = {"response_mask": torch.ones(2, 3)}
    data = SimpleNamespace(batch=batch, non_tensor_batch={"uid": np.array(["a", "a"], dtype=object)})
    compute = compute_advantage(lambda data, *_, **__: data, ModuleType("verl"))
    assert compute(data, "grpo", config={"rollout_correction": correction}) is data
    assert compute(data, "grpo") is data
    assert capsys.readouterr().err.count("does nothing with rollout_correction.bypass_mode") == count


# -- verl.vpp-training-hooks -------------------------------------------------------------------------------


@pytest.mark.parametrize("overlaps", [True, False])
def test_only_a_model_that_has_hooks_is_counted(overlaps: bool) -> None:
    """Where virtual stages have no hooks, there are none to be put together."""
    pytest.importorskip("megatron.core")
    config = SimpleNamespace(no_sync_func=None, grad_sync_func=None, param_sync_func=None)
    model = [SimpleNamespace(config=config, no_sync=place) for place in (1, 2)]

    def original(chunks: list[SimpleNamespace], _optimizer: object) -> None:
        if overlaps:
            config.no_sync_func = chunks[0].no_sync

    hooks.EFFECT.clear()
    hooks.register_megatron_training_hooks(original, ModuleType("verl"))(model, None)
    assert config.no_sync_func == ([1, 2] if overlaps else None)
    assert hooks.EFFECT.changed == overlaps
