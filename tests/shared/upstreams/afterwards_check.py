"""Run with an upstream first on the path: prints what patches leave behind after their contracts.

    python afterwards_check.py SEED PATCH...

The last line is JSON: by patch a list of sentences, one for each thing that is wrong.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
from contract_runs import defect_of, forked
from contracts_check import PATIENCE, answer

from overlay.compat.no_triton import no_triton
from overlay.desk.prove.prove import HOLDS
from overlay.model.settings import ALONE, PROVE
from overlay.runtime.process import here
from overlay.runtime.search import ORIGINAL, OWNER
from overlay.runtime.sites import current, function_of
from overlay.source.registry import contract_of, load_patches
from overlay.testing import enable

OURS = "overlay.patches."
#: What a container of the standard library keeps is looked at as well.
CONTAINERS = ("builtins", "collections", "functools", "weakref", "_weakrefset")


def main(seed: str, *patches: str) -> None:
    """Print it."""
    answer(patches, lambda patch: _faults(patch, seed))


def _faults(patch: str, seed: str) -> list[str]:
    """Return what is wrong after the contract of a patch, which is run in a process of its own."""
    with tempfile.TemporaryFile("w+") as faults:

        def work() -> str:
            json.dump(list(_afterwards(patch, seed)), faults)
            faults.flush()
            return ""

        outcome, said = forked(work, PATIENCE)
        faults.seek(0)
        return list(json.loads(faults.read())) if outcome == HOLDS else [f"{outcome}: {said}"]


def _afterwards(patch: str, seed: str) -> Iterator[str]:
    """Yield what is wrong after the contract of a patch, with the collector off."""
    contract = contract_of(patch)
    assert contract is not None
    gc.collect()
    gc.disable()
    if said := contract.check(seed):
        yield f"the contract does not hold: {said}"
    yield from (f"the patch keeps {what}" for what in kept(_roots()))
    yield from (f"a cycle of the patch's keeps tensors: {what}" for what in rings())
    sites = _in_place(patch)
    if not sites:
        yield "the patch is nowhere in place"
    carried = {site: travels(function_of(_now(site))) for site in sites}
    originals = {site: getattr(function_of(_now(site)), ORIGINAL, None) for site in sites}
    here().disable()
    for site, original in originals.items():
        if function_of(_now(site)) is not original:
            yield f"{site} is {_now(site)!r} after disable()"
        elif original is not None and carried[site] != (plain := travels(original)):
            yield f"{site} travels by {carried[site]}, and the original by {plain}"
    yield from (f"{where} is left after disable()" for where in left())
    if not contract.starts:
        os.environ[PROVE] = ALONE
        with contextlib.suppress(Exception):  # some cannot be run twice in a process
            if not defect_of(patch)(seed):
                yield "after disable() upstream alone keeps the contract"


def _in_place(patch: str) -> list[str]:
    """Return the sites at which a patch is, which is enabled again if its contract has taken it out."""
    found = load_patches()[patch]

    def there() -> list[str]:
        for module in found.modules():
            with contextlib.suppress(ImportError), no_triton():  # a variant for another release
                importlib.import_module(module)
        sites = (site for one in here().status().patches if one.patch == patch for site in one.sites)
        return [site.site for site in sites if site.state == "applied"]

    if not (sites := there()):
        here().disable()
        enable(patch, *found.requires)
        sites = there()
    return sites


def _now(site: str) -> Any:
    return current(sys.modules[site.partition(":")[0]], site)[1]


def travels(function: object) -> str:
    """Return by what a function comes back as itself: pickle, Ray's pickle and a copy."""
    ways: dict[str, Callable[[], object]] = {
        "pickle": lambda: pickle.loads(pickle.dumps(function)),  # noqa: S301 -- it was made here
        "cloudpickle": lambda: pickle.loads(cloudpickle.dumps(function)),  # noqa: S301
        "deepcopy": lambda: copy.deepcopy(function),
    }
    found = []
    for name, way in ways.items():
        with contextlib.suppress(Exception):
            if way() is function:
                found.append(name)
    return " and ".join(found)


def is_ours(thing: object) -> bool:
    """Return whether a function, class or instance is of a patch, and not of its contract."""
    # By the type alone: to ask a thing for its class can warn, or raise if it stands for one that is gone.
    kind: Any = type(thing)
    held: Any = thing
    if kind is FunctionType:
        name = held.__globals__.get("__name__")
    else:
        name = (held if issubclass(kind, type) else kind).__module__
    return isinstance(name, str) and name.startswith(OURS) and ".contract" not in name


