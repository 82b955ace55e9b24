"""Which losses of the installed verl are taken for sums, and that nothing else is."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checks import SEED
from listed_sources import Findings, Listed

from overlay.patches._dynamic_cp.losses import BY_WIDTH, HANDED_ON, is_sum, name_of, with_width
from overlay.source.registry import load_patches

pytestmark = [pytest.mark.real, pytest.mark.quick]

ROOT = Path(__file__).parents[2]
SUMS = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "cispo")
OTHERS = ("clip_cov", "kl_cov", "geo_mean", "bypass_mode")

#: What the losses of each kind come to alone and with a selection, and whether they are taken for sums.
IN_COMPANY = """
import functools, json, sys
from types import SimpleNamespace
import overlay

overlay.enable(sys.argv[1], strict=False)
from overlay.compat.verl_imports import stand_in
stand_in()
import torch
from verl.trainer.ppo import core_algos
from verl.workers.utils import losses
from overlay.patches._dynamic_cp.losses import is_sum

def loss(name):
    settings = {"loss_agg_mode": "token-mean", "loss_scale_factor": None}
    config = SimpleNamespace(policy_loss={"loss_mode": name}, **settings)
    return functools.partial(losses.ppo_loss, config=config)

def wrapped(*given, **named):
    return core_algos.agg_loss(*given, **named)

torch.manual_seed(int(sys.argv[2]))
values, mask = torch.randn(5, 7), torch.rand(5, 7) > 0.4
known = {"dp_size": 3, "batch_num_tokens": 40, "global_batch_size": 11, "loss_scale_factor": 6}
modes = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
found = {
    "sums": {name: is_sum(loss(name)) for name in core_algos.POLICY_LOSS_REGISTRY},
    "sft": is_sum(losses.sft_loss),
    "values": [float(core_algos.agg_loss(values, mask, mode, **known)) for mode in modes],
    "replaced": hasattr(core_algos.agg_loss, "__overlay_original__"),
}
original, losses.agg_loss = losses.agg_loss, functools.wraps(core_algos.agg_loss)(wrapped)
found["wrapped"] = is_sum(loss("vanilla"))
print(json.dumps(found))
"""


@pytest.fixture
def verl() -> Any:
    """Return verl's losses and its algorithms."""
    pytest.importorskip("verl", reason="verl is not installed")
    from verl.trainer.ppo import core_algos
    from verl.workers.utils import losses

    return SimpleNamespace(losses=losses, algorithms=core_algos)


def config(loss_mode: str = "vanilla", **settings: Any) -> Any:
    """Return what a loss looks at."""
    known = {"loss_agg_mode": "token-mean", "loss_scale_factor": None}
    return SimpleNamespace(policy_loss={"loss_mode": loss_mode}, **known | settings)


def ppo(verl: Any, loss_mode: str = "vanilla", **settings: Any) -> Any:
    """Return verl's loss of a policy, as the engine is given it."""
    return functools.partial(verl.losses.ppo_loss, config=config(loss_mode, **settings))


def test_a_policy_loss_is_taken_for_what_it_is(verl: Any) -> None:
    assert sorted(verl.algorithms.POLICY_LOSS_REGISTRY) == sorted([*SUMS, *OTHERS])
    for name in (*SUMS, *OTHERS):
        assert is_sum(ppo(verl, name)) is (name in SUMS)
        assert is_sum(functools.partial(verl.losses.ppo_loss, config(name))) is (name in SUMS)
        assert name_of(ppo(verl, name)) == f"loss_mode={name}"


def test_supervised_fine_tuning_is_a_sum_and_a_value_is_not(verl: Any) -> None:
    assert is_sum(functools.partial(verl.losses.sft_loss, config=None))
    assert is_sum(verl.losses.sft_loss)
    assert not is_sum(functools.partial(verl.losses.value_loss, config=config()))


def test_by_width_it_is_a_sum_once_the_width_is_set(verl: Any) -> None:
    loss = ppo(verl, loss_agg_mode=BY_WIDTH)
    assert not is_sum(loss)
    assert is_sum(ppo(verl, loss_agg_mode=BY_WIDTH, loss_scale_factor=5))
    assert is_sum(with_width(loss, 9))
    assert with_width(loss, 9).keywords["config"].loss_scale_factor == 9
    assert loss.keywords["config"].loss_scale_factor is None  # the user's own is as it was
    set_already = ppo(verl, loss_agg_mode=BY_WIDTH, loss_scale_factor=5)
    assert with_width(set_already, 9).keywords["config"] is set_already.keywords["config"]


def test_around_and_in_place_of_a_known_loss_may_be_anything(
    verl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @functools.wraps(verl.losses.sft_loss)
    def doubled(*given: Any, **named: Any) -> Any:
        loss, metrics = verl.losses.sft_loss(*given, **named)
        return loss.mean(), metrics

    assert not is_sum(doubled)

    registry = verl.algorithms.POLICY_LOSS_REGISTRY
    monkeypatch.setitem(registry, "vanilla", registry["geo_mean"])
    assert not is_sum(ppo(verl))


def test_another_aggregation_and_another_way_to_aggregate_are_not_known(
    verl: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for mode in (None, "mean-of-everything"):
        assert not is_sum(ppo(verl, loss_agg_mode=mode))
    for module in (verl.losses, verl.algorithms):
        with monkeypatch.context() as patch:
            patch.setattr(module, "agg_loss", lambda loss_mat, **_: loss_mat.mean())
            assert not is_sum(ppo(verl))
    assert is_sum(ppo(verl))


def test_what_is_no_plain_function_is_not_known(verl: Any) -> None:
    class Loss:
        def __call__(self, **_: Any) -> Any:
            raise NotImplementedError

        def method(self, **_: Any) -> Any:
            raise NotImplementedError

    made: dict[str, Any] = {}
    exec("def nowhere(**_): pass", made)  # noqa: S102 -- a function without a source
    for loss in (Loss(), Loss().method, made["nowhere"], len, None, functools.partial(Loss(), key=5)):
        assert not is_sum(loss)
    # The same on every rank, where no two objects are at one address.
    assert name_of(Loss()) == name_of(Loss())
    assert not is_sum(ppo(verl, "none of verl's"))
    assert not is_sum(functools.partial(verl.losses.ppo_loss))


def test_beside_all_other_patches_the_same_losses_are_sums(listed: Listed, findings: Findings) -> None:
    folder = listed("verl==0.8.0")
    alone = findings(folder, IN_COMPANY, "verl.dynamic-cp-loss", str(SEED))
    company = findings(folder, IN_COMPANY, "all", str(SEED))
    assert (alone["replaced"], company["replaced"]) == (False, True)
    assert alone["sums"] == company["sums"] == {name: name in SUMS for name in (*SUMS, *OTHERS)}
    assert (alone["sft"], company["sft"]) == (True, True)
    # Through the replacement that is looked through, to the bit what verl's own returns.
    assert company["values"] == alone["values"]
    assert not alone["wrapped"]
    assert not company["wrapped"]  # by somebody else, with the marks of ours


def test_whatever_else_replaces_a_known_function_is_known_to_hand_it_all_on() -> None:
    sites = {
        (replacement.site.rpartition(":")[2], patch.id)
        for patch in load_patches().values()
        for target in patch.targets
        for variant in target.variants
        for replacement in variant.replacements
    }
    known = json.loads((ROOT / "patches/_dynamic_cp/losses.tested.json").read_text())
    assert {(name, patch) for name, patch in sites if name in known} == set(HANDED_ON.items())
