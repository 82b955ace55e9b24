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
