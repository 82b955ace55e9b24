"""What a job is told of the known defects that it meets by its own settings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from overlay.compat.dialects import DIALECTS, FLAGS, VERL
from overlay.defect import Condition, Defect, Dialect, Setting
from overlay.ledger import Met, PatchStatus, SiteStatus
from overlay.patches.megatron.known_defects import set_args
from overlay.patches.verl.known_defects import trained
from overlay.runtime import met
from overlay.runtime.engine import Engine, load_all
from overlay.source import conditions
from overlay.source.known_defects import load_defects
from overlay.source.selection import choose
from overlay.verdict import TargetVerdict, Verdict

DEFECTS = load_defects(load_all())
#: Each way to meet a defect that settings tell whole.
WAYS = [
    pytest.param(defect, way, id=f"{defect.id}-{number}")
    for defect in DEFECTS.values()
    for number, way in enumerate(defect.when)
    if all(isinstance(one, Setting) for one in way)
]


def dialect_of(defect: Defect) -> Dialect:
    return next(one for one in DIALECTS if defect.project.name in one.projects)


def value(condition: Setting, *, holds: bool) -> Any:
    """Return a value with which a condition holds, or does not."""
    if condition.above is not None:
        return condition.above + 1 if holds else condition.above
    if condition.among:
        first = condition.among[0]
        if isinstance(first, bool):
            return first is holds
        yes = first.replace("*", "x") if isinstance(first, str) else first
        return yes if holds else "none of these"
    return "none of these" if holds else condition.other[0]


def settings_of(
    way: tuple[Condition, ...], dialect: Dialect, fails: Condition | None = None
) -> dict[str, Any]:
    """Return settings as the upstream keeps them, under which all conditions hold but one."""
    found: dict[str, Any] = {}
    for one in way:
        assert isinstance(one, Setting)
        said = value(one, holds=one is not fails)
        if one.key in dialect.negated:
            found[dialect.negated[one.key]] = not said if isinstance(said, bool) else said != "none of these"
        else:
            found[one.key] = said
    return found


def why(defect: Defect, dialect: Dialect, parts: list[dict[str, Any]]) -> str | None:
    return met.why(defect, dialect, [met.Indexed(part) for part in parts])


@pytest.mark.parametrize(("defect", "way"), WAYS)
def test_a_defect_is_told_where_each_condition_holds(defect: Defect, way: tuple[Condition, ...]) -> None:
    dialect = dialect_of(defect)
    assert why(defect.replace(when=(way,)), dialect, [settings_of(way, dialect)])
    for one in way:
        if [getattr(other, "key", "") for other in way].count(one.key) == 1:  # type: ignore[union-attr]
            left = settings_of(way, dialect, fails=one)
            assert why(defect.replace(when=(way,)), dialect, [left]) is None


OF_MEGATRON = [one for one in WAYS if one.values[0].project.name == "megatron-core"]  # type: ignore[union-attr]


@pytest.mark.parametrize(("defect", "way"), OF_MEGATRON)
def test_verl_meets_what_megatron_has_by_its_engine_alone(defect: Defect, way: tuple[Condition, ...]) -> None:
    engine = "actor_rollout_ref.actor.megatron"
    given = {f"{engine}.{key}": one for key, one in settings_of(way, VERL).items()}
    mine = defect.replace(when=(way,))
    assert why(mine, VERL, [{**given, "actor_rollout_ref.actor.strategy": "megatron"}])
    assert why(mine, VERL, [{**given, "actor_rollout_ref.actor.strategy": "fsdp"}]) is None
    assert why(mine, VERL, [given]) is None


def test_a_look_up_compares_few_settings_with_each_condition(monkeypatch: pytest.MonkeyPatch) -> None:
    # A job of verl with Megatron has some eight hundred.
    asked, compare = [], conditions.means

    def counted(full: str, key: str, aside: tuple[str, ...]) -> bool:
        asked.append(full)
        return compare(full, key, aside)

    monkeypatch.setattr(met, "means", counted)
    plain = {f"actor_rollout_ref.part{number}.setting{number}": number for number in range(800)}
    mine = {"actor_rollout_ref.actor.strategy": "fsdp", "actor_rollout_ref.actor.use_dynamic_bsz": True}
    parts = [met.Indexed({**plain, **mine})]
    for defect in DEFECTS.values():
        met.why(defect, VERL, parts)
    assert 0 < len(asked) < len(DEFECTS)


@pytest.mark.parametrize("defect", DEFECTS.values(), ids=list(DEFECTS))
def test_options_that_are_not_there_meet_nothing(defect: Defect) -> None:
    asked = [one for way in defect.when for one in way if isinstance(one, Setting)]
    if asked and not any(None in one.among for one in asked):
        assert why(defect, dialect_of(defect), [{}]) is None


def test_an_option_that_stood_beside_others_in_another_release_is_not_set() -> None:
    sent = DEFECTS["verl.lora-unmerged-sent"]
    given = {"actor.strategy": "fsdp2", "model.lora_rank": 8, "model.lora.merge": True}
    assert why(sent, VERL, [{**given, "trainer.use_legacy_worker_impl": "auto"}]) is None
    assert why(sent, VERL, [{**given, "trainer.logger": ["console"]}])  # as in verl 0.8


@pytest.mark.parametrize("off", [0, "", False, None])
def test_what_is_off_is_not_given(off: Any) -> None:
    given = {"mtp_num_layers": 1, "context_parallel_size": 2}
    assert why(DEFECTS["megatron.mtp-mean-of-means"], FLAGS, [given])
    assert why(DEFECTS["megatron.mtp-mean-of-means"], FLAGS, [{**given, "mtp_num_layers": off}]) is None


@pytest.mark.parametrize("imported", [(), ("slime",), ("miles",)])
def test_a_job_is_told_of_the_defects_of_what_it_has_imported(
    imported: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("slime", "miles"):  # others may be installed beside it
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in imported:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(met, "meet", lambda _engine, dialect, _parts: asked.append(dialect.projects))
    set_args(print, met)(SimpleNamespace(rollout_batch_size=8))
    assert asked == [(*imported, "megatron-core")]


def test_parts_are_not_mixed() -> None:
    defect = DEFECTS["slime.eps-clip-c-ignored"]
    all_three = {"eps_clip_c": 3.0, "train_backend": "megatron", "advantage_estimator": "grpo"}
    dialect = dialect_of(defect)
    assert why(defect, dialect, [all_three])
    assert why(defect, dialect, [{**all_three, "advantage_estimator": "cispo"}]) is None
    parts = [{**all_three, "eps_clip_c": None}, {**all_three, "train_backend": "fsdp"}]
    assert why(defect, dialect, parts) is None


def test_a_configuration_within_the_engine_decides_nothing() -> None:
    found = {"actor.fsdp_config.strategy": "fsdp", "actor.strategy": "other", "actor.use_dynamic_bsz": True}
    memory = DEFECTS["verl.fsdp-keeps-outputs"]
    memory = memory.replace(when=((memory.when[0][0],),))
    assert why(memory, VERL, [found]) is None
    assert why(memory, VERL, [{**found, "actor.strategy": "fsdp2"}]) == "actor.strategy is fsdp2"


def test_adapters_of_the_actor_are_not_read_in_the_critic() -> None:
    critic = {"actor_rollout_ref.model.lora_rank": 8, "critic.model.lora.merge": False}
    views = DEFECTS["verl.lora-views-reused"]
    assert why(views, VERL, [{**critic, "actor_rollout_ref.model.lora.merge": True}]) is None
    assert why(views, VERL, [{**critic, "actor_rollout_ref.model.lora.merge": False}])


def test_the_engine_of_sft_is_told_by_its_settings() -> None:
    (sft,) = trained({"engine": {"tensor_model_parallel_size": 2}})
    assert sft["strategy"] == "megatron"
    assert "strategy" not in next(trained({"optim": {"lr": 1}}))


def test_of_a_list_one_member_is_enough() -> None:
    # Megatron's own arguments have a list of losses, and one of their coefficients.
    given = {"moe_router_load_balancing_type": ["aux_loss", "seq_aux_loss"], "moe_aux_loss_coeff": [0, 0.1]}
    losses = DEFECTS["megatron.seq-aux-loss-micro-batch-scale"].when[0]
    asked = tuple(one for one in losses if isinstance(one, Setting) and one.key in given)
    assert len(asked) == 2
    assert why(DEFECTS["megatron.seq-aux-loss-micro-batch-scale"].replace(when=(asked,)), FLAGS, [given])


def test_settings_that_cannot_be_read_stop_no_job() -> None:
    class Unclear:
        def __bool__(self) -> bool:
            raise ValueError("the truth value of an array is ambiguous")

    config = {"actor_rollout_ref": {"actor": {}, "rollout": 1}, "critic": {"enable": Unclear()}}
    met.meet(Engine(dict), VERL, trained(config))


LEFT_OUT = DEFECTS["megatron.async-save-unpinned"].patch


@pytest.fixture
def met_by(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Met]:
    """Return what tells how a job meets the defect of a patch, by its verdict and its state here."""

    def meets(
        verdict: str, state: str, *, target: str = "apply", wrapped: bool = False, terms: str = ""
    ) -> Met:
        defect = DEFECTS["megatron.async-save-unpinned"]
        known = load_all()
        known[defect.patch] = known[defect.patch].replace(opt_in=verdict == "not-selected")
        known["a.both"] = known[defect.patch].replace(id="a.both", includes=(defect.patch,))
        targets = [
            TargetVerdict(project=one.project.name, verdict=target) for one in known[defect.patch].targets
        ]
        decided = Verdict(patch=defect.patch, verdict=verdict, targets=tuple(targets))
        statuses = [
            PatchStatus(patch=name, state=state, sites=(site(state, wrapped=wrapped),))
            for name in (("a.both",) if verdict == "not-needed" else (defect.patch,))
        ]
        monkeypatch.setattr(met, "records", lambda _: [defect])
        monkeypatch.setattr(met, "why", lambda *_: "x is on")
        monkeypatch.setattr(met, "_verdict", lambda *_: decided)
        engine: Any = SimpleNamespace(
            known=lambda: known,
            status=lambda: SimpleNamespace(patches=statuses),
            tested=Engine(dict).tested,
            chosen=lambda: choose(known, terms or None),
        )
        (found,) = met.defects_of(engine, VERL, [])
        return found.replace(way_out=found.way_out.replace(defect.patch, "P"))

    return meets


def test_a_patch_is_in_force_under_a_wrapper(met_by: Callable[..., Met]) -> None:
    """Such as a timer, which came after overlay."""
    assert met_by("apply", "applied").state == "mended"
    assert met_by("apply", "incomplete", wrapped=True).state == "mended"
    left = met_by("apply", "incomplete")
    assert (left.state, left.way_out) == ("open", "P is incomplete")


def test_a_patch_may_do_the_work_of_another(met_by: Callable[..., Met]) -> None:
    assert met_by("not-needed", "applied").state == "mended"
    left = met_by("not-needed", "failed")
    assert (left.state, left.way_out) == ("open", "a.both is failed")


def test_what_to_select_is_said_by_what_is_selected(met_by: Callable[..., Met]) -> None:
    """An argument of `enable()` wins over the environment, and what was dropped stays dropped."""
    assert met_by("not-selected", "").way_out == "OVERLAY_PATCHES=all,P"
    assert met_by("not-selected", "", terms="verl.metrics").way_out == 'overlay.enable("verl.metrics,P")'
    for terms, wanted in (
        ("all,-a.both", "all,-a.both,P"), ("none", "P"), (f"-{LEFT_OUT},verl.metrics", "-P,verl.metrics,P"),
    ):  # fmt: skip
        assert met_by("not-selected", "", terms=terms).way_out == f'overlay.enable("{wanted}")'


def test_no_patch_is_advised_that_cannot_be_applied(met_by: Callable[..., Met]) -> None:
    left = met_by("not-selected", "", target="unknown-source")
    assert left.state == "unknown-source"
    assert "P" not in left.way_out


def test_what_was_replaced_since_is_not_fixed_any_more() -> None:
    engine = Engine(dict)
    engine.met = tuple(one.replace(patch="a.b") for one in told(b="mended", c="unknown-source"))
    for state, wanted in (("applied", "mended"), ("waiting", "mended"), ("incomplete", "open")):
        status = engine._status((PatchStatus(patch="a.b", state=state, sites=(site(state),)),))
        assert [one.state for one in status.met] == [wanted, "unknown-source"]
    assert status.met[0].way_out == "a.b is incomplete"


def site(state: str, *, wrapped: bool = False) -> SiteStatus:
    return SiteStatus(site="up:f", project="up", state=state, wrapped=wrapped)


def test_nothing_is_fixed_here_any_more_once_overlay_is_disabled() -> None:
    engine = Engine(dict)
    engine.met = told(b="mended")
    assert engine.status().met
    engine.disable()
    assert not engine.status().met


def told(**states: str) -> tuple[Met, ...]:
    return tuple(
        Met(defect=f"a.{name.replace('_', '-')}", harm="crash", state=state, why="x is on", way_out="set y")
        for name, state in states.items()
    )


def test_the_line_says_what_to_do_about_what_is_left() -> None:
    assert met.sentence(told(b="mended")) == "1 known defect affects this job, patched here"
    assert met.sentence(told(b="mended", c="mended")) == "2 known defects affect this job, all patched here"
    found = met.sentence(told(b="open", c="mended"))
    assert found == "2 known defects affect this job, 1 patched here, 1 not: a.b (crash): set y"
    (one,) = told(b="open")
    found = met.sentence([one.replace(way_out="OVERLAY_PATCHES=all,a.c")])
    assert found.endswith(": OVERLAY_PATCHES=all,a.c; if `overlay run --patches` set it, change it there")
    many = met.sentence(told(b="open", c="open", d="open", e="open", f="unknown-source"))
    assert many.endswith("a.d (crash): set y; and 2 more: overlay report")
    assert "\n" not in many
