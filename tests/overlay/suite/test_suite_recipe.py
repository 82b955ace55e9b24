"""Recipes are data: what is wrong with one is one error that names file, key and value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from overlay.errors import SuiteError
from overlay.suite import recipe
from overlay.suite.source import excluded, expand

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
about = "It"
packages = ["it"]
include = ["tests/**/test_*.py"]
[[tests]]
sdist = "it==1.0"
"""

FIRST_SHIPPED = sorted(recipe.shipped())


@pytest.mark.parametrize("name", FIRST_SHIPPED)
def test_what_is_shipped_can_be_read(name: str) -> None:
    found = recipe.find(name)
    assert found.name == name
    # Nothing is quick that starts eight ranks for each file.
    assert bool(found.quick) == (found.ranks == 1)
    assert {*found.quick}.isdisjoint(name for group in found.exclude for name in group.files)


def test_the_recipes_of_the_issue_are_shipped() -> None:
    wanted = {"verl-0.8.0", "verl-0.9.1", "slime-0.2.4", "slime-0.3.1", "slime-0.3.1-on-0.2.4"}
    assert wanted <= {*FIRST_SHIPPED}


def test_a_recipe_is_read(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD + '[[known]]\ntest = "a::b*"\nreason = "it is so"\n')
    found = recipe.find(str(path))
    assert (found.name, found.packages, found.ranks, found.time_limit) == ("mine", ("it",), 1, 120)
    assert found.tests[0].sdist == "it==1.0"
    assert found.known[0].reason == "it is so"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD.replace("about", "abuot"), "unknown key 'abuot' = 'It'; the nearest: about"),
        ('colour = "red"\n' + GOOD, "unknown key 'colour' = 'red'"),
        (GOOD.replace('about = "It"\n', ""), "'about' is missing or empty"),
        (GOOD.replace('["it"]', "[]"), "'packages' is missing or empty"),
        (GOOD.replace('"It"', "3"), "about = 3 is not a text"),
        (GOOD.replace('["it"]', '"it"'), "packages = 'it' is not a list"),
        (GOOD.replace('["it"]', '["it;rm"]'), "packages[0] = 'it;rm' does not match"),
        (GOOD.replace("tests/**", "../x"), "include[0] = '../x/test_*.py' is not a path inside the tree"),
        (GOOD.replace("tests/**", "/etc"), "include[0] = '/etc/test_*.py' is not a path inside the tree"),
        (GOOD.replace("tests/**", "-p"), "include[0] = '-p/test_*.py' is not a path inside the tree"),
        ("ranks = 0\n" + GOOD, "ranks = 0 is not a whole number above 0"),
        ("ranks = true\n" + GOOD, "ranks = True is not a whole number above 0"),
        ('time_limit = "1"\n' + GOOD, "time_limit = '1' is not a whole number above 0"),
        (GOOD + 'git = "https://x"\n', "exactly one of sdist, checkout, git is needed"),
        (GOOD.replace("sdist", "paths"), "tests[0].paths = 'it==1.0' is not a list"),
        (GOOD.replace('sdist = "it==1.0"', 'checkout = "IT_REPO"'), "a repository needs a revision"),
        (GOOD + 'revision = "v1"\n', "an sdist has none"),
        (GOOD.replace("it==1.0", "it>=1"), "tests[0].sdist = 'it>=1' does not match"),
        (GOOD.replace('sdist = "it==1.0"', 'git = "ext::sh"\nrevision = "v1"'), "tests[0].git = 'ext::sh'"),
        (
            GOOD.replace('sdist = "it==1.0"', 'checkout = "IT"\nrevision = "--output=x"'),
            "tests[0].revision = '--output=x' does not match",
        ),
        (GOOD + 'paths = ["a/../../b"]\n', "tests[0].paths[0] = 'a/../../b' is not a path inside the tree"),
        (GOOD + "[variables]\nA = 1\n", "variables.A = 1 is not a text"),
        (GOOD + '[[exclude]]\nfiles = ["a"]\n', "it needs files and reason"),
        (GOOD + "[[tests", "cannot be read"),
        (GOOD + f"x = {'[' * 9999}", "cannot be read"),
        (GOOD + "x = 1\n" * 20000, "more than 65536 bytes"),
        (f"{'.'.join('a' * 2000)} = 1\n" + GOOD, "a line with more than 1000 dots"),
        (
            f"ranks = 0x{'f' * 9999}\n" + GOOD,
            "ranks = what has a number of thousands of digits is not a whole",
        ),
        (
            "ranks = 2147483648\n" + GOOD,
            "ranks = 2147483648 is not a whole number above 0 and below 2147483648",
        ),
        (f'packages = ["{"a." * 400}"]\n' + GOOD.replace("packages", "quick"), "...a.a.a.a."),
        (
            GOOD + f'[variables]\n{"A" * 4096} = "1"\n',
            "AAAA' is too long, or holds characters that do not print",
        ),
        (GOOD + 'paths = ["."]\n', "tests[0].paths[0] = '.' is not a path inside the tree"),
        # A separator of lines, and none of TOML.
        (GOOD + ".".join(["a", '"\u2028"'] * 600) + " = 1\n", "a line with more than 1000 dots"),
        (GOOD.replace("tests/**", "a\\u0000"), "holds characters that do not print"),
        (
            GOOD + '[variables]\n"A\\nB" = "1"\n',
            "the key 'variables.A\\nB' is too long, or holds characters that do not print",
        ),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(SuiteError) as caught:
        recipe.read(str(path))
    assert said in str(caught.value)
    assert str(path) in str(caught.value)


def test_the_nearest_recipe_is_named() -> None:
    with pytest.raises(SuiteError, match=r"there is no recipe 'verl-0\.8'; the nearest: verl-0\.8\.0"):
        recipe.find("verl-0.8")


def test_patterns_of_files(tmp_path: Path) -> None:
    for name in ("tests/test_a.py", "tests/x/test_b.py", "tests/x/y/test_c.py", "tests/x/other.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    everything = expand(str(tmp_path), ["tests/**/test_*.py"])
    assert everything == ["tests/test_a.py", "tests/x/test_b.py", "tests/x/y/test_c.py"]
    assert expand(str(tmp_path), ["tests/*.py", "tests/x/other.py"]) == [
        "tests/test_a.py",
        "tests/x/other.py",
    ]
    groups = [
        recipe.Excluded(files=("tests/x/**/*.py",), reason="one"),
        recipe.Excluded(files=("**/*.py",), reason="two"),
    ]
    assert excluded(str(tmp_path), everything, groups) == {
        "tests/test_a.py": "two", "tests/x/test_b.py": "one", "tests/x/y/test_c.py": "one",
    }  # fmt: skip
