"""Cases of a whole training step of slime's: what a job sets, which samples it has, what slime does alone.

A new case is one more `Case` in `CASES`. With overlay, each has to be right, and where slime alone is right,
its micro-batches have to be the same. What a case cannot say in its fields, it says in functions of its own:
`draw` for other samples, `deal` for another way to the ranks, `expected` for another reference.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slime_actor_on_cpu import rollouts
from slime_actor_on_cpu.arguments import Sizes
from slime_actor_on_cpu.reference import Reference, reference

#: Lengths of prompt and response together, and of the response.
Lengths = tuple[tuple[int, int], ...]

_MIXED: Lengths = ((20, 8), (30, 20), (12, 4), (40, 17), (9, 8), (25, 11), (31, 9), (16, 10))
#: The response of the first is on both ranks of context parallelism, that of the second on the first alone.
_ONE_WITHOUT: Lengths = ((32, 24), (40, 3))


def _halves(*lengths: int) -> Lengths:
    """Return samples whose responses are half of them."""
    return tuple((length, length // 2) for length in lengths)


#: First fit finds room for them in as many micro-batches as they are then balanced over, which exceeds it.
_UNEVEN = _halves(56, 16, 37, 10, 32, 39, 28, 54, 21, 34, 17, 19, 27, 11, 20, 12)
#: In as many micro-batches as their tokens would fill, each of them as much work.
_EVEN = _halves(31, 44, 43, 32, 42, 43, 44, 47, 43, 53, 24, 51)


_SMALL = Sizes()
#: What cases select. One about a patch that only its id selects adds that.
SELECTED = "slime.*"


def _drawn(case: Case, seed: int) -> dict[str, Any]:
    """Draw the samples of a case: tokens, masks and rewards."""
    draw = random.Random(f"{case.name} {seed}")
    rewards = [draw.gauss(*case.rewards) for _ in case.lengths]
    sizes = case.sizes
    return rollouts.samples(case.lengths, rewards, vocabulary=sizes.vocabulary, seed=seed, masked=case.masked)


def _without_log_probs(case: Case, seed: int) -> dict[str, Any]:
    """Draw the samples of a case, of a rollout that brings no log-probabilities."""
    data = _drawn(case, seed)
    del data["rollout_log_probs"]
    return data


@dataclass(frozen=True)
class Case:
    """A step of training."""

    name: str
    #: What slime alone does, by release: words that its verdict begins with, any of them. Not run on others.
    alone: dict[str, tuple[str, ...]]
    lengths: Lengths
    #: The patches that make a difference to it, none where slime alone is right on all releases.
    shows: tuple[str, ...] = ()
    #: What the job sets, in the words of its command line.
    settings: tuple[str, ...] = ()
    #: Of a single rank, the tokens that a micro-batch may hold.
    budget: int = 64
    ranks: int = 2
    role: str = "actor"
    sizes: Sizes = _SMALL
    #: Mean and deviation of the rewards that are drawn.
    rewards: tuple[float, float] = (0.0, 1.0)
    #: Which part of the tokens of a response does not count, but for the first and the last.
    masked: float = 0.2
    #: Seconds that a rank waits for another.
    timeout: float = 120.0
    #: What a step may hold at once, in the logits of a micro-batch. If it is set, bytes are counted, in
    #: slime's own bfloat16 and with its own cross entropy, and nothing else is compared.
    memory: float | None = None
    #: Which patches are selected with overlay: cases of one selection share a process that imports slime.
    select: str = SELECTED
    #: Whether Megatron rounds the gradient of its fused cross entropy to bfloat16, as it does in a release.
    rounded: bool = False
    #: How the actor sends its first weights to its engines: "nccl", "disk" or "tensor". If it is set, these
    #: are compared, and no step is taken.
    publishes: str = ""
    #: By which of slime's scripts it trains for two rollouts, so that the weights of each are compared.
    script: str = ""
    #: Returns the samples, given the case and the seed.
    draw: Callable[[Case, int], dict[str, Any]] = _drawn
    #: Returns what each data parallel rank is handed, given arguments, `train_parallel_config` and samples.
    deal: Callable[[Any, dict[str, Any], dict[str, Any]], list[Any]] = rollouts.references
    #: Returns what the step has to find, given arguments, sizes, role and samples.
    expected: Callable[[Any, Sizes, str, dict[str, Any]], Reference] = reference

    def command(self) -> list[str]:
        """Return what the case adds to the command line."""
        count = len(self.lengths)
        batch = ["--rollout-batch-size", count, "--n-samples-per-prompt", 1, "--global-batch-size", count]
        budget = ["--use-dynamic-batch-size", "--max-tokens-per-gpu", self.budget]
        return [*map(str, batch + budget), *self.settings]


def _both(*words: str) -> dict[str, tuple[str, ...]]:
    return {"v0.2.4": words, "v0.3.1": words}


_NORMALISED = ("--normalize-advantages",)
_CP2 = ("--context-parallel-size", "2")
_VIRTUAL = ("--pipeline-model-parallel-size", "2", "--num-layers-per-virtual-pipeline-stage", "1")
_FOUR_LAYERS = Sizes(layers=4)

_EXPERTS = (
    *("--num-experts", "4", "--moe-ffn-hidden-size", "40", "--moe-token-dispatcher-type", "alltoall"),
    *("--moe-router-topk", "2", "--moe-router-load-balancing-type", "none"),
)

_PPO = ("--advantage-estimator", "ppo", "--num-critic-only-steps", "1", "--lambd", "0.9")

# fmt: off
CASES: tuple[Case, ...] = (
    Case(
        "advantages normalised, CP 2", _both("wrong"), _MIXED,
        shows=("slime.whiten-over-cp",), settings=(*_NORMALISED, *_CP2),
    ),
    Case(
        "a rank has no token, DP 2, CP 2", _both("hangs"), _ONE_WITHOUT,
        shows=("slime.whiten-over-cp",), settings=(*_NORMALISED, *_CP2), ranks=4, timeout=20,
    ),
    Case(
        "rewards near 3,000, DP 2", _both("NaN", "wrong"), _MIXED,
        shows=("slime.whiten-over-cp",), settings=_NORMALISED, rewards=(3000.0, 0.05),
    ),
    Case(
        "budget of 120, PP 2, VPP 2", {"v0.2.4": ("over budget",), "v0.3.1": ("right",)},
        _halves(70, 60, 50, 45, 40, 38, 30),
        shows=("slime.vpp-ceiling",), settings=_VIRTUAL, budget=120, sizes=_FOUR_LAYERS,
    ),
    Case(
        "one micro-batch would do, PP 2, VPP 2", {"v0.2.4": ("crashes: ValueError",), "v0.3.1": ("right",)},
        _halves(30, 25, 28, 20),
        shows=("slime.vpp-ceiling",), settings=_VIRTUAL, budget=120, sizes=_FOUR_LAYERS,
    ),
    Case(
        "balanced by tokens, DP 2", {"v0.2.4": ("over budget",), "v0.3.1": ("right",)}, _UNEVEN,
        shows=("slime.capped-partitions",),
    ),
    Case(
        "--balance-by-flops, DP 2", {"v0.3.1": ("over budget",)}, _EVEN,
        shows=("slime.capped-partitions",), settings=("--balance-by-flops",),
    ),
    Case(
        "Megatron's own cross entropy, DP 2", {"v0.2.4": ("wrong",), "v0.3.1": ("right",)}, _MIXED,
        shows=("slime.loss-memory",), rounded=True,
    ),
    Case(
        "KL and entropy, TP 2, sequence parallel",
        _both("right"),
        _MIXED,
        settings=(
            *("--tensor-model-parallel-size", "2", "--sequence-parallel", "--entropy-coef", "0.01"),
            *("--use-kl-loss", "--kl-loss-coef", "0.1", "--kl-loss-type", "k2"),
        ),
    ),
    Case(
        "a layer gathers all tokens, CP 2", _both("wrong"), _MIXED,
        shows=("slime.hf-attention-gradient",),
        settings=(*_CP2, "--spec", "slime_actor_on_cpu.gathered", "layer_spec"), sizes=Sizes(mixing=1),
    ),
    Case(
        "old log-probs of the rollout, CP 2", _both("right"), _MIXED,
        settings=(*_CP2, "--use-rollout-logprobs", "--rollout-temperature", "0.8"),
    ),
    Case(
        "no log-probs of the rollout, CP 2", {"v0.2.4": ("right",), "v0.3.1": ("crashes: TypeError",)},
        _MIXED,
        shows=("slime.one-step-log-probs",), settings=_CP2, draw=_without_log_probs,
    ),
    Case(
        "--eps-clip-c 1.5, DP 2",
        _both("wrong"),
        _MIXED,
        shows=("slime.eps-clip-c",),
        settings=("--use-rollout-logprobs", "--eps-clip-c", "1.5"),
        rewards=(-1.0, 1.0),  # only a negative advantage is clipped from there
    ),
    Case(
        "critic at temperature 0.8, DP 2", {"v0.2.4": ("wrong",), "v0.3.1": ("right",)}, _MIXED,
        shows=("slime.value-temperature",), settings=(*_PPO, "--rollout-temperature", "0.8"), role="critic",
        masked=0.0,
    ),
    Case(
        "critic with masked tokens, DP 2", _both("wrong"), _MIXED,
        shows=("slime.masked-gae",), select="slime.*, slime.masked-gae", settings=_PPO, role="critic",
    ),
    Case(
        "critic of PPO, CP 2", _both("right"),
        tuple((4 * length, 2 * length) for length in (3, 5, 8, 4, 6, 7, 9, 5)),
        settings=(*_CP2, *_PPO), role="critic", masked=0.0,
    ),
    # Of the first sample, the first rank has no token of the response, and so none for its reward.
    Case(
        "critic with a short sample, CP 2", _both("crashes: IndexError"),
        ((9, 4), (40, 17), (24, 15), (31, 9)),
        shows=("slime.masked-gae", "slime.whiten-over-cp"), select="slime.*, slime.masked-gae",
        settings=(*_CP2, *_PPO, *_NORMALISED), role="critic",
    ),
    *(
        Case(
            f"first weights with a reference, {way}, DP 2", dict.fromkeys(releases, (verdict,)), _MIXED,
            shows=("slime.other-models",) if verdict == "wrong" else (),
            settings=("--use-kl-loss", "--kl-loss-coef", "0.1", *settings), publishes=way,
        )
        for way, verdict, releases, settings in (
            ("nccl", "wrong", ("v0.2.4", "v0.3.1"), ()),
            ("disk", "wrong", ("v0.3.1",), ("--update-weight-transport", "disk")),
            ("tensor", "right", ("v0.2.4", "v0.3.1"), ("--colocate",)),
        )
    ),
    # A step of size 0 leaves the actor as it was, so all rollouts are of the weights that it began with.
    *(
        Case(
            f"rollouts of {script} with a reference, DP 2", _both(f"wrong: {rollouts} of 2 rollouts"), _MIXED,
            shows=("slime.other-models",),
            settings=("--use-kl-loss", "--kl-loss-coef", "0.1", "--num-rollout", "2", "--lr", "0"),
            publishes="nccl", script=script,
        )
        for script, rollouts in (("train.py", 1), ("train_async.py", 2))
    ),
    Case("experts, DP 2", _both("right"), _MIXED, settings=_EXPERTS, sizes=Sizes(experts=4)),
    Case(
        "memory of the loss, DP 2", _both("needs"),
        tuple((length, length - 8) for length in (120, 110, 100, 90, 80, 60, 50, 30)),
        shows=("slime.loss-memory",), settings=("--entropy-coef", "0.01"), budget=256,
        sizes=Sizes(layers=1, hidden=8, heads=2, groups=1, head=4, feed_forward=8, vocabulary=8192),
        memory=2.25,
    ),
)
# fmt: on
#: Patches of slime that no step can show, and why.
NOT_SHOWN = {
    "slime.fast-partitioner": "the partitions are the same, and only found sooner",
    "slime.allgather-cp-models": "it refuses a model, before there is a step",
    "slime.async-groups": "it is about generating rollouts",
    "slime.metrics": "it hands figures to a logger, and changes no step",
    "slime.bridge-flags": "it is about models of Megatron-Bridge, which wants Transformer Engine",
    "slime.allgather-cp-replay": "it is about routes that a rollout brings, of experts on several ranks",
    "slime.async-sample-filter": "it is about generating rollouts",
    "slime.eval-settings": "it is about evaluation",
    "slime.grads-once": "it is about float16, and the numbers here are float32",
    "slime.memory-probe": "it is about time",
    "slime.overlap-again": "it is about a second rollout",
    "slime.packed-delta-net": "slime 0.2.3 has the fix",
    "slime.prompt-order": "it is about reading data",
    "slime.group-baseline": "rewards are normalised by the rollout manager, before the step",
    "slime.group-timeouts": "it is about groups that are made again after offloading",
    "slime.partial-rollout-budget": "it is about generating rollouts",
    "slime.resumed-schedule": "it is about resuming a job",
    "slime.tool-turn-mask": "it is about tokenizing conversations",
}
