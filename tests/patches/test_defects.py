"""The records of known defects are of one form, and each patch fixes at least one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from packaging.version import Version
from patch_words import ID, UPSTREAM

from overlay.compat.projects import MEGATRON, MILES, SLIME, VERL
from overlay.defect import HARMS, READ, Before, Beyond, Defect, Setting
from overlay.desk.audit import settings_file
from overlay.desk.audit.job_settings import options, recognise
from overlay.source.conditions import names
from overlay.source.known_defects import dialects, load_defects
from overlay.source.registry import load_patches
from overlay.source.source import Tree
from records import _support_print

ROOT = Path(__file__).parents[2]
PATCHES = load_patches()
DEFECTS = load_defects(PATCHES)
ROWS = _support_print.rows()
NAMES = {MEGATRON: "megatron", MILES: "miles", SLIME: "slime", VERL: "verl"}


#: What a setting of overlay's own asks for fixes nothing, nor does what looks for defects.
MENDING = sorted(name for name, patch in PATCHES.items() if not name.endswith((".metrics", ".known-defects")))


@pytest.mark.parametrize("name", MENDING)
def test_each_patch_mends_at_least_one_defect(name: str) -> None:
    """A patch without one has a record to be written in `patches/_defects/`."""
    assert [defect.id for defect in DEFECTS.values() if defect.patch == name]


def test_each_defect_is_of_a_patch_that_is_there() -> None:
    """Of another one the record would be passed over."""
    named = {
        name
        for path in (ROOT / "patches/_defects").glob("*.py")
        for name in re.findall(r'^ +patch="([^"]+)"', path.read_text(), re.MULTILINE)
    }
    assert named
    assert named <= set(PATCHES)


@cache
def functions(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.fixture(params=sorted(DEFECTS))
def defect(request: pytest.FixtureRequest) -> Defect:
    return DEFECTS[request.param]


def test_a_record_is_of_the_form(defect: Defect) -> None:
    assert ID.fullmatch(defect.id)
    assert defect.id.partition(".")[0] == NAMES[defect.project]
    assert defect.id not in PATCHES, "a defect is no patch"
    assert defect.summary.endswith(".")
    assert len(defect.summary) <= 250
    assert defect.harm in HARMS
    assert defect.met.endswith(".")
    assert all(UPSTREAM.fullmatch(reference) for reference in defect.upstream)
    if defect.fixed is not None:
        Version(defect.fixed)
    assert defect.way_out or not defect.tried


def test_what_was_tried_is_tried_by_a_test_on_each_release(defect: Defect) -> None:
    """A test on fewer releases than have the defect says so by its parameters."""
    if not defect.tried:
        return
    file, _, name = defect.tried.partition("::")
    assert name in functions(file)
    if file.startswith("tests/real/test_advice"):
        source = (ROOT / file).read_text(encoding="utf-8")
        assert f'@having("{defect.id}")\ndef {name}(' in source


def test_how_a_defect_was_shown_is_true(defect: Defect) -> None:
    if defect.shown == READ:
        return
    if defect.shown.startswith("overlay prove "):
        assert defect.shown.split()[-1] == defect.patch
        return
    file, _, name = defect.shown.partition("::")
    assert name.partition("[")[0] in functions(file)


def test_a_defect_has_sources_that_say_so(defect: Defect) -> None:
    if not defect.sites:
        targets = {target.project: target for target in PATCHES[defect.patch].targets}
        names = [one.name for one in targets[defect.project].variants]
        assert names
        assert set(defect.only) <= set(names)
        return
    assert not defect.only
    rows = [row for row in ROWS if row.patch == defect.id]
    assert {row.target for row in rows} == {defect.project.name}
    assert any(row.verdict == "apply" for row in rows), "no source has it"


@cache
def verl_options() -> set[str]:
    """Return the options of the verl that is installed here."""
    pytest.importorskip("yaml")
    (verl,) = (one for one in dialects() if VERL.name in one.projects)
    found, _ = options(verl, Tree().read)
    assert found
    return set(found)


def test_conditions_name_settings_that_somebody_has(defect: Defect) -> None:
    """A key that no form of settings knows could never be told: it is a slip, or lacks a default."""
    for way in defect.when:
        assert way
        for one in way:
            assert isinstance(one, (Setting, Before, Beyond))
            if isinstance(one, Setting):
                assert (one.above is not None) + bool(one.among) + bool(one.other) == 1, one
                stated = [one.key in dialect.defaults for dialect in dialects()]
                stated += [names(option, one.key) for option in verl_options()]
                assert any(stated) or one.key in KNOWN_WITHOUT_DEFAULT, one.key


#: Settings whose defaults stand in the upstream's own files, or depend on others.
KNOWN_WITHOUT_DEFAULT = {
    "data.train_batch_size", "deallocate_pipeline_outputs", "log_prob_use_dynamic_bsz", "lr_warmup_steps",
    "micro_batch_size", "param_offload",
    "trainer.use_legacy_worker_impl", "trainer.use_v1",
}  # fmt: skip


#: What verl 0.7.1 composes for RL by default, as far as the cases below ask for it.
COMPOSED = """
actor_rollout_ref:
  actor: {use_dynamic_bsz: false, megatron: {context_parallel_size: 1}}
  model: {lora_rank: 0, lora: {rank: 0, merge: false}}
  ref: {log_prob_use_dynamic_bsz: false}
  rollout:
    agent: {default_agent_loop: single_turn_agent}
    checkpoint_engine: {backend: naive}
    free_cache_engine: true
    log_prob_use_dynamic_bsz: false
    multi_turn: {enable: false}
