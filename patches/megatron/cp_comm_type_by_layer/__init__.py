"""`megatron.cp-comm-type-by-layer`: each layer gets the communication type that the list has for it."""

from typing import Any

from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, around, one_target, replaced, variant

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


@around
def init(original: Any, self: Any, config: Any, *args: Any, **options: Any) -> Any:
    """Build a layer, while whose constructor runs the list counts from one, as layers do."""
    types = config.cp_comm_type
    if type(types) is not list:
        return original(self, config, *args, **options)
    config.cp_comm_type = _FromOne(types)
    try:
        return original(self, config, *args, **options)
    finally:
        config.cp_comm_type = types


PATCH = Patch(
    id="megatron.cp-comm-type-by-layer",
    summary="Each layer gets the context parallel communication type that the list has for it",
    why="cp_comm_type may be a list with a type for each layer. Until 0.16.1 Megatron looks a layer up by "
    "its number, which counts from one: every layer has the type of the next, and the last raises an "
    "IndexError.",
    changes=("crashes", "speed"),
    met="cp_comm_type as a list, with a context parallel size above 1.",
    evidence="megatron-core 0.17 takes the item at a layer's number less one (NVIDIA/Megatron-LM#3389).",
    upstream=("NVIDIA/Megatron-LM#3389",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.12", replaced("megatron.core.transformer.transformer_layer:TransformerLayer.__init__", init)
        ),
    ),
)
