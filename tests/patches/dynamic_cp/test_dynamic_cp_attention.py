"""Attention in the group of its micro-batch, with faked parts of a model: what is set, and what put back."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from overlay.patches._dynamic_cp.attention import MARK, make_attention_forward
from overlay.patches.megatron.dynamic_cp_names import make_settings

torch = pytest.importorskip("torch")


class Group:
    """A group of ranks."""


STATIC, PAIR, LONE = Group(), Group(), Group()


@dataclasses.dataclass
class Packed:
    """What names the group of a micro-batch."""

    local_cp_size: int | None = None
    cp_group: Group | None = None


class Core:
    """Attention that works in a group, like Transformer Engine's: Megatron sets it, and never back."""

    cp_stream: Any = "a stream"

    def __init__(self) -> None:
        self.set_context_parallel_group(STATIC, [0], "a stream", "p2p")

    def set_context_parallel_group(self, group: Any, ranks: Any, stream: Any, kind: str = "p2p") -> None:
        self.cp_group, self.cp_global_ranks, self.cp_comm_type = group, ranks, kind
        if "cp_stream" in vars(self) or stream is not None:
            self.cp_stream = stream

    def attend(self, packed: Packed) -> None:
        if packed.cp_group is not None:
            self.set_context_parallel_group(packed.cp_group, [0, 1], "a stream")
        elif packed.local_cp_size is not None:
            assert packed.local_cp_size == 1
            self.set_context_parallel_group(None, None, None)


class Layer:
    """A layer whose attention is the original, and notes the groups that it finds."""

    def __init__(self, core: Any) -> None:
        self.core_attention = core
        self.pg_collection = SimpleNamespace(cp=STATIC, tp="its own")
        self.seen: list[tuple[Any, Any, Packed | None]] = []


def original(
    self: Layer, hidden_states: str, attention_mask: Any, packed_seq_params: Packed | None = None
) -> str:
    packed = packed_seq_params
    core = self.core_attention
    if packed is not None and hasattr(core, "attend"):
        core.attend(packed)
    self.seen.append((self.pg_collection.cp, getattr(core, "cp_group", None), packed))
    assert self.pg_collection.tp == "its own"
    if hidden_states == "fail":
        raise ArithmeticError
    return "done"


forward: Any = make_attention_forward(original, None)  # type: ignore[arg-type]


def run(layer: Layer, packed: Packed | None = None, hidden: str = "") -> None:
    assert forward(layer, hidden, None, packed_seq_params=packed) == "done"


def test_it_carries_the_mark_without_which_nothing_starts() -> None:
    assert getattr(forward, MARK)
    assert not hasattr(original, MARK)


def test_positions_and_attention_are_in_the_group_of_the_micro_batch_and_nowhere_else() -> None:
    layer = Layer(Core())
    shared = layer.pg_collection
    for packed in (Packed(2, PAIR), Packed(1, LONE)):
        before = dataclasses.replace(packed)
        run(layer, packed)
        assert packed == before  # what is told is not changed
    run(layer)
    run(layer, Packed())
    assert [(positions, attention) for positions, attention, _ in layer.seen] == [
        (PAIR, PAIR),
        (LONE, None),
        (STATIC, STATIC),
        (STATIC, STATIC),
    ]
    assert [told for _, _, told in layer.seen[:2]] == [Packed(2, PAIR), Packed(1, None)]
    assert layer.pg_collection is shared
    assert shared.cp is STATIC
    assert layer.core_attention.cp_group is STATIC
    assert layer.core_attention.cp_global_ranks == [0]


def test_a_micro_batch_is_found_by_its_place_too() -> None:
    layer = Layer(Core())
    assert forward(layer, "", None, Packed(1, LONE)) == "done"
    assert layer.seen == [(LONE, None, Packed(1, None))]


@pytest.mark.parametrize("packed", [Packed(2, PAIR), Packed(1, LONE)])
def test_everything_is_put_back_after_an_error(packed: Packed) -> None:
    layer = Layer(Core())
    shared = layer.pg_collection
    with pytest.raises(ArithmeticError):
        run(layer, packed, "fail")
    assert layer.pg_collection is shared
    assert layer.core_attention.cp_group is STATIC


def test_a_group_that_recomputation_set_is_not_taken_for_the_static_one() -> None:
    layer = Layer(Core())
    core = layer.core_attention
    for packed in (Packed(2, PAIR), Packed(1, LONE)):
        run(layer, packed)
        core.attend(dataclasses.replace(packed, cp_group=None) if packed.local_cp_size == 1 else packed)
        run(layer)
        assert layer.seen[-1][:2] == (STATIC, STATIC)
        core.attend(Packed(2, PAIR))
        run(layer, Packed(1, LONE))
        assert core.cp_group is STATIC


def test_a_group_that_somebody_else_set_since_stays() -> None:
    layer = Layer(Core())
    run(layer, Packed(2, PAIR))
    theirs = Group()
    layer.core_attention.set_context_parallel_group(theirs, [3], "a stream")
    run(layer)
    assert layer.seen[-1][1] is theirs
    run(layer, Packed(2, PAIR))
    assert layer.core_attention.cp_group is theirs


def test_attention_that_has_no_group_to_set_is_told_everything() -> None:
    layer = Layer(object())
    run(layer, Packed(1, LONE))
    assert layer.seen[-1][0] is LONE
    assert layer.seen[-1][2] == Packed(1, LONE)


def test_the_stream_is_made_once_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[object] = []

    def stream() -> object:
        made.append(object())
        return made[-1]

    class Bare(Core):
        cp_stream: Any = None

    monkeypatch.setattr(torch.cuda, "Stream", stream)
    layer = Layer(Bare())
    vars(layer.core_attention).pop("cp_stream")
    run(layer, Packed(1, LONE))
    assert made == []  # alone, nothing is exchanged
    run(layer, Packed(2, PAIR))
    run(layer, Packed(2, PAIR))
    assert len(made) == 1
    assert Bare.cp_stream is made[0]
    assert Core.cp_stream == "a stream"


def test_settings_refuse_the_one_that_a_release_does_not_know() -> None:
    make: Any = make_settings(lambda args: args, None)  # type: ignore[arg-type]
    settings = make({"attention_backend": "flash"})
    settings["dynamic_context_parallel"] = False
    settings["context_parallel_size"] = 4
    assert settings == {"attention_backend": "flash", "context_parallel_size": 4}
    assert dict(**settings) == settings
    settings["dynamic_context_parallel"] = True  # which Megatron refuses, and not overlay
    assert settings["dynamic_context_parallel"]
