"""slime's real `train.py` under a real local Ray, as launch scripts start it: every actor is patched.

Two actors share each sample (context parallelism) and normalise advantages, which plain slime gets wrong
there. What a CPU lacks is stood in for by `slime_actor_on_cpu`. Losses and gradients are held
against one process in float64.
"""

from __future__ import annotations

import ast
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checks import SEED
from local_cluster import Cluster, running
from slime_actor_on_cpu import arguments, ray_job
from worksite import Venv

from overlay.runtime.engine import Engine
from overlay.source.registry import load_patches
from sources import slime_images
from sources.git_sources import FetchError

pytestmark = [pytest.mark.distributed, pytest.mark.real]

#: Where `slime_actor_on_cpu` lies.
SHARED = Path(__file__).parents[1] / "shared"
#: What comes along with each selection, and has something to do in slime's actors.
COMPANIONS = {"megatron.agreement", "megatron.known-defects"}
SIZES = arguments.Sizes()
STEPS, GROUPS, EACH = 2, 2, 4
#: Of learning.
RATE = 0.1
#: Seconds until `train.py` must have run.
PATIENCE = 400
#: Of float32 on two ranks, relative to float64.
TOLERANCE = 2e-5
#: With these, a step is a function of the batch and the weights alone, and weights move enough to be seen.
SETTINGS = (
    *("--context-parallel-size", 2, "--normalize-advantages", "--advantage-estimator", "grpo"),
    *("--disable-rewards-normalization", "--use-dynamic-batch-size", "--max-tokens-per-gpu", 40),
    # Adam without a memory, and smooth where a gradient is next to nothing: w - lr g / (|g| + 1).
    *("--adam-beta1", 0, "--adam-beta2", 0, "--adam-eps", 1, "--clip-grad", 0),
    *("--lr", RATE, "--lr-decay-style", "constant"),
    *("--num-rollout", STEPS, "--rollout-batch-size", GROUPS, "--n-samples-per-prompt", EACH),
    *("--global-batch-size", GROUPS * EACH),
)
#: Patches that act where the samples are dealt out.
WITH_ROLLOUTS = {"v0.3.1": {"slime.capped-partitions"}}
#: Patches of modules that no actor of this job imports: it generates and tokenizes nothing, has a plain
#: transformer, and is handed arguments that are checked.
NOT_IMPORTED = {
    "slime.allgather-cp-models", "slime.async-groups", "slime.async-sample-filter", "slime.eval-settings",
    "slime.group-baseline", "slime.hf-attention-gradient", "slime.partial-rollout-budget",
    "slime.tool-turn-mask",
}  # fmt: skip


def batches() -> list[dict[str, Any]]:
    """Draw the samples of each step, as `reference` reads them."""
    draw = random.Random(SEED)
    found = []
    for _ in range(STEPS):
        lengths = [
            (total := draw.randrange(12, 60), draw.randrange(4, total - 4)) for _ in range(GROUPS * EACH)
        ]
        masks = [[1] + [int(draw.random() < 0.8) for _ in range(count - 2)] + [1] for _, count in lengths]
        found.append(
            {
                "tokens": [[draw.randrange(SIZES.vocabulary) for _ in range(total)] for total, _ in lengths],
                "response_lengths": [count for _, count in lengths],
                "rewards": [draw.gauss(0, 1) for _ in lengths],
                "loss_masks": masks,
            }
        )
    return found


def write_rollouts(folder: Path, steps: list[dict[str, Any]]) -> Path:
    """Write samples as slime does for `--load-debug-rollout-data`, and return what it takes."""
    import torch

    for step, data in enumerate(steps):
        samples = [
            {
                "group_index": index // EACH, "index": step * GROUPS * EACH + index,
                "rollout_id": step * GROUPS * EACH + index, "prompt": "", "response": "",
                "status": "completed", "tokens": tokens, "response_length": count, "reward": reward,
                "loss_mask": mask,
            }
            for index, (tokens, count, reward, mask) in enumerate(zip(*data.values(), strict=True))
        ]  # fmt: skip
        torch.save({"rollout_id": step, "samples": samples}, folder / f"rollout-{step}.pt")
    return folder / "rollout-{rollout_id}.pt"