def _roots() -> Iterator[tuple[str, object]]:
    """Yield what lives as long as the patch: what its modules have, and its replacements."""
    for name, module in list(sys.modules.items()):
        if name.startswith(OURS) and ".contract" not in name:
            yield from ((f"{name}.{key}", value) for key, value in list(vars(module).items()))
    for thing in gc.get_objects():
        if type(thing) is FunctionType and is_ours(thing) and OWNER in vars(thing):
            yield f"{thing.__module__}:{thing.__qualname__}", thing


def kept(roots: Iterable[tuple[str, object]]) -> list[str]:
    """Return the tensors of more than one element, modules and optimizers that can be reached from roots."""
    import torch

    found, seen, todo = [], set(), list(roots)
    while todo:
        where, thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        kind = type(thing)
        if issubclass(kind, (torch.nn.Module, torch.optim.Optimizer)) or (
            # A figure may be a number of a device, which is fetched when somebody asks.
            issubclass(kind, torch.Tensor) and thing.numel() > 1  # type: ignore[attr-defined]
        ):
            found.append(f"{where}: {kind.__name__}")
        todo += [(where, inner) for inner in _inside(thing)]
    return sorted(found)


def _inside(thing: object) -> list[object]:
    """Return what a thing of a patch, or a container, refers to. Upstream's own functions are not entered."""
    kind = type(thing)
    if kind is FunctionType:
        if not is_ours(thing):
            return []
        told = {**vars(thing), ORIGINAL: None}
        return [
            *(thing.__closure__ or ()),  # type: ignore[attr-defined]
            *(thing.__defaults__ or ()),  # type: ignore[attr-defined]
            *told.values(),
        ]
    if kind is ModuleType or (
        kind.__module__ == "builtins" and issubclass(kind, type) and not is_ours(thing)
    ):
        return []
    if is_ours(thing) or (kind.__module__ in CONTAINERS and not issubclass(kind, type)):
        return [one for one in gc.get_referents(thing) if type(one) is not type]
    return []


def rings() -> list[str]:
    """Return what of a patch is in a cycle, freed by the collector alone, that tensors hang on."""
    import torch

    gc.set_debug(gc.DEBUG_SAVEALL)
    gc.collect()
    gc.set_debug(0)
    freed = {id(thing): thing for thing in gc.garbage}
    gc.garbage.clear()
    found = set()
    for start in [one for one in freed.values() if is_ours(one) and not issubclass(type(one), type)]:
        seen: set[int] = set()
        todo = [start]
        while todo:
            new = {id(one): one for one in gc.get_referents(todo.pop())}
            todo += [freed[key] for key in new.keys() & freed.keys() - seen]
            seen |= new.keys() & freed.keys()
        if id(start) in seen and any(issubclass(type(freed[key]), torch.Tensor) for key in seen):
            found.add(getattr(start, "__qualname__", type(start).__qualname__))
    return sorted(found)


def left() -> list[str]:
    """Return where in modules and classes that are not overlay's something of a patch is."""
    found = set()
    for name, module in list(sys.modules.items()):
        if type(module) is ModuleType and not name.startswith("overlay") and name != "__main__":
            found |= {f"{name}.{key}" for key, value in list(vars(module).items()) if _holds(value)}
    for kind in [one for one in gc.get_objects() if issubclass(type(one), type)]:
        # What torch makes of a function of ours with a gradient is ours.
        if is_ours(kind) or is_ours(vars(kind).get("_forward_cls")):
            continue
        if not str(kind.__module__).startswith("overlay"):
            held = (key for key, value in list(vars(kind).items()) if _holds(value))
            found |= {f"{kind.__module__}.{kind.__qualname__}.{key}" for key in held}
    return sorted(found)


def _holds(value: object) -> bool:
    """Return whether something of a patch is in a raw attribute: itself, in a container, or wrapped."""
    kind = type(value)
    if kind is property:
        return any(map(is_ours, gc.get_referents(value)))
    if kind in (dict, list, tuple, set):
        return any(map(is_ours, gc.get_referents(value)))
    function = function_of(value) if kind in (staticmethod, classmethod) else value
    wrapped = vars(function).get("__wrapped__") if type(function) is FunctionType else None
    return is_ours(function) or (wrapped is not None and is_ours(wrapped))


if __name__ == "__main__":
    main(*sys.argv[1:])
