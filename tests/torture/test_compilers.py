"""What compiles, pickles and copies a patched function: a site of Megatron, one of verl, and a data class.

`scripts/torture compilers` looks at every site of every patch that applies here.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest
from checks import ENGINE
from command_line import python
from fake_upstream import Engines, Upstream

pytest.importorskip("torch")


@pytest.mark.real
@pytest.mark.nightly("small upstreams stand for it")
def test_real_sites() -> None:
    pytest.importorskip("megatron.core")
    pytest.importorskip("cloudpickle")
    done = python("-W", "ignore", str(ENGINE / "compiler_sites.py"), "megatron.agreement", seconds=300)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["state"] == "applied"
    assert found["sites"]
    for site in found["sites"]:
        assert [key for key, value in site.items() if value is False] == []


DATA = """
    import dataclasses

    @dataclasses.dataclass(frozen=True)
    class Batch:
        tokens: int
        samples: int = 1

        def __post_init__(self):
            object.__setattr__(self, "mean", self.tokens // self.samples)

        def total(self):
            return self.tokens
    """


def make_total(original: Any, module: Any) -> Any:
    def total(self: Any) -> Any:
        return original(self) * 100

    return total


def make_post_init(original: Any, module: Any) -> Any:
    def __post_init__(self: Any) -> None:  # noqa: N807 -- the name of the site
        original(self)
        object.__setattr__(self, "patched", True)

    return __post_init__


def test_a_decorated_data_class_is_replaced_with_its_patched_methods(
    upstream: Upstream, enabled: Engines
) -> None:
    upstream.write(core=DATA)
    sites = {"fakeup.core:Batch.total": make_total, "fakeup.core:Batch.__post_init__": make_post_init}
    engine = enabled(upstream.patch(sites), strict=True)
    core = upstream.load()
    given = core.Batch(6, 2)
    for made in (dataclasses.replace(given, tokens=8), copy.deepcopy(given), copy.copy(given)):
        assert made.total() in (600, 800)
        assert made.patched
    assert dataclasses.replace(given, tokens=8).mean == 4
    engine.disable()
    assert core.Batch(6).total() == 6
    assert not hasattr(core.Batch(6), "patched")
