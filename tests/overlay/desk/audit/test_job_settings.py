"""What the settings of a job say of a defect: met, not met, or not to be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from audit_cases import DIALECT, a_defect, write

from overlay.defect import Condition, Dialect, above, among, before, beyond, given, other, switched
from overlay.desk.audit import settings_file
from overlay.desk.audit.job_settings import JobSettings, recognise
from overlay.errors import SettingsError
from overlay.source.conditions import Answer, Open

#: Those that take no settings from elsewhere.
PROGRAMS = ("x", "x.py")


def settings(tmp_path: Path, text: str, name: str = "run.sh", dialect: Dialect = DIALECT) -> JobSettings:
    (tmp_path / name).write_text(text)
    read = write(tmp_path).read
    (tmp_path / "lib/arguments.py").write_text(
        "parser.add_argument('--ranks', type=int, default=1)\n"
        "parser.add_argument('--fast', action='store_true')\n"
        "parser.add_argument('--other', default='x')\n"
        "parser.add_argument('--computed', default=g())\n"
        "class C:\n    depth: int = 3\n    deep: bool = False\n"
        "    bias: bool = field(default=True, metadata={'flags': ['--disable-offset']})\n"
    )
    return recognise(name, settings_file.read(str(tmp_path / name), PROGRAMS), (dialect,), read)


def having(dialect: Dialect = DIALECT, **values: Any) -> JobSettings:
    """Return settings that stand in no file."""
    return JobSettings(file="run.sh", dialect=dialect, values=values)


def said(found: JobSettings, *when: Condition) -> Answer:
    """Return what settings say of the defect, or of one with other conditions."""
    return found.answer(a_defect().replace(when=(when,)) if when else a_defect())


@pytest.mark.parametrize(
    ("text", "word", "why"),
    [
        ("--ranks 2 --fast", "met", "ranks is 2 and fast is on"),
        ("--ranks 2", "not-met", "fast is off, upstream's default"),
        ("--fast", "not-met", "ranks is 1, upstream's default"),
        ("--ranks=1 --fast", "not-met", "ranks is 1"),
        ("--ranks $N --fast", "untold", "ranks is $N in the file"),
        ("N=4\n--ranks $N \\\n --fast", "met", "ranks is 4 and fast is on"),
        ("--ranks ${N:-4} --fast", "untold", "ranks is ${N:-4} in the file"),
        ("x --ranks ${N:-4} --fast", "met", "ranks is 4 and fast is on"),
        ("--ranks 2 # --fast", "not-met", "fast is off"),
        ("ARGS=(\n  --ranks 2\n  --fast)\npython x.py ${ARGS[@]}", "met", "ranks is 2"),
        ("--ranks 2 ${MORE[@]}", "untold", "fast is not in the file"),
        ("source ${HERE}/nowhere.sh\n--ranks 2", "untold", "fast is not in the file"),
        ("A=1 source nowhere.sh\nx --ranks 2 ${MORE[@]}", "untold", "fast is not in the file"),
        ("command . nowhere.sh\nx --ranks 2 ${MORE[@]}", "untold", "fast is not in the file"),
        ("--ranks 1\n--ranks 2 --fast", "met", "ranks is 2"),
        ("--ranks many --fast", "untold", "ranks is many"),
        ("x --ranks --fast", "untold", "ranks is on"),
        ("python x.py --ranks 2 $ARGS", "untold", "fast is not in the file"),
        # Each is a file of Hydra's.
        ("python x.py a.b=1 --ranks=2 +experiment=big", "untold", "fast is not in the file"),
        ("python x.py a.b=1 --ranks=2 actor/rollout=mine", "untold", "fast is not in the file"),
        (
            "python x.py a.b=1 --ranks=2 +actor/rollout@actor.rollout=mine",
            "untold",
            "fast is not in the file",
        ),
        ("python x.py a.b=1 --ranks=2 a=mine", "untold", "fast is not in the file"),
        ("python x.py --ranks=2 part@a.b=mine", "untold", "fast is not in the file"),
        ("python x.py a.b=1 --ranks=2 odd", "untold", "fast is not in the file"),
        ("python x.py a.b=1 --ranks=2 +h.i=1", "not-met", "fast is off"),
        ("python x.py $ARGS --ranks 2", "untold", "fast is not in the file"),
        ("python x.py --ranks 2 > $LOG", "not-met", "fast is off"),
        (
            "if true; then\n  A=(--ranks 2)\nelse\n  A=(--ranks 1)\nfi\nx --fast ${A[@]}",
            "untold",
            "in a branch",
        ),
        ("N=1\nif true; then\n  N=2\nfi\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("N=1\nN=$((N*2))\nx --fast --ranks $N", "untold", "ranks is $((N*2))"),
        ("--ranks 1 2 --fast", "met", "ranks is 1 2"),
        ("f() {\n  N=2\n}\nN=1\nf\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("N=1\nwhile true; do N=2; done\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("N=1\n[ -z $M ] && N=2\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("case $M in a|b) N=1 ;; *) N=2\nesac\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("cat <<E > f\nx --ranks 1 don't\nE\nx --fast --ranks 2", "met", "ranks is 2"),
        ("x --fast --ranks 2\nexit 0\nx --fast --ranks 1", "met", "ranks is 2"),
        ("x --fast --ranks 2\nx --fast --ranks 1", "untold", "in one command of several"),
        ("A=('--ranks 2')\nx --fast ${A[@]}", "met", "ranks is 2"),
        ("A=('--ranks 2')\nx --fast --other y \"${A[@]}\"", "not-met", "ranks is 1"),
        ('A=(--ranks 2) # it\'s\nx --fast "${A[@]}" "$@"', "met", "ranks is 2"),
        ("x --other y\\ --ranks\\ 2 --fast", "not-met", "ranks is 1"),
        ("set -- --fast\nx --ranks 2 $@", "untold", "fast is not in the file"),
        ("x --ranks 2 ${NEVER[@]}", "not-met", "fast is off"),
        ("bash y.sh --ranks 2", "untold", "fast is not in the file"),
        ("read N <<< 4\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("N=2 y\nx --fast --ranks ${N:-1}", "not-met", "ranks is 1"),
        # What may change a variable otherwise than by an assignment to its name.
        ("N=1\nIFS=, read -ra N <<< 4,5\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("N=1\nread -r $NAME <<< 4\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("read <<< 4\nx --fast --ranks ${REPLY:-1}", "untold", "ranks is ${REPLY:-1}"),
        ("N=1\nprintf -v N 2\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("N=1\ntypeset N=2\nx --fast --ranks $N", "met", "ranks is 2"),
        ("declare -i N=1+1\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("N=1\ndeclare -n M=N\nM=2\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("A=(--ranks 1)\nA[${I[0]}]=2\nx --fast ${A[@]}", "untold", "ranks is not"),
        ("declare -A A=([a]=--fast)\nx --ranks 2 ${A[@]}", "untold", "fast is not"),
        ("N=1\nalias x='x --cp 2'\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("N=1\ntrap 'N=2' DEBUG\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("IFS=,\nN=1\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("set -euo pipefail\nx --ranks 2 $@", "not-met", "fast is off"),
        ("N=1\ncommand -v y\nx --fast --ranks ${N} ${NEVER[@]}", "not-met", "ranks is 1"),
        ("source nowhere.sh || exit 1\nx --ranks 2 ${M[@]}", "untold", "fast is not"),
        # Who starts it may add to it.
        ("x() { command x --fast $@; }\nx --ranks 2", "untold", "in one command of several"),
        ("x() {\n  y\n}\nx --ranks 2", "untold", "fast is not in the file"),
        ('function go {\n "$@" --fast\n}\ngo x --ranks 2', "untold", "in one command of several"),
        ("./start x --ranks 2", "untold", "fast is not in the file"),
        ("python3 -m mine --ranks 2", "untold", "fast is not in the file"),
        ("exec torchrun --nproc-per-node 8 x.py --ranks 2\nx --fast", "not-met", "fast is off"),
        ("a.ranks=2", "untold", "fast is not in the file"),
        ("a.ranks=2 --config-name=big", "not-met", "fast is off"),
        ("x --ranks=2 +fast.y=1 a.b=1,2 'a.c=choice(1,2)'", "not-met", "fast is off"),
        ("x a.fast=false,true --ranks=2", "untold", "a.fast is false,true"),
        ("x a.fast= --ranks=2", "untold", "a.fast is ''"),
        ("x a.fast=none --ranks=2", "untold", "a.fast is none"),
        ("x --ranks=2 ~a.b a.b=1", "untold", "fast is not in the file"),
        ("x --ranks 2 --fast 1", "untold", "fast is 1"),
        # What is not known behind a value, or a switch, may be any number of settings.
        ("x --ranks 2 --other y ${F:+--fast ${F}}", "untold", "fast is not in the file"),
        ("x --ranks 2 --deep $MORE", "untold", "fast is not in the file"),
        ("x --ranks 2 --no-deep ${MORE}", "untold", "fast is not in the file"),
        ("x --ranks 2 --engine-enable-all $MORE", "untold", "fast is not in the file"),
        ("x --ranks 2 --depth $MORE", "not-met", "fast is off"),
        # The last one counts.
        ("x --fast --ranks 1 $MORE", "untold", "ranks is 1 unless $MORE sets it"),
        ("x --fast --ranks 1 --deep $MORE", "untold", "ranks is 1 unless $MORE sets it"),
        ("x $MORE --fast --ranks 1", "not-met", "ranks is 1"),
        ("x --fast --ranks 2 $MORE --ranks 1", "not-met", "ranks is 1"),
        # Hydra takes its groups first.
        ("x a.fast=true a.ranks=1 optim=big", "not-met", "a.ranks is 1"),
        ("x --ranks 2 --other y ${D}/${E}", "not-met", "fast is off"),
        ("A=(--ranks `expr 4 - 2`)\nx --fast ${A[@]}", "untold", "ranks is `expr 4 - 2`"),
        ("A=(--fast) &\nx --ranks 2 ${A[@]}", "untold", "fast is True in a branch"),
        ("A+=' --ranks 2'\nx --other y $A", "untold", "fast is not in the file"),
        ("x --fast --other y --depth 1\nx --ranks 2", "untold", "ranks is 2 in one command of several"),
        ("y --fast\nx --ranks 2 --depth 1 --other y", "not-met", "fast is off"),
        (': "${N:=4}"\nx --fast --ranks ${N:-1}', "met", "ranks is 4"),
        ("if y; then : ${N:=4}; fi\nx --fast --ranks ${N:-1}", "untold", "ranks is ${N:-1}"),
        ("time N=2\nx --fast --ranks $N", "met", "ranks is 2"),
        ("N=1\ntime -p N=2\nx --fast --ranks $N", "met", "ranks is 2"),
        ('N=1\n"export" N=2\nx --fast --ranks $N', "met", "ranks is 2"),
        ("N=1\n: $((N=2))\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("N=2\n: $((N * 8 == 16))\nx --fast --ranks $N", "met", "ranks is 2"),
        # A declaration whose name is quoted, or not known.
        ('N=1\nexport "N=4"\nx --fast --ranks $N', "met", "ranks is 4"),
        ("N=1\nexport 'N=4'\nx --fast --ranks $N", "met", "ranks is 4"),
        ('N=1\ndeclare -x "N=4"\nx --fast --ranks $N', "met", "ranks is 4"),
        ('N=1\nreadonly "N"=4\nx --fast --ranks $N', "met", "ranks is 4"),
        ("N=1\nexport N\\=4\nx --fast --ranks $N", "met", "ranks is 4"),
        ('M=4\nexport "N=$M"\nx --fast --ranks $N', "met", "ranks is 4"),
        ("M=4\nexport 'N=$M'\nx --fast --ranks $N", "untold", "ranks is $M"),
        ("N=1\ndeclare \"-i\" 'N=1+1'\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("A=(--ranks 1)\ndeclare 'A[\"x=y\"]=3'\nx --fast ${A[@]}", "untold", "ranks is not"),
        ("N=1\nexport $(grep -v '^#' job.env | xargs)\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("N=1\nexport `cat job.env`\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("export $(cat job.env)\nx --fast --ranks ${N:-1}", "untold", "ranks is ${N:-1}"),
        ('N=1\nV=N\ndeclare "$V=4"\nx --fast --ranks $N', "untold", "ranks is $N"),
        ("N=1\nV=N\nexport $V=4\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("N=1\nexport {M,N}=4\nx --fast --ranks $N", "untold", "ranks is $N"),
        ("declare $FLAGS N=1+1\nx --fast --ranks $N", "untold", "ranks is $N"),
        ('N=1\nexport M="$V=4" P=$(y)\nx --fast --ranks $N', "not-met", "ranks is 1"),
        ("declare -a 'N=(3 4)'\nx --fast --ranks $N", "untold", "ranks is $N"),
        # A document within an expansion.
        (
            "N=1\nX=$(cat <<EOF\nit's one\nEOF\n)\nN=4\nY=$(cat <<EOF\nit's two\nEOF\n)\nx --fast --ranks $N",
            "met",
            "ranks is 4",
        ),
        ("X=\"$(cat <<'E' | y 'a b'\n:) \" (\nE\n)\"\nx --fast --ranks 2", "met", "ranks is 2"),
        ("X=$(cat <<-E <<\\F\n\t'\n\tE\n'\nE\n(\nF\n)\nx --fast --ranks 2", "met", "ranks is 2"),
        ("cat <<\\E\nit's\nE\nx --fast --ranks 2", "met", "ranks is 2"),
        ("X=$((1 << 2\n))\nx --fast --ranks 2", "met", "ranks is 2"),
        ('X=$(y <<< "it\'s")\nY=$((1<<2))\nx --fast --ranks 2 --other "it\'s"', "met", "ranks is 2"),
        ("N=2\nY=$((1 <<\nN))\nx --fast --ranks $N", "met", "ranks is 2"),
        # Left open by a template.
        ("x --fast --ranks {{other}}", "untold", "ranks is {{other}} in the file"),
        ("x --fast --ranks @OTHER@", "untold", "ranks is @OTHER@ in the file"),
        ("x --fast --ranks %OTHER%", "untold", "ranks is %OTHER% in the file"),
        ("x --fast --ranks '<OTHER>'", "untold", "ranks is <OTHER> in the file"),
    ],
)
def test_a_command_line(text: str, word: str, why: str, tmp_path: Path) -> None:
    found = said(settings(tmp_path, text))
    assert found.word == word
    assert why in found.why


def test_what_is_sourced_beside_the_script_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.sh").write_text("MORE=(--fast)\n")
    found = settings(tmp_path, 'source "${HERE}/model.sh"\npython x.py --ranks 2 ${MORE[@]}')
    assert found.elsewhere == ()
    assert said(found).word == "met"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("N=1\nreturn 0\nN=2\n", "not-met"),
        ("N=1\n[ -n $DONE ] && return\nN=2\n", "untold"),
        ("f() {\n  return 1\n}\nN=2\n", "met"),
    ],
)
def test_a_file_that_is_sourced_may_end_early(text: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "more.sh").write_text(text)
    assert said(settings(tmp_path, "source more.sh\nx --fast --ranks $N")).word == word


@pytest.mark.parametrize(
    ("text", "more", "word"),
    [
        ("N=1\n[ -n $M ] && source more.sh\nx --fast --ranks $N", "N=2\n", "untold"),
        ("N=1\n[[ -n $M ]] && . more.sh\nx --fast --ranks $N", "A=1\nN=2\n", "untold"),
        ("N=1\ntrue || source more.sh\nx --fast --ranks $N", "A=1; N=2\n", "untold"),
        ("N=1\nsource more.sh | tee log\nx --fast --ranks $N", "A=1\nN=2\n", "untold"),
        ("[ -n $M ] && source more.sh\nx --fast --ranks 2", "A=1\nexit 1\n", "met"),
        # What stands behind it is chained as before, and its first command is not.
        ("N=1\nsource more.sh && N=2\nx --fast --ranks $N", "A=1\n", "untold"),
        ("N=1\nsource more.sh || exit 1\nx --fast --ranks $N", "N=2\n", "met"),
    ],
)
def test_a_file_that_is_sourced_perhaps(text: str, more: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "more.sh").write_text(more)
    assert said(settings(tmp_path, text)).word == word


def test_a_variable_with_a_default_is_taken_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANKS", "8")
    found = settings(tmp_path, "x --fast --ranks ${RANKS:-1}")
    assert said(found).why == "ranks is 8 and fast is on"


@pytest.mark.parametrize("name", ["/opt/lib/models/big/model.sh", "$HOME/models/big/model.sh"])
def test_what_is_sourced_by_its_place_in_an_image_is_found_above_the_script(
    name: str, tmp_path: Path
) -> None:
    model = tmp_path / "models/big/model.sh"
    model.parent.mkdir(parents=True)
    model.write_text("MORE=(--fast)\n")
    (tmp_path / "runs").mkdir()
    found = settings(tmp_path, f"source {name}\nx --ranks 2 ${{MORE[@]}}", "runs/run.sh")
    assert said(found).word == "met"


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("run.sh", "\ufeff--ranks 2 --fast", "met"),
        ("run.sh", "python x.py --ranks 2 \\\r\n  --fast\r\n", "met"),
        ("run.yaml", "\ufeffranks: 2\nfast: true", "met"),
        ("run.yaml", "job:\n  ranks: 2\n  fast: false\n", "not-met"),
        ("run.yaml", "job:\n  ranks: 2\n  fast: None\n", "untold"),
        ("run.yaml", "n: 2\nranks: ${n}\nfast: true\n", "met"),
        ("run.yaml", "n: ???\nranks: ${oc.env:N}\nfast: true\n", "untold"),
        ("run.yaml", "defaults:\n- other\nranks: 2\n", "untold"),
        ("run.yaml", "- a.ranks=2\n- a.fast=true\n", "met"),
        ("run.yaml", "- a.ranks=2\n- a.fast='false'\n", "untold"),
        ("run.yaml", "- a.ranks=2\n- +experiment=big\n", "untold"),
        ("run.yaml", "--ranks: 2\n--fast: true\n", "met"),
        ("run.yaml", "TEST_TYPE: x\nMODEL_ARGS:\n  --ranks: 2\n  --fast: true\n", "met"),
        ("run.json", '{"ranks": 2, "fast": true}', "met"),
        ("run.yaml", "ranks: 2\nargs: --fast\n", "untold"),
        ("run.yaml", "ranks: 2\nargs: [--fast, --more]\n", "untold"),
        ("run.yaml", "ranks: 2\nentrypoint: python x.py a.fast=true\n", "untold"),
        ("run.yaml", "common: &c {ranks: 2}\n<<: *c\nfast: true", "met"),
        ("run.yaml", "ranks: 2\nfast: true\nother: &o [1, [2, {b: *o}]]", "met"),
        ("run.yaml", "1: 2\nnull: 3\n2020-01-01: x\nranks: 2\nfast: true", "met"),
    ],
)
def test_other_ways_to_write_settings(name: str, text: str, word: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    assert said(settings(tmp_path, text, name)).word == word


def test_a_script_that_takes_all_from_elsewhere_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """A file whose name is not known may set the arrays anew that stand above it."""
    text = "A=(--ranks 2)\nBASE=1 source $(name).sh\npython x.py --label y ${A[@]}"
    with pytest.raises(SettingsError, match=r"takes settings from .*: give the command line that it starts"):
        settings(tmp_path, text)


def test_overrides_are_of_the_configuration_that_hydra_names_beside_them(tmp_path: Path) -> None:
    overrides = tmp_path / "overrides.yaml"
    overrides.write_text("- a.ranks=2\n")
    found, elsewhere = settings_file.read(str(overrides), PROGRAMS)
    assert (found, bool(elsewhere)) == ({"a.ranks": 2}, True)
    (tmp_path / "hydra.yaml").write_text("hydra: {job: {config_name: big}}\n")
    assert settings_file.read(str(overrides), PROGRAMS) == ({"a.ranks": 2, "config_name": "big"}, ())


def test_overrides_of_a_shell_script(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "python -m x --config-name='a.yaml' \
  +a.b.c=2 'a.d=[1,2]' ++a.e=null x=1 a.f=$Y "
        "a.k=gae,grpo 'a.c=choice(1,2)' a.none=None a.lower=none \"a.quoted='null'\" a.no=\\'False\\' "
        "a.in=[None] a.empty= a.blank=\\'\\' a.table={} a.filled={b:1} --flag None --kind none --label= "
        "'a.odd=\"x\"y' $@"
    )
    found, _ = settings_file.read(str(tmp_path / "run.sh"), PROGRAMS)
    known = {"config_name": "a.yaml", "a.b.c": 2, "a.d": (1, 2), "a.e": None, "flag": None, "kind": "none"}
    known["a.odd"] = '"x"y'
    # To Hydra, these are texts.
    known |= {"a.none": "None", "a.lower": "none", "a.quoted": "null", "a.no": "False", "a.in": ("None",)}
    # Of a sweep each job has another value, and upstreams differ in what they make of nothing.
    unsure = {"a.f": "$Y", "a.k": "gae,grpo", "a.c": "choice(1,2)", "a.empty": "''", "a.blank": "''"}
    unsure |= {"a.table": "{}", "a.filled": "{b:1}"}
    assert found == {**known, "a.filled.b": 1, "label": True, **unsure}
    assert {key for key, value in found.items() if isinstance(value, Open)} == {*unsure}


def test_unknown_settings_are_named_with_the_nearest(tmp_path: Path) -> None:
    known = "--depth 4 --other y --no-depth --computed 1 --bias --disable-offset"
    found = settings(tmp_path, f"--ranks 2 --rnks 3 --zzz --offs {known}")
    assert found.unknown() == {"rnks": "ranks", "zzz": "", "offs": ""}
    assert not found.missing


@pytest.mark.parametrize(
    ("condition", "word"),
    [(among("other", "x"), "met"), (above("depth", 3), "untold"), (given("computed"), "untold")],
)
def test_a_default_of_the_installation_counts_where_no_other_is_known(
    condition: Condition, word: str, tmp_path: Path
) -> None:
    found = said(settings(tmp_path, "--ranks 2"), condition)
    assert (found.word, "upstream's default" in found.why) == (word, word == "met")


@pytest.mark.parametrize(
    ("condition", "value", "word"),
    [
        (above("k", 0), True, "untold"),
        (above("k", 0), None, "not-met"),
        (among("k", 1), True, "untold"),
        (among("k", True), 1, "untold"),
        (among("k", True), "yes", "untold"),
        (among("k", True), None, "not-met"),
        (other("k", "auto"), True, "untold"),
        (among("k", "*.fast.*"), "a.fast.b", "met"),
        (other("k", 1), 1.0, "not-met"),
        (other("k", 1), 2, "met"),
        (given("k"), None, "not-met"),
        (given("k"), 0, "not-met"),
        (given("k"), 1, "met"),
        (switched("k"), False, "not-met"),
        (beyond("a tool is called"), 1, "untold"),
    ],
)
def test_conditions(condition: Condition, value: Any, word: str) -> None:
    assert said(having(k=value), condition).word == word


YES, NO, PERHAPS = above("ranks", 1), above("ranks", 2), beyond("who knows")


@pytest.mark.parametrize(
    ("when", "word"),
    [
        (((NO,), (YES,)), "met"),
        (((PERHAPS,), (YES,)), "met"),
        (((NO,), (PERHAPS,)), "untold"),
        (((PERHAPS, NO),), "not-met"),
        (((PERHAPS, YES),), "untold"),
        ((), "met"),
    ],
)
def test_one_alternative_is_enough_and_one_condition_excludes(when: Any, word: str) -> None:
    assert having(ranks=2).answer(a_defect().replace(when=when)).word == word


@pytest.mark.parametrize(
    ("version", "word", "why"),
    [
        ("1.9.4", "met", "lib is 1.9.4"),
        ("2.0.0rc1", "not-met", "lib is 2.0.0rc1"),
        ("2.1", "not-met", "lib is 2.1"),
        ("", "untold", "lib is before 2.0"),
    ],
)
def test_what_a_release_brings_is_told_by_the_release(version: str, word: str, why: str) -> None:
    found = having().answer(a_defect().replace(when=((before("2.0"),),)), version)
    assert (found.word, found.why) == (word, why)


def test_an_option_that_the_release_lacks_is_not_set(tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/whole.yaml").write_text("trainer: {steps: 1}")
    for path, word in ((), "met"), (("lib/gone.yaml",), "untold"):
        dialect = DIALECT.replace(sources=("lib/whole.yaml", *path))
        found = recognise("x", ({"ranks": 2}, ()), (dialect,), write(tmp_path).read)
        assert said(found, other("trainer.newer", True)).word == word
    assert said(found, other("elsewhere.newer", True)).word == "untold"


def test_settings_of_another_project_tell_nothing() -> None:
    assert said(having(DIALECT.replace(projects=("else",)), ranks=1)).word == "untold"


def test_a_role_that_the_file_leaves_out_has_the_default_of_the_release() -> None:
    """One that is set for another role says nothing of it, unless the table says what all of them have."""
    found = having(DIALECT, **{"a.deep": True, "a.kind": "x"}).replace(
        options={"a.deep": False, "b.deep": False, "b.kind": "y", "b.aside.deep": 3}
    )
    shallow = said(found, among("deep", False))
    assert (shallow.word, shallow.why) == ("met", "b.deep is off, upstream's default")
    aside = found.replace(dialect=DIALECT.replace(aside={"deep": ("b.*",)}))
    assert said(aside, among("deep", False)).word == "not-met"
    for_all = found.replace(dialect=DIALECT.replace(defaults={"kind": "z"}))
    assert said(for_all, among("kind", "y")).word == "not-met"


BIG = DIALECT.replace(implies=(("name", "*big*", "ranks", 8),))


@pytest.mark.parametrize(
    ("values", "word", "why"),
    [
        ({"other": 1}, "not-met", "ranks is 1, upstream's default"),
        ({"name": "a-big-one"}, "met", "ranks is 8, as name is a-big-one and fast is on"),
        # What decides for all roles decides for one that is left out.
        ({"name": "big", "critic.ranks": 1}, "met", "ranks is 8, as name is big and fast is on"),
    ],
)
def test_one_setting_says_another(values: dict[str, Any], word: str, why: str) -> None:
    found = said(having(BIG, fast=True, **values))
    assert (found.word, found.why) == (word, why)


def with_aliases(levels: int) -> str:
    """Return a YAML of a few lines that has three times as many settings with each."""
    lines = ["a0: &a0 {ranks: 2}"]
    lines += [
        f"a{one}: &a{one} {{x: *a{one - 1}, y: *a{one - 1}, z: *a{one - 1}}}" for one in range(1, levels)
    ]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("run.sh", "x --ranks '2", "a quotation or a bracket in .* is not closed"),
        ("run.sh", "", "there are no settings"),
        ("run.sh", "echo hello\n", "there are no settings"),
        ("run.sh", "--unheard-of 1\n", "has no setting that overlay knows"),
        ("run.yaml", "wandb_version: 1\nranks: {value: 2}", "is written by wandb: give .hydra/config.yaml"),
        ("run.yaml", "", "there are no settings"),
        ("run.yaml", "42", "there are no settings"),
        ("run.yaml", "ranks: [2", "is not valid YAML"),
        ("run.yaml", "ranks: !!python/object:os.system x", "is not valid YAML"),
        ("run.yaml", "---\nranks: 1\n---\nranks: 2", "is not valid YAML"),
        ("run.yaml", "ranks: 2020-13-45", "is not valid YAML"),
        pytest.param("run.yaml", f"ranks: {'9' * 5000}", "is not valid YAML", id="digits"),
        ("run.yaml", "- {ranks: 2}\n- {ranks: 4}", "has its settings in a list of tables: give those of one"),
        (
            "run.yaml",
            "name: a\njobs:\n- {ranks: 2, b: 1}\n- {ranks: 4}",
            r"in a list of tables \(jobs\): give those of one",
        ),
        ("run.yaml", "ranks: &a {b: *a}", "contains itself"),
        pytest.param("run.yaml", "[" * 5000, "nested too deeply", id="brackets"),
        pytest.param("run.yaml", with_aliases(18), "more than 20000 settings", id="aliases"),
        pytest.param("run.sh", "--ranks 2 " * 500_000, "more than 4194304 characters", id="size"),
    ],
)
def test_what_cannot_be_settings_says_why(name: str, text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=why) as error:
        settings(tmp_path, text, name)
    assert name in str(error.value)


def test_a_list_of_tables_beside_the_settings_is_left_out(tmp_path: Path) -> None:
    lists = "defaults: [{a@b.a: c}, {d@b.d: e}, _self_]\nhooks: [{when: 1}]\n"
    (tmp_path / "run.yaml").write_text(f"{lists}ranks: 2\nmode: fast\n", encoding="utf-8")
    found, _ = settings_file.read(str(tmp_path / "run.yaml"), PROGRAMS)
    assert found == {"hooks": ("...",), "ranks": 2, "mode": "fast"}


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        settings_file.read(str(tmp_path / "nowhere"), PROGRAMS)


ENGINE = DIALECT.replace(
    marks=("*.fast",),
    implies=(("engine", "big", "ranks", 2), ("engine", "*", "ranks", ...)),
    whole={"config": ("ours*",)},
)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        # An override within a command is no assignment of the shell.
        ("run.sh", "A=(\n  engine=big\n  job.fast=True\n)\npython x.py ${A[@]}", "met"),
        ("run.sh", "python x.py job.fast=True \\\n  engine=big", "met"),
        ("run.yaml", "- engine=big\n- job.fast=True\n", "met"),
        # Beside what is not known no default is.
        ("run.sh", "python x.py job.fast=True engine=$E", "untold"),
        ("run.sh", "python x.py job.fast=True engine=odd", "untold"),
        ("run.sh", "python x.py job.fast=True --config=mine", "untold"),
        ("run.sh", "python x.py job.fast=True --config=$C", "untold"),
    ],
)
def test_what_stands_for_many_settings(name: str, text: str, word: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    assert said(settings(tmp_path, text, name, ENGINE)).word == word


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({}, "not-met"),
        ({"config": "mine.yaml"}, "untold"),
        ({"load_args": True}, "untold"),
        ({"config": None}, "not-met"),
    ],
)
def test_what_a_file_decides_is_not_told_by_what_is_given(more: dict[str, Any], word: str) -> None:
    dialect = DIALECT.replace(decided=(("config", "*", ()), ("load_args", "True", ("ranks",))))
    assert said(having(dialect, ranks=1, fast=True, **more)).word == word