algorithm: {adv_estimator: gae}
critic: {model: {lora_rank: 0}}
trainer: {use_legacy_worker_impl: auto}
"""
_MODEL = "actor_rollout_ref.model"
_MERGED = f"actor_rollout_ref.actor.strategy=fsdp {_MODEL}.lora_rank=8 {_MODEL}.lora.merge=True"
_PPO = "--advantage-estimator ppo --hf-checkpoint a"
_BRIDGED = "--hf-checkpoint a --context-parallel-size 2 --megatron-to-hf-mode bridge"
_OWN_MODEL = "--micro-batch-size 1 --use-checkpoint-args"
_RECOMPUTED = "--micro-batch-size 1 --num-experts 8 --recompute-modules moe"
_NO_EXPERTS = "--micro-batch-size 1 --num-experts 0"
_CONSTANT = f"{_PPO} --lr-decay-style constant"
_PIPED = "--micro-batch-size 1 --num-layers 8 --pipeline-model-parallel-size 2 --context-parallel-size 2"
_KEPT = "--hf-checkpoint a --load b --use-kl-loss --ref-load c"
_ACTOR, _ENGINE = "actor_rollout_ref.actor", "trainer.use_legacy_worker_impl=disable"
_NAMED = "--config-name=ppo_trainer"
_DYNAMIC = f"model_engine=megatron {_ACTOR}.megatron.dynamic_context_parallel"
_MINDSPEED = f"{_ACTOR}.strategy=mindspeed"
_OWN_REWARDS = "--rollout-batch-size 8 --use-dynamic-global-batch-size --custom-reward-post-process-path a.b"
_SAVED, _SLIME_MOE = "--hf-checkpoint a --async-save", "--hf-checkpoint a --num-experts 8"
_SELECTIVE = "--recompute-granularity selective --recompute-modules moe"
_STEPS = "--hf-checkpoint a --ref-ckpt-step 3 --opd-type megatron"


@pytest.mark.parametrize(
    ("name", "said", "word"),
    [
        # verl 0.8.0, sft_trainer_engine.yaml:20: SFT packs by tokens unless it is told not to.
        ("verl.budget-exceeded", "data.train_files=a trainer.total_epochs=2", "untold"),
        ("verl.budget-exceeded", "optim.lr=1e-5 data.use_dynamic_bsz=False", "not-met"),
        ("verl.budget-exceeded", "engine.strategy=fsdp trainer.total_epochs=2", "met"),
        ("verl.budget-exceeded", "algorithm.adv_estimator=grpo data.train_files=a", "not-met"),
        # 0.8.0, workers/engine/utils.py:78: one function cuts batches for either.
        ("verl.budget-error-on-one-rank", "actor_rollout_ref.ref.log_prob_use_dynamic_bsz=True", "untold"),
        ("verl.budget-error-on-one-rank", "algorithm.adv_estimator=grpo", "not-met"),
        ("verl.weights-read-early", "actor_rollout_ref.rollout.nnodes=2", "not-met"),
        ("verl.lora-views-reused", "critic.model.lora_rank=8", "not-met"),
        # As slime's models have it: the flag switches off what the argument is called.
        ("megatron.fused-mla-rope-heads", "--multi-latent-attention --no-rope-fusion", "not-met"),
        ("megatron.fused-mla-rope-heads", "--multi-latent-attention --num-layers 2", "untold"),
        # 0.7.1, fsdp_workers.py: the legacy workers, which are the default, never read lora.merge.
        ("verl.lora-of-stacked-projections", _MERGED, "untold"),
        ("verl.lora-of-stacked-projections", f"{_MERGED} {_ENGINE}", "not-met"),
        # 0.7.1, main_ppo.py:182-193: auto are the legacy workers.
        ("verl.critic-scale-by-micro-batches", "algorithm.adv_estimator=gae", "not-met"),
        ("verl.critic-scale-by-micro-batches", f"algorithm.adv_estimator=gae {_ENGINE}", "untold"),
        # slime 0.3.1, loss.py: the KL of masked tokens is in the rewards that are summed.
        ("slime.gae-through-masked", _PPO, "not-met"),
        ("slime.gae-through-masked", f"{_PPO} --kl-coef 0.1", "untold"),
        # slime 0.3.1, actor.py:641-648: a teacher with a step of its own is loaded from it.
        ("slime.model-of-another-step", _STEPS, "met"),
        ("slime.model-of-another-step", f"{_STEPS} --opd-teacher-ckpt-step 5", "not-met"),
        # slime 0.3.1, ray/rollout.py: the function is called in place of all that is below.
        ("slime.group-baseline-lost", _OWN_REWARDS, "not-met"),
        # 0.8.0: engines that are made of FSDP's and of Megatron's.
        ("verl.fsdp-keeps-outputs", "actor_rollout_ref.actor.strategy=veomni", "untold"),
        ("verl.fsdp-keeps-outputs", "actor_rollout_ref.actor.strategy=megatron", "not-met"),
        ("megatron.async-save-unpinned", f"{_MINDSPEED} {_ACTOR}.checkpoint.async_save=True", "met"),
        ("megatron.label-smoothing-local", f"{_OWN_MODEL} --use-mp-args-from-checkpoint-args", "untold"),
        ("slime.prompts-reordered", "--hf-checkpoint a --rollout-max-context-len 8192", "untold"),
        # 0.8.0, transformer_impl.py:183: the model gets the data parallel size for it.
        ("megatron.mtp-mean-of-means", f"{_DYNAMIC}=True", "untold"),
        ("megatron.mtp-mean-of-means", f"{_DYNAMIC}=False", "not-met"),
        # Hydra's short name of --config-name.
        ("verl.critic-scale-by-micro-batches", "-cn mine algorithm.adv_estimator=gae", "untold"),
        # megatron-core main, arguments.py: the flag and the pattern set other arguments.
        ("megatron.recompute-holds-inputs", f"{_RECOMPUTED} --recompute-activations", "untold"),
        ("megatron.mtp-mean-of-means", f"{_PIPED} --hybrid-layer-pattern M*M/MM", "untold"),
        ("megatron.mtp-mean-of-means", _PIPED, "not-met"),
        # slime 0.3.1, arguments.py: a critic turns it on, and two flags leave it off beside --colocate.
        ("slime.group-timeout-lost", f"{_PPO} --distributed-timeout-minutes 120", "untold"),
        ("slime.first-weights-of-another-model", f"{_KEPT} --colocate --no-offload-train", "untold"),
        ("slime.first-weights-of-another-model", f"{_KEPT} --colocate", "not-met"),
        # The same file: without a trainer there is none to offload, whatever is asked for beside it.
        ("slime.first-weights-of-another-model", f"{_KEPT} --debug-rollout-only --colocate", "untold"),
        # slime 0.2.2, model_provider.py:86-97: what the model is like stands in the checkpoint.
        ("megatron.mtp-mean-of-means", _BRIDGED, "untold"),
        ("megatron.mtp-mean-of-means", "--hf-checkpoint a --context-parallel-size 2", "not-met"),
        ("megatron.gate-of-all-heads", f"{_BRIDGED} --tensor-model-parallel-size 8", "untold"),
        ("megatron.gate-of-all-heads", "--hf-checkpoint a --tensor-model-parallel-size 8", "not-met"),
        ("megatron.muon-without-gates", _BRIDGED, "untold"),
        ("megatron.indexer-loss-scale", _BRIDGED, "untold"),
        # verl 0.8.0, agent_loop.py: a column of the data set names the agent, before the default.
        ("verl.turns-unseparated", "algorithm.adv_estimator=grpo data.train_files=a", "untold"),
        # 0.7.1, vllm_async_server.py:640-643: asleep, it clears nothing of the encoder's.
        ("verl.images-seen-by-old-weights", "actor_rollout_ref.rollout.name=vllm", "untold"),
        ("verl.images-seen-by-old-weights", "actor_rollout_ref.rollout.name=sglang", "not-met"),
        ("megatron.attention-logit-kept", "--hf-checkpoint a", "not-met"),
        # slime 0.3.1, arguments.py: what these files have is set over the flags.
        ("slime.overlap-once", "--hf-checkpoint a", "not-met"),
        ("slime.overlap-once", "--hf-checkpoint a --custom-config-path b.yaml", "untold"),
        ("slime.overlap-once", "--hf-checkpoint a --megatron-config-path b.yaml", "untold"),
        # Megatron, yaml_arguments.py:448 and checkpointing.py: load_args_from_checkpoint.
        ("megatron.attention-logit-kept", "--micro-batch-size 1 --yaml-cfg b.yaml", "untold"),
        ("megatron.mtp-mean-of-means", "--micro-batch-size 1 --context-parallel-size 2", "not-met"),
        ("megatron.mtp-mean-of-means", f"{_OWN_MODEL} --context-parallel-size 2", "untold"),
        ("megatron.attention-logit-kept", _OWN_MODEL, "not-met"),
        ("verl.lora-views-reused", f"{_NAMED} algorithm.adv_estimator=gae", "not-met"),
        ("verl.lora-views-reused", f"--config-path=config {_NAMED} data.train_files=a", "not-met"),
        ("verl.lora-views-reused", f"--config-path=/a {_NAMED} data.train_files=a", "untold"),
        # slime 0.3.1, dp_schedule.py:75,196: nothing else calls it; 0.2.4, data.py:372 does.
        ("slime.partitioner-slow", "--hf-checkpoint a", "not-met"),
        ("slime.partitioner-slow", "--hf-checkpoint a --balance-data", "met"),
        ("slime.partitioner-slow", "--hf-checkpoint a --use-dynamic-batch-size", "untold"),
        ("miles.partitioner-slow", "--hf-checkpoint a", "not-met"),
        ("miles.partitioner-slow", "--hf-checkpoint a --balance-by-flops", "met"),
        # slime 0.2.2, fsdp_utils/actor.py:552: a loss of its own.
        ("slime.loss-copies-logits", "--hf-checkpoint a --train-backend fsdp", "not-met"),
        # megatron-core 0.16.1, moe_layer.py:153,444: the layer recomputes itself.
        ("megatron.recompute-holds-inputs", f"{_SLIME_MOE} {_SELECTIVE}", "untold"),
        ("megatron.recompute-holds-inputs", f"{_SLIME_MOE} --moe-layer-recompute --lr 1e-6", "met"),
        ("megatron.recompute-holds-inputs", _SLIME_MOE, "not-met"),
        # megatron-core 0.16.1, async_utils.py:178-240: each fork is handed pinned memory.
        # 0.16.1, training/arguments.py:1138: without such a worker it is switched off.
        ("megatron.async-save-unpinned", _SAVED, "untold"),
        ("megatron.async-save-unpinned", f"{_SAVED} --use-persistent-ckpt-worker", "not-met"),
        # slime 0.3.1, arguments.py: a critic turns it on after that flag.
        ("slime.group-timeout-lost", f"{_PPO} --no-offload-train --distributed-timeout-minutes 9", "untold"),
        # slime 0.2.4, actor.py:90, and 0.2.1, arguments.py:1567-1579.
        ("slime.schedule-advanced-twice", f"{_CONSTANT} --critic-lr-warmup-iters 10", "untold"),
        ("slime.schedule-advanced-twice", f"{_CONSTANT} --critic-lr-warmup-iters 0", "not-met"),
        ("slime.prompts-reordered", "--hf-checkpoint a", "untold"),
        # megatron-core 0.16.1, arguments.py:552-554,1015, and gpt_layer_specs.py:709: one stage and none.
        ("megatron.recompute-holds-inputs", f"{_RECOMPUTED} --recompute-granularity full", "met"),
        ("megatron.recompute-holds-inputs", f"{_NO_EXPERTS} --recompute-granularity full", "not-met"),
        ("megatron.mtp-mean-of-means", f"{_PIPED} --mtp-num-layers 0", "not-met"),
        ("megatron.sent-while-freed", f"{_PIPED} --num-virtual-stages-per-pipeline-rank 1", "not-met"),
        ("megatron.sent-while-freed", f"{_PIPED} --num-virtual-stages-per-pipeline-rank 2", "met"),
    ],
)
def test_a_defect_is_met_as_upstreams_parsers_say(tmp_path: Path, name: str, said: str, word: str) -> None:
    (tmp_path / "run.sh").write_text(f"python3 -m trainer {said}\n")
    given = settings_file.read(str(tmp_path / "run.sh"), ("trainer",))
    composed = {"verl/trainer/config/_generated_ppo_trainer.yaml": COMPOSED}
    assert recognise("run.sh", given, dialects(), composed.get).answer(DEFECTS[name]).word == word


@pytest.mark.parametrize(
    ("name", "said", "word"),
    [
        ("megatron.recompute-holds-inputs", "num_moe_experts: 8", "untold"),
        ("megatron.recompute-holds-inputs", "num_moe_experts: null", "not-met"),
        ("megatron.sent-while-freed", "overlap_p2p_comm: false", "not-met"),
        ("megatron.sent-while-freed", "overlap_p2p_comm: true", "met"),
        ("slime.gradients-divided-twice", "check_for_nan_in_loss_and_grad: false", "met"),
    ],
)
def test_a_defect_is_met_as_megatrons_yaml_says(tmp_path: Path, name: str, said: str, word: str) -> None:
    (tmp_path / "run.yaml").write_text(
        "micro_batch_size: 1\nloss_scale: 2\nnum_layers_per_virtual_pipeline_stage: 1\n"
        f"language_model: {{recompute_granularity: full, {said}}}\n"
    )
    given = settings_file.read(str(tmp_path / "run.yaml"), ())
    assert recognise("run.yaml", given, dialects(), lambda _: None).answer(DEFECTS[name]).word == word