def expected(steps: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """Return the loss and the norm of the gradient of each step, of one process in float64."""
    from slime_actor_on_cpu import reference, weights

    args = SimpleNamespace(
        seed=1234, kl_coef=0, use_kl_loss=False, rollout_temperature=1, advantage_estimator="grpo",
        normalize_advantages=True, entropy_coef=0, eps_clip=0.2, eps_clip_high=0.2, eps_clip_c=None,
        use_rollout_logprobs=False, use_tis=False, use_opd=False, use_opsm=False,
        calculate_per_token_loss=False,
    )  # fmt: skip
    now = {
        name: weights.drawn(args.seed, "actor", name, shape).double()
        for name, shape in reference.shapes(SIZES, "actor").items()
    }
    monkeypatch.setattr(reference, "drawn", lambda _seed, _role, name, _shape: now[name].clone())
    found = []
    for data in steps:
        step = reference.reference(args, SIZES, "actor", data)
        norm = sum(float(each.square().sum()) for each in step.gradients.values()) ** 0.5
        found.append({"train/loss": step.loss, "train/grad_norm": norm})
        now = {name: w - RATE * (g := step.gradients[name]) / (g.abs() + 1) for name, w in now.items()}
    return found


def image(release: str) -> Path:
    """Return the folder of slime and its Megatron, or skip the test."""
    if not all(os.environ.get(name) for name in ("SLIME_REPO", "MEGATRON_REPO")):
        pytest.skip("needs SLIME_REPO and MEGATRON_REPO")
    try:
        return slime_images.fetch(release)
    except FetchError as error:
        pytest.skip(str(error))


def applying(folder: Path) -> set[str]:
    """Return the patches that are decided to go into an image, and that a selection of all selects."""
    decided = Engine().plan_each(str(folder)).verdicts
    return {one.patch for one in decided if one.verdict == "apply" and not load_patches()[one.patch].opt_in}


def said_by(role: str, printed: str) -> dict[str, list[str]]:
    """Return the lines of overlay of each process of an actor class, by its pid."""
    pids = re.findall(rf"\({role} pid=(\d+)", printed)
    lines = re.findall(r"pid=(\d+)(?:, ip=[^)]*)?\)\S* overlay: (.*)", printed)
    return {pid: [line for of, line in lines if of == pid] for pid in sorted(set(pids))}


def steps_of(printed: str) -> list[dict[str, float]]:
    """Return what slime logs of each step."""
    return [ast.literal_eval(found) for found in re.findall(r" - step \d+: (\{.*?\})", printed)]


@pytest.fixture(scope="module")
def cluster(worksite: Venv, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Start a cluster with two GPUs, which nobody has armed."""
    with running(worksite, tmp_path_factory.mktemp("cluster"), gpus=2) as found:
        yield found


@pytest.mark.nightly("one job, which takes a minute or two, stands for both", release=("v0.2.4",))
@pytest.mark.parametrize(
    ("release", "above", "more"),
    [("v0.3.1", "", {"OVERLAY": "1"}), ("v0.2.4", "import overlay\n\noverlay.enable()\n\n", {})],
    ids=["by the job's variables", "by enable() in train.py"],
)
def test_every_actor_of_a_submitted_job_is_patched(
    release: str,
    above: str,
    more: dict[str, str],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = image(release)
    steps = batches()
    printed = trained(release, above, more, steps, request.getfixturevalue("cluster"), tmp_path)
    judge(release, printed, applying(folder), expected(steps, monkeypatch))


def trained(
    release: str,
    above: str,
    more: dict[str, str],
    steps: list[dict[str, Any]],
    cluster: Cluster,
    folder: Path,
) -> str:
    """Return what a job prints that trains on samples.

    Args:
        release: Of slime.
        above: What `train.py` begins with, before slime's own.
        more: What launch scripts add to the variables of the job.
        steps: The samples of each step.
        cluster: Where it runs.
        folder: For what it reads.

    """
    arguments.write_model(folder / "model", SIZES)
    rollouts = ("--load-debug-rollout-data", write_rollouts(folder, steps))
    line = arguments.command_line(folder / "model", SIZES, 2, *SETTINGS, *rollouts)
    (folder / "train.py").write_text(above + slime_images.script(release).decode())
    variables = {
        "PYTHONPATH": os.pathsep.join([str(image(release)), str(SHARED)]),
        "OVERLAY_LOG": "debug",
        "RAY_DEDUP_LOGS": "0",
        "OMP_NUM_THREADS": "1",
    }
    env = {"env_vars": {**variables, **more}, **ray_job.WORKERS}
    done = cluster.submit(["-m", ray_job.__name__, str(folder / "train.py"), *line], env, PATIENCE)
    printed = done.stdout + done.stderr
    assert done.returncode == 0, f"seed {SEED}:\n{printed[-6000:]}"
    return printed


def judge(release: str, printed: str, wanted: set[str], want: list[dict[str, float]]) -> None:
    """Hold what a job printed against what it must have done."""
    assert {*COMPANIONS, "slime.loss-memory", "slime.whiten-over-cp"} < wanted
    # The first rank says by the arguments that slime has parsed what it meets, and no other process does.
    (met,) = re.findall(r"MegatronTrainRayActor pid=\d+.* (\d known defects affect this job.*)", printed)
    fixed = r".*, (all patched here|\d patched here, 1 not: slime\.memory-probed \(slow\): .*)"
    assert re.fullmatch(fixed, met)
    actors, elsewhere = said_by("MegatronTrainRayActor", printed), WITH_ROLLOUTS.get(release, set())
    assert len(actors) == 2, printed[-6000:]
    for lines in actors.values():
        assert wanted - elsewhere - NOT_IMPORTED <= named(lines), lines
    # One says it for both, and says what both have; the other says that it has met it.
    said = [line for lines in actors.values() for line in lines if " agree" in line]
    leader, follower = sorted(said)
    # verl, for which the names are, is installed beside slime here, and slime's Megatron is not verl's.
    refused = r"(0 refused|1 refused \(megatron\.dynamic-cp-names\))"
    assert re.fullmatch(rf"2 ranks agree: \d+ applied, {refused}, digest [0-9a-f]{{12}}", leader), said
    assert follower.partition(" [")[0] == "ranks 0-1 agree", said
    # The driver says it, once. (At this level of the log its workers do as well, behind their pids.)
    assert len(re.findall("^overlay: configuration: ", printed, re.MULTILINE)) == 1, printed[-6000:]
    (lines,) = said_by("RolloutManager", printed).values()
    assert named(lines) >= elsewhere, lines
    steps = steps_of(printed)
    assert len(steps) == STEPS, printed[-6000:]
    for found, right in zip(steps, want, strict=True):
        for key, value in right.items():
            # What adds up to a loss is of the size of one, and may cancel out.
            off = TOLERANCE if key == "train/loss" else 0
            assert found[key] == pytest.approx(value, rel=TOLERANCE, abs=off), (SEED, key, steps, want)


def named(lines: list[str]) -> set[str]:
    """Return the patches that lines say are applied."""
    return {line.split()[1].partition("@")[0] for line in lines if line.startswith("applied ")}
