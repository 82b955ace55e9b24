"""Cases of a whole training step of slime's: what a job sets, which samples it has, what slime does alone.

A new case is one more `Case` in `CASES`. With overlay, each has to be right, and where slime alone is right,
its micro-batches have to be the same.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from overlay.compat.slime_actor_on_cpu import rollouts
from overlay.compat.slime_actor_on_cpu.arguments import Sizes

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


@dataclass(frozen=True)
class Case:
    """A step of training."""

    name: str
    #: What slime alone does, by release: words that its verdict begins with, any of them. Not run on others.
    alone: dict[str, tuple[str, ...]]
    lengths: Lengths
    #: What the job sets, in the words of its command line.
    settings: tuple[str, ...] = ()
    #: Of a single rank, the tokens that a micro-batch may hold.
    budget: int = 64
    ranks: int = 2
    role: str = "actor"
    sizes: Sizes = _SMALL
    #: Mean and deviation of the rewards that are drawn.
    rewards: tuple[float, float] = (0.0, 1.0)
    #: Seconds that a rank waits for another.
    timeout: float = 60.0
    #: What a step may hold at once, in the logits of a micro-batch. If it is set, bytes are counted, in slime's
    #: own bfloat16 and with its own cross entropy, and nothing else is compared.
    memory: float | None = None

    def command(self) -> list[str]:
        """Return what the case adds to the command line."""
        count = len(self.lengths)
        batch = ["--rollout-batch-size", count, "--n-samples-per-prompt", 1, "--global-batch-size", count]
        budget = ["--use-dynamic-batch-size", "--max-tokens-per-gpu", self.budget]
        return [*map(str, batch + budget), *self.settings]

    def data(self, seed: int) -> dict[str, Any]:
        """Draw the samples."""
        draw = random.Random(f"{self.name} {seed}")
        rewards = [draw.gauss(*self.rewards) for _ in self.lengths]
        return rollouts.samples(self.lengths, rewards, vocabulary=self.sizes.vocabulary, seed=seed)


def _both(*words: str) -> dict[str, tuple[str, ...]]:
    return {"v0.2.4": words, "v0.3.1": words}


_NORMALISED = ("--normalize-advantages",)
_CP2 = ("--context-parallel-size", "2")
_VIRTUAL = ("--pipeline-model-parallel-size", "2", "--num-layers-per-virtual-pipeline-stage", "1")
_FOUR_LAYERS = Sizes(layers=4)

CASES: tuple[Case, ...] = (
    Case("advantages normalised, CP 2", _both("wrong"), _MIXED, (*_NORMALISED, *_CP2)),
    Case(
        "a rank has no token, DP 2, CP 2",
        _both("hangs"),
        _ONE_WITHOUT,
        (*_NORMALISED, *_CP2),
        ranks=4,
        timeout=15,
    ),
    Case("rewards near 3,000, DP 2", _both("wrong", "NaN"), _MIXED, _NORMALISED, rewards=(3000.0, 0.05)),
    Case(
        "budget of 120, PP 2, VPP 2",
        {"v0.2.4": ("over budget",), "v0.3.1": ("right",)},
        _halves(70, 60, 50, 45, 40, 38, 30),
        _VIRTUAL,
        budget=120,
        sizes=_FOUR_LAYERS,
    ),
    Case(
        "one micro-batch would do, PP 2, VPP 2",
        {"v0.2.4": ("crashes",), "v0.3.1": ("right",)},
        ((30, 12), (25, 20), (28, 9), (20, 10)),
        _VIRTUAL,
        budget=120,
        sizes=_FOUR_LAYERS,
    ),
    Case(
        "balanced by tokens, DP 2",
        {"v0.2.4": ("over budget",), "v0.3.1": ("right",)},
        _UNEVEN,
    ),
    Case(
        "--balance-by-flops, DP 2",
        {"v0.3.1": ("over budget",)},
        _EVEN,
        ("--balance-by-flops",),
    ),
    Case(
        "entropy bonus, TP 2, sequence parallel",
        _both("right"),
        _MIXED,
        ("--tensor-model-parallel-size", "2", "--sequence-parallel", "--entropy-coef", "0.01"),
    ),
    Case(
        "critic of PPO, CP 2",
        _both("right"),
        tuple((4 * length, 2 * length) for length in (3, 5, 8, 4, 6, 7, 9, 5)),
        (*_CP2, "--advantage-estimator", "ppo", "--num-critic-only-steps", "1", "--lambd", "0.9"),
        role="critic",
    ),
    Case(
        "memory of the loss, DP 2",
        _both("needs"),
        tuple((length, length - 8) for length in (120, 110, 100, 90, 80, 60, 50, 30)),
        ("--entropy-coef", "0.01"),
        budget=256,
        sizes=Sizes(layers=1, hidden=8, heads=2, groups=1, head=4, feed_forward=8, vocabulary=8192),
        memory=2.25,
    ),
)
