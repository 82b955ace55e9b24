"""What a page is made from: inputs, ranks that differ, sources, charts, and the command."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest
import report_inputs as made
from command_line import clean, unknown_verl

from overlay import cli
from overlay.catalogue.registry import load_patches
from overlay.errors import ReportError
from overlay.patch import Replacement
from overlay.reading.source import InstalledTree
from overlay.report import charts, drawing, evidence, inputs
from overlay.report.ledgers import compare, label
from overlay.report.sources import site_source

if TYPE_CHECKING:
    import random
    from pathlib import Path


# --- ranks ---


def test_ranks_that_say_the_same_are_one_group(tmp_path: Path) -> None:
    status = made.status(tmp_path)
    groups, differences = compare(made.ledgers(tmp_path, status, {**status, "pid": 2}, status))
    assert [group.name for group in groups] == ["ranks 0-2"]
    assert differences == ()


def test_a_rank_that_waits_for_its_modules_is_no_difference(tmp_path: Path) -> None:
    site = unknown_verl(tmp_path / "site")
    one, other = made.status(site), made.status(site)
    made.patch_of(one, "verl.sft-balance").update(state="applied", reason="")
    made.patch_of(other, "verl.sft-balance").update(state="armed", reason="", verdict=None)
    groups, differences = compare(made.ledgers(tmp_path, one, other))
    assert differences == ()
    # And the one that knows more speaks for both.
    assert groups[0].first.name == "rank0"


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"version": "9.9"}, "overlay"),
        ({"enabled": False}, "overlay"),
        ({"python": "3.12.1"}, "Python"),
        ({"strict": True}, "strict"),
        ({"pinned": "sha256:1"}, "pinned to"),
        ({"half_patched": ["x came here pickled"]}, "half-patched 1"),
        ({"patches": []}, "verl.sft-balance: state"),
    ],
)
def test_each_difference_is_named(tmp_path: Path, change: dict[str, Any], fact: str) -> None:
    status = made.status(unknown_verl(tmp_path / "site"))
    groups, differences = compare(made.ledgers(tmp_path, status, {**status, **change}, status))
    assert [group.name for group in groups] == ["ranks 0,2", "rank 1"]
    assert fact in [difference.fact for difference in differences]


def test_a_source_that_differs_is_named(tmp_path: Path) -> None:
    one, other = (made.status(unknown_verl(tmp_path / name)) for name in ("one", "other"))
    finding = made.patch_of(other, "verl.sft-balance")["verdict"]["targets"][0]["findings"][0]
    finding["digest"] = "feedfeedfeed"
    _, differences = compare(made.ledgers(tmp_path, one, other))
    assert [(item.fact, item.is_source) for item in differences] == [
        (f"verl.sft-balance: source of {finding['site']}", True)
    ]


def test_names_without_numbers_are_listed() -> None:
    assert label(["driver", "worker"]) == "driver, worker"
    assert label(["a1", "b1"]) == "a1, b1"
    assert label(["rank0", "rank1", "rank3"]) == "ranks 0-1,3"


# --- inputs ---


def test_what_a_newer_overlay_adds_is_left_out(tmp_path: Path) -> None:
    status = {**made.status(tmp_path), "news": 1}
    assert inputs.ledger(made.write(tmp_path / "a.json", status)).status.enabled


@pytest.mark.parametrize("text", ["", "[1]", "{}", "7", '{"patches": 1}', "[" * 100_000])
def test_what_is_no_ledger_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    for read in (inputs.ledger, inputs.suites, inputs.figures):
        with pytest.raises(ReportError, match=r"x\.json"):
            assert read(str(path)) == 0


def test_what_suites_print_is_read_in_each_form(tmp_path: Path) -> None:
    run = made.suite()["runs"][0]
    for data in (made.suite(), [run], run, run["difference"]):
        (found,) = inputs.suites(made.write(tmp_path / "s.json", data))
        assert found.passing == 12
        assert [change["after"] for change in found.changes["lost"]] == ["failed"]


def test_a_folder_of_results_is_read(tmp_path: Path) -> None:
    made.write(tmp_path / "run.json", made.suite("why")["runs"][0])
    (found,) = inputs.suites(str(tmp_path))
    assert found.name == "recipe why"
    assert [change["reason"] for change in found.changes["lost"]] == ["why"]


# --- sources ---


def make_wrapper(original: Any, module: Any) -> Any:
    def f(x: int) -> int:
        return int(original(x)) + 1

    return f


def make_new(original: Any, module: Any) -> Any:
    def f(x: int) -> int:
        return x + 2

    return f


UPSTREAM = (
    "import functools\n\nclass C:\n    @staticmethod\n    def f(x):\n        # <b>\n        return x + 1\n"
)


@pytest.fixture
def tree(tmp_path: Path) -> InstalledTree:
    (tmp_path / "m.py").write_text(UPSTREAM)
    return InstalledTree(str(tmp_path))


def test_a_replacement_is_shown_as_a_difference(tree: InstalledTree) -> None:
    found = site_source(Replacement(site="m:C.f", make=make_new), tree, tree.digest("m:C.f") or "")
    assert found.before == "@staticmethod\ndef f(x):\n    # <b>\n    return x + 1"
    assert found.after == "def f(x: int) -> int:\n    return x + 2"
    parts = {line.kind: line.parts for line in found.diff if "return" in line.text}
    assert parts == {
        "del": (("    return x + ", False), ("1", True)),
        "add": (("    return x + ", False), ("2", True)),
    }


def test_a_wrapper_is_shown_beside_what_it_calls(tree: InstalledTree) -> None:
    found = site_source(Replacement(site="m:C.f", make=make_wrapper), tree, "")
    assert found.calls_original
    # One listing: what is put around it, with its call marked.
    assert {line.kind for line in found.diff} == {"add"}
    assert [part for line in found.diff for part, marked in line.parts if marked] == ["original"]
    assert "\n".join(line.text for line in found.diff) == found.after


def test_another_source_is_not_shown_for_the_one_that_was_decided_on(tree: InstalledTree) -> None:
    found = site_source(Replacement(site="m:C.f", make=make_new), tree, "0" * 12)
    assert found.before == ""
    assert "000000000000) is not on this machine" in found.missing


def test_a_site_where_nothing_stood(tree: InstalledTree) -> None:
    found = site_source(Replacement(site="m:g", make=make_new, new=True), tree, "")
    assert (found.new, found.before, found.missing) == (True, "", "")


def test_every_patch_has_a_source_to_show(tmp_path: Path) -> None:
    tree = InstalledTree(str(tmp_path))
    for patch in load_patches().values():
        for target in patch.targets:
            for variant in target.variants:
                for replacement in variant.replacements:
                    assert site_source(replacement, tree, "").after, (patch.id, replacement.site)


# --- charts ---


def kinds(draw: random.Random, text: str = "name") -> list[charts.Chart]:
    return [charts.chart(figure) for figure in made.figures(draw, text)]


def drawings(chart: charts.Chart) -> list[ET.Element]:
    return list(ET.fromstring(f"<both>{chart.svg.replace('xlink:', '')}</both>"))  # noqa: S314 -- made here


def test_every_kind_is_drawn(draw: random.Random) -> None:
    assert {figure["kind"] for figure in made.figures(draw)} == charts.KINDS.keys()
    for chart in kinds(draw):
        wide, narrow = drawings(chart)
        assert [one.attrib["role"] for one in (wide, narrow)] == ["img", "img"]
        assert (wide.attrib["class"], narrow.attrib["class"]) == ("chart wide", "chart narrow")
        # A unit is three quarters of a CSS pixel: on a phone of 390 the narrow one is not made smaller.
        assert float(narrow.attrib["viewBox"].split()[2]) <= 0.75 * (390 - 32)
        assert len(chart.rows[0]) == len(chart.head)
        # Every colour is one of the page's, but for what stands on a filled bar.
        colours = set(re.findall(r"#[0-9a-f]{6}\b", chart.svg)) - {"#ffffff", "#0d1117", "#000000"}
        assert not colours
        assert "var(--" in chart.svg


def test_no_name_in_a_chart_is_a_formula_or_markup(draw: random.Random) -> None:
    for chart in kinds(draw, made.HOSTILE):
        assert len(drawings(chart)) == 2
        assert "<script" not in chart.svg
        assert "<img" not in chart.svg


def test_the_table_of_a_chart_says_what_the_picture_shows() -> None:
    series = {"before": [9000, 17_000, 16_384], "after": [16_000]}
    figure = {"kind": "micro-batches", "title": "t", "budget": 16_384, "series": series}
    assert charts.chart(figure).rows == (
        ("before", "3", "1", "17,000", "9,000"),
        ("after", "1", "0", "16,000", "16,000"),
    )
    spans = [[0, 2, 0.0, 1.0], [1, 2, 0.0, 1.0], [0, 1, 1.0, 2.0], [1, 0, 1.0, 2.0]]
    assert charts.chart({"kind": "timelines", "title": "t", "steps": {"s": spans}}).rows == (
        ("s", "2 s", "25%"),
    )


def test_patches_bring_their_figures_along() -> None:
    known = load_patches()
    found = {name: figures for name in known if (figures := evidence.figures(name))}
    assert "verl.strict-token-budget" in found
    for name, figures in found.items():
        assert [charts.chart(figure).title.partition(": ")[0] for figure in figures] == [name] * len(figures)
    (figure,) = found["verl.strict-token-budget"]
    # Both have all tokens, and one of them keeps to the budget.
    before, after = figure["series"].values()
    assert sum(before) == sum(after)
    assert max(after) <= figure["budget"]
    assert evidence.figures("acme/unknown") == []


def test_the_table_of_contracts_is_that_of_the_matrix() -> None:
    known = load_patches()
    support = inputs.support()
    found = evidence.contracts([*known, "acme/unknown"], support, ["verl 0.8.0"])
    # Each has one, and its first sentence.
    assert found.keys() == known.keys()
    assert all(held.promise.endswith(".") and held.patch not in held.promise for held in found.values())
    held = found["verl.strict-token-budget"]
    assert held.promise == "Each sample once, and no micro-batch over the budget."
    assert held.here == (("verl 0.8.0", support["verl==0.8.0"]["verl.strict-token-budget"]["check"]),)
    cells = [row["verl.strict-token-budget"] for row in support.values() if "verl.strict-token-budget" in row]
    assert held.tried == sum("check" in cell for cell in cells) > 1
    assert held.passed == sum(cell.get("check") == "passed" for cell in cells)


@pytest.mark.parametrize(
    "figure",
    [
        {},
        {"kind": "pie", "title": "t"},
        {"kind": "memory", "title": "t"},
        {"kind": "memory", "title": "t", "unit": "N", "cases": {}},
        {"kind": "timelines", "title": "t", "steps": {"s": []}},
        {"kind": "micro-batches", "title": "t", "budget": 1, "series": {"a": ["x"]}},
        7,
    ],
)
def test_what_cannot_be_drawn_is_an_error(figure: Any) -> None:
    with pytest.raises(ReportError, match="cannot be drawn"):
        charts.chart(figure)


# --- the command ---


def test_without_arguments_it_tells_of_what_is_installed(tmp_path: Path) -> None:
    text = made.page(tmp_path)
    assert "this environment" in text
    for project in ("megatron-core", "slime", "slime image", "verl", "verl image"):
        assert f'aria-label="Support matrix of {project}"' in text
    assert "Support matrix of slime main" not in text  # a head is a row


def test_ledgers_of_one_name_are_told_apart(tmp_path: Path) -> None:
    words = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        for rank in ("rank0", "rank1") if folder == "a" else ("rank0",):
            words += ["--ledger", made.write(tmp_path / folder / f"{rank}.json", made.status(tmp_path))]
    assert re.findall(r'<th scope="row">(rank.*?)</th><td>', made.page(tmp_path, *words)) == [
        "rank0 (1)", "rank1", "rank0 (2)",
    ]  # fmt: skip


@pytest.mark.parametrize("option", ["--ledger", "--suite", "--figures"])
def test_a_file_that_cannot_be_read_is_exit_code_2(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["report", "-o", str(tmp_path / "r.html"), option, str(tmp_path / "none.json")]) == 2
    assert "none.json cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize("place", ["no/r.html", "file/r.html", "", "/proc/r.html"])
def test_a_place_that_cannot_be_written_to_is_told_before_any_work(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(drawing, "needed", lambda: pytest.fail("it went to work"))
    assert cli.main(["report", "-o", str(tmp_path / place)]) == 2
    assert "the report cannot be written" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_asking_whether_a_page_can_be_written_leaves_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "r.html").write_text("before")
    assert cli.main(["report", "-o", str(tmp_path / "r.html"), "--suite", str(tmp_path / "none.json")]) == 2
    assert (tmp_path / "r.html").read_text() == "before"


def test_it_says_what_it_wrote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.html"
    folder = unknown_verl(tmp_path / "site")
    assert cli.main(["report", "-o", str(path), "--audit", str(folder)]) == 0
    said = capsys.readouterr()
    assert said.out == ""
    assert f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB): " in said.err
    assert "asked for, and not there" in said.err


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_without_the_extra_it_says_how_to_get_it(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert cli.main(["report", "-o", str(tmp_path / "r.html")]) == 2
    assert "pip install jinja2 matplotlib" in capsys.readouterr().err
    with pytest.raises(ReportError):
        drawing.needed()


def test_no_other_command_imports_what_the_report_needs(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom overlay import cli\ncli.main(['plan', '--site', sys.argv[1]])\n"
        "assert not {'jinja2', 'matplotlib', 'overlay.report'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False, env=clean(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
