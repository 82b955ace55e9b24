"""`megatron.cp-comm-type-by-layer`: each layer gets the communication type that the list has for it.

The constructor of a layer is wrapped: while it runs, the list of the configuration counts from one, as
layers do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, one_target, replaced, variant

_INIT = "megatron.core.transformer.transformer_layer:TransformerLayer.__init__"
EFFECT = effect(__name__, "layer", did="corrected the communication of")


class _FromOne(list):  # type: ignore[type-arg]
    """A list whose first item is number one."""

    def __getitem__(self, number: Any) -> Any:
        if not isinstance(number, int):
            return super().__getitem__(number)
        if number < 1:
            raise IndexError(number)
        found = super().__getitem__(number - 1)

        EFFECT.calls += 1
        # For the last one there is nothing at its own number.
        EFFECT.changed += number >= len(self) or super().__getitem__(number) != found
        return found

    def __deepcopy__(self, _memo: object) -> list[Any]:
        # A configuration that is copied meanwhile, as that of shared experts, outlives the constructor.
        return list(self)


def make_init(original: Callable[..., Any], _module: ModuleType) -> Callable[..., Any]:
    """Build `TransformerLayer.__init__`, for which the list counts from one as long as it runs."""

    def init(self: Any, config: Any, *args: Any, **options: Any) -> None:
        types = config.cp_comm_type
        if type(types) is not list:
            original(self, config, *args, **options)
            return
        config.cp_comm_type = _FromOne(types)
        try:
            original(self, config, *args, **options)
        finally:
            config.cp_comm_type = types

    return functools.wraps(original)(init)


PATCH = Patch(
    id="megatron.cp-comm-type-by-layer",
    summary="Each layer gets the context parallel communication type that the list has for it",
    why=(
        "cp_comm_type may be a list with a type for each layer. Until 0.16.1 Megatron looks a layer up by "
        "its number, which counts from one, in a list that counts from zero: every layer has the type of "
        "the next one, and the last has none, an IndexError on the rank that builds it. With the patch "
        "each layer has its own, as from 0.17 on."
    ),
    changes=("crashes", "speed"),
    met="cp_comm_type as a list, with a context parallel size above 1.",
    evidence=(
        "megatron-core 0.17 takes the item of a layer at its number less one (NVIDIA/Megatron-LM#3389)."
    ),
    upstream=("NVIDIA/Megatron-LM#3389",),
    targets=one_target(
        MEGATRON,
        variant("0.12", replaced(_INIT, make_init)),
    ),
)
