"""`megatron.param-groups-by-lr`: parameter groups that differ by their learning rate alone are resumed apart.

Two methods pair an optimizer's groups with those of a checkpoint. The first is answered for where identifiers
tie. The second is part of a long one: what calls that is wrapped, and puts right what it got wrong.
"""

import functools
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from overlay import log
from overlay.compat.projects import MEGATRON
from overlay.effect import effect
from overlay.patch import Patch, Present, one_target, replaced, variant
from overlay.patches.megatron.param_groups_by_lr.pairing import Edits, identity, paired

ID = "megatron.param-groups-by-lr"
_REORDER = "megatron.core.optimizer.optimizer:MegatronOptimizer._filter_and_reorder_param_groups"
_CHAINED = "megatron.core.optimizer.optimizer:ChainedOptimizer.load_state_dict"
#: Relied on as a whole: it pairs by identifiers, keeps the order of groups, and takes the rest elsewhere.
_LOAD = "megatron.core.optimizer.distrib_optimizer:DistributedOptimizer.load_state_dict"
#: By which groups are told what is theirs. Where it is missing, groups differ by identifiers alone.
_KEY = "megatron.core.optimizer.optimizer_config:ParamKey"
EFFECT = effect(__name__, "optimizer", did="given the parameter groups that are its own", always=True)


def _places(current: Sequence[Any], saved: Sequence[Any], keys: Sequence[str]) -> list[int] | None:
    """Return which saved group belongs to each current one, `None` if upstream's identifiers tell.

    Groups whose identifiers tie are told apart by the rest that a scheduler reads.
    """
    kinds: dict[Any, list[int]] = {}
    for place, group in enumerate(saved):
        kinds.setdefault(identity(group, keys), []).append(place)
    if len(kinds) == len(saved):
        return None
    found = [0] * len(current)
    wanted: dict[Any, list[int]] = {}
    for place, group in enumerate(current):
        wanted.setdefault(identity(group, keys), []).append(place)
    # Groups that were saved may be more than a rank's optimizer has.
    if any(len(kinds.get(kind, ())) != len(places) for kind, places in wanted.items()):
        return None
    alike: list[tuple[list[int], list[int]]] = []
    for kind, places in wanted.items():
        others = kinds[kind]
        parts = [
            ([one for one in places if _is_own(current[one]) is own],
             [one for one in others if _is_own(saved[one]) is own])
            for own in (False, True)
        ]  # fmt: skip
        # Whether a group has rates of its own may have changed as well.
        alike += parts if all(len(here) == len(there) for here, there in parts) else [(places, others)]
    edits: Edits = frozenset()
    # First those about which there is the least doubt.
    for here, there in sorted(alike, key=lambda part: len(part[0])):
        order, edits, doubt = paired([current[one] for one in here], [saved[one] for one in there], edits)
        for place, other in zip(here, order, strict=True):
            found[place] = there[other]
        if doubt:
            log.warning(
                f"{ID}: the rates of this job and of the checkpoint leave in doubt which parameter group is "
                f"which. The likeliest is taken, and they go on with what was saved: {doubt}"
            )
    return found


def _is_own(group: Any) -> bool:
    """Return whether a group has rates of its own, and not those of the job."""
    return group.get("default_config") is False


def make_reorder(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the static method by which all optimizers but the distributed ones pair their groups."""

    def _filter_and_reorder_param_groups(
        current_groups: list[dict[str, Any]], state_dict_groups: list[dict[str, Any]]
    ) -> Any:
        found = _places(current_groups, state_dict_groups, module.param_group_identifier_keys)
        if found is None:
            return original(current_groups, state_dict_groups)
        EFFECT.changed += 1
        # The parameters stay in the order that the state has.
        parameters = [group["params"] for group in state_dict_groups]
        return [
            {**state_dict_groups[place], "params": own} for place, own in zip(found, parameters, strict=False)
        ]

    _filter_and_reorder_param_groups.__annotations__ = dict(getattr(original, "__annotations__", {}))
    return _filter_and_reorder_param_groups


def make_load(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build the `load_state_dict` of chained optimizers, as which all are built.

    Distributed ones have paired their groups by then. Beside the parameters and their moments, which come
    from elsewhere, that is all that they got wrong.
    """

    @functools.wraps(original)
    def load_state_dict(self: Any, state_dict: Any) -> Any:
        states = state_dict
        if len(self.chained_optimizers) == 1:
            states = [state_dict]
        elif isinstance(state_dict, dict):
            states = [state for _, state in sorted(state_dict.items())]
        told = []
        for one, state in zip(self.chained_optimizers, states, strict=False):
            if not any(kind.__name__ == "DistributedOptimizer" for kind in type(one).__mro__):
                continue
            saved = state.get("optimizer", {}).get("param_groups", ())
            current = [] if one.optimizer is None else one.optimizer.param_groups
            if places := _places(current, saved, module.param_group_identifier_keys):
                told.append((one.optimizer, [saved[place] for place in places]))
        loaded = original(self, state_dict)
        EFFECT.changed += len(told)
        for optimizer, saved in told:
            for group, right in zip(optimizer.param_groups, saved, strict=True):
                # Steps are the same for all, and have been made so just now.
                group.update((key, value) for key, value in right.items() if key not in ("params", "step"))
        return loaded

    return load_state_dict


PATCH = Patch(
    id=ID,
    summary="A resumed job keeps the learning rate of each parameter group",
    why="Megatron pairs an optimizer's parameter groups with those of a checkpoint without regard to the "
    "learning rate, by which alone they may differ since 0.16, as with decoupled_lr. Then all get what was "
    "saved of the last. The distributed optimizer trains the whole model at the rate of the embedding or the "
    "other way round, without a word. Others refuse to load, or lose their moments.",
    changes=("numbers", "crashes"),
    met="A job that is resumed with its optimizer and decoupled_lr, or any other parameter groups that "
    "differ in max_lr, min_lr, start_wd or end_wd alone.",
    evidence="megatron-core 0.19 pairs groups by their rates as well (NVIDIA/Megatron-LM#4705). What is "
    "loaded is compared with what was saved. Where a job asks for other rates, a group is the saved one from "
    "which the fewest edits lead to it, then the one in its place; a warning names those left in doubt.",
    upstream=("NVIDIA/Megatron-LM#4705",),
    targets=one_target(
        MEGATRON,
        variant(
            "0.16",
            replaced(_REORDER, make_reorder),
            replaced(_CHAINED, make_load),
            _LOAD,
            Present(site=_KEY),
        ),
        tells=(_KEY,),
    ),
)
