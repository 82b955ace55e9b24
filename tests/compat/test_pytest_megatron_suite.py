"""What stands in for a device where Megatron's own tests are run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from overlay.compat import pytest_megatron_suite as plugin


def groups() -> tuple[Any, list[Any], list[Any]]:
    made: list[Any] = []
    destroyed: list[Any] = []

    def create_group(ranks: Any = None, **kwargs: Any) -> Any:
        made.append((ranks, kwargs))
        return SimpleNamespace(ranks=ranks)

    world = SimpleNamespace(ranks=None)
    dist = SimpleNamespace(
        group=SimpleNamespace(WORLD=world), destroy_process_group=lambda group=None: destroyed.append(group)
    )
    found = plugin._Groups(SimpleNamespace(create_group=create_group))
    return SimpleNamespace(create=found.create, destroy=found.destroying(dist), world=world), made, destroyed


def test_a_group_is_made_once_for_a_set_of_ranks() -> None:
    ours, made, _ = groups()
    first = ours.create([0, 1], group_desc="one")
    assert ours.create([0, 1], group_desc="another") is first
    assert ours.create([0, 2]) is not first
    assert (
        ours.create([0, 1], use_local_synchronization=True) is not first
    )  # other ranks take part in making it
    assert ours.create(None) is not ours.create(None)
    assert len(made) == 5


def test_groups_that_are_given_out_again_are_not_destroyed_before_the_world() -> None:
    ours, made, destroyed = groups()
    kept = ours.create([0, 1])
    ours.destroy(kept)
    assert destroyed == []
    other = SimpleNamespace(ranks=[5])
    ours.destroy(other)
    assert destroyed == [other]
    ours.destroy()
    assert destroyed == [other, None]
    assert ours.create([0, 1]) is not kept
    assert len(made) == 2
    ours.destroy(ours.world)
    assert destroyed[-1] is ours.world
