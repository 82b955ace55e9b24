"""What records of slime and verl advise is done here, on each release that has the defect."""

from __future__ import annotations

import pytest
from advised import having
from checks import SEED
from listed_sources import Findings, Listed, Said

pytestmark = pytest.mark.real


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
def test_a_reward_on_a_token_of_the_policy_is_credited(said: Said) -> None:
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
def test_a_distillation_of_one_token_is_measured(said: Said) -> None:
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
def test_slimes_other_masks_keep_the_results_of_tools_in_one_turn(name: str, said: Said) -> None:
    """Of `qwen3` with the patch the contract of `slime.tool-turn-mask` asks the same."""
    found = said(MASKED)
    assert found["qwen"] != "right", "the defect is not there any more"
    old = name.partition("==")[2] in ("v0.1.0", "v0.2.0", "v0.2.0.post1", "v0.2.1", "v0.2.2", "v0.2.3")
    assert (found["qwen3_5"] == "right") is not old, found
    assert (found["qwen3"].startswith("ValueError")) is (name == "slime==v0.1.0"), found


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
def test_without_correct_samples_slime_reports_a_ranks_own(said: Said) -> None:
    found = said(CORRECT)
    assert found["last"] == "list index out of range"
    # Another rank's sample is correct, and the second of its own is taken for it.
    assert found["first"]["correct"] == [found["first"]["own"][1]]
    assert found["off"]["correct"] is None
    assert found["off"]["told"]["response_lengths"] == sum(found["off"]["own"]) / 4, SEED
    assert found["off"]["told"]["log_probs"] < 0


MASKED_KL = """
import json, sys
from overlay.compat.contracts import megatron_parts as parts
from overlay.compat.slime_on_cpu import imported
import torch

@parts.on_one_rank
def found(seed):
    module = imported("slime.utils.ppo_utils")
    draw = torch.Generator().manual_seed(int(seed))
    mask = torch.tensor([1.0, 1, 0, 0, 1, 1])  # the result of a tool, between two turns
    own = torch.rand(6, generator=draw)
    errors = []
    for coefficient in (0.1, 0.0):
        given = coefficient * own  # the penalty
        (returns,) = module.get_reinforce_plus_plus_returns(
            rewards=torch.ones(1), kl=[own], loss_masks=[mask], response_lengths=[6], total_lengths=[8],
            kl_coef=coefficient, gamma=1.0,
        )
        right = 1 - (given * mask).flip(0).cumsum(0).flip(0)
        errors.append([float((returns - right)[at].abs().max()) for at in (slice(0, 4), slice(4, 6))])
    return {"errors": errors, "masked": 0.1 * float(own[2:4].sum())}

print(json.dumps(found(sys.argv[1])))
"""


@having("slime.masked-kl-in-returns")
def test_without_kl_masked_tokens_leave_returns_alone(said: Said) -> None:
    found = said(MASKED_KL)
    (before, behind), *without = found["errors"]
    assert before == pytest.approx(found["masked"], abs=1e-6), SEED
    assert max(behind, *without[0]) < 1e-6, SEED


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
def test_the_loss_of_one_head_is_logged(said: Said) -> None:
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
def test_the_entropy_of_torch_does_not_underflow(said: Said) -> None:
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
def test_the_legacy_trainer_counts_no_rejected_token(said: Said) -> None:
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
def test_the_engine_weighs_each_token_alike(name: str, listed: Listed, findings: Findings) -> None:
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
def test_a_job_that_was_saved_within_an_epoch_goes_on(said: Said) -> None:
    found = said(RESUMED)
    assert found["within"] is True, SEED
    assert found["end"] is False, "the defect is not there any more"
