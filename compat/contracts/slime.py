"""Contracts on the training side of slime, or of its fork miles: Megatron on one rank, without a GPU."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

from overlay.compat.slime_on_cpu import import_slime
from overlay.patch import Contract
from overlay.testing import with_patches

_Result = TypeVar("_Result")
#: What takes long to import, and nothing patches.
BEFORE = ("megatron.core", "ray", "tensordict")


def on_megatron(*modules: str, fork: str = "") -> Callable[[Callable[..., _Result]], Callable[..., _Result]]:
    """Run a function of a seed, and of modules of slime, on Megatron's parallel state of one rank.

    `modules`: short names in slime's package of training with Megatron, such as "loss". `fork`: the fork that
    is meant instead of slime, "miles".
    """

    def around(look: Callable[..., _Result]) -> Callable[..., _Result]:
        @functools.wraps(look)
        def looked(seed: str, **named: Any) -> _Result:
            if fork:
                os.environ["SLIME_FORK"] = fork
            from overlay.compat.megatron_on_cpu import megatron

            with megatron():
                found: list[Any] = import_slime(*modules)
                return look(seed, *found, **named)

        return looked

    return around


def contract(
    wrong: Callable[[str], str], *patches: str, alike: Callable[[str], str] | None = None
) -> Contract:
    """Return the contract of a patch, whose id comes after those that it requires; as in `Contract`."""
    return Contract(check=with_patches(wrong, *patches), alike=alike, before=BEFORE)
