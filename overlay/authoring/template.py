"""The texts of a new patch and of its test: `templates/`, and the sites that are to be replaced."""

from __future__ import annotations

import ast
import builtins
import os
from string import Template

from overlay.authoring.lint import PLACEHOLDER
from overlay.base.record import Record
from overlay.deciding.conditions import obstacle
from overlay.errors import SelectionError
from overlay.reading.shape import split_site

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overlay.reading.source import Tree

_FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "templates")
_LINE = 110

_FACTORY = '''
def make_{name}(original: Callable[..., Any], module: ModuleType) -> Callable[..., Any]:
    """Build `{name}`: TODO: what it promises, as a property, with shapes and units."""

{head}
        raise NotImplementedError("TODO: what takes its place; the original where upstream is right")

    return {name}
'''
_REPLACED = """
            replaced(_{name}, make_{maker}),"""


class Site(Record):
    """A function that is to be replaced."""

    site: str
    #: As they stand in a definition, each of type `Any`.
    parameters: tuple[str, ...]


#: What stands for a site that nobody has named yet.
UNKNOWN = Site(site=f"{PLACEHOLDER}.module:function", parameters=("*args: Any", "**kwargs: Any"))


def read_site(site: str, tree: Tree) -> Site:
    """Return a site with the parameters of the function that stands there.

    Raises:
        SelectionError: There is no such function, or it cannot be replaced.
        SourceError: Its source cannot be read.

    """
    module, qualname = split_site(site)
    if not qualname or tree.source(module) is None or not tree.has(site):
        raise SelectionError(
            f"{site!r} is no function here: name one as module:qualname, and with --site where to look"
        )
    functions = [node for node in tree.nodes(tree.chain(site)[-1]) if isinstance(node, ast.FunctionDef)]
    wrong = obstacle(site, tree) or ("" if functions else f"{site} is no function that Python code defines")
    if wrong:
        raise SelectionError(wrong)
    return Site(site=site, parameters=tuple(_parameters(functions[-1].args)))


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    for number, (argument, default) in enumerate(zip(positional, defaults, strict=True), start=1):
        yield _parameter(argument, default)
        if number == len(arguments.posonlyargs):
            yield "/"
    if arguments.vararg:
        yield f"*{arguments.vararg.arg}: Any"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument, default)
    if arguments.kwarg:
        yield f"**{arguments.kwarg.arg}: Any"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    return f"{argument.arg}: Any" + (f" = {ast.unparse(_InModule().visit(default))}" if default else "")


class _InModule(ast.NodeTransformer):
    """Writes the names in a default, which are those of the upstream's module, as a factory finds them."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return node if hasattr(builtins, node.id) else ast.Attribute(ast.Name("module"), node.id)


class Draft(Record):
    """What is known of a patch before anybody has written it."""

    id: str
    #: The package that its folder will be.
    module: str
    #: The name of the project's constant in `overlay.compat.projects`.
    project: str
    #: What is to be replaced, at least one.
    sites: tuple[Site, ...]
    #: Where upstream discusses it, `owner/repo#number`; empty if nobody has said so yet.
    upstream: str
    #: The path of its test.
    test: str


def patch_texts(draft: Draft) -> dict[str, str]:
    """Return the texts of a patch's folder, by the names of the files."""
    names = _names(draft.sites)
    imports = [
        f"from overlay.compat.projects import {draft.project}",
        "from overlay.patch import Patch, one_target, replaced, variant",
        _import(f"{draft.module}.fix", [f"make_{name}" for name in names]),
    ]
    init = _fill(
        "init.txt",
        id=draft.id,
        imports="\n".join(sorted(imports)),
        project=draft.project,
        upstream=draft.upstream or f"{PLACEHOLDER}: owner/repo#number",
        test=draft.test,
        sites="\n".join(
            _short(f'_{name.upper()} = "{site.site}"') for name, site in zip(names, draft.sites, strict=True)
        ),
        replaced="".join(_REPLACED.format(name=name.upper(), maker=name) for name in names),
    )
    fix = _fill(
        "fix.txt",
        id=draft.id,
        factories="\n".join(
            _FACTORY.format(name=name, head=_head(name, site.parameters))
            for name, site in zip(names, draft.sites, strict=True)
        ),
    )
    return {"__init__.py": init, "fix.py": fix, "contract.py": _fill("contract.txt", id=draft.id)}


def test_text(patch: str, module: str) -> str:
    """Return the text of the test of the patch that a package holds."""
    imports = [
        f"from {module} import PATCH",
        f"from {module}.contract import wrong",
        "from overlay.testing import applied, assert_form",
    ]
    return _fill("test.txt", id=patch, imports="\n".join(sorted(imports)))


def _import(module: str, names: Sequence[str]) -> str:
    """Return the import of names, in one line or in as many as it takes."""
    line = f"from {module} import {', '.join(sorted(names))}"
    if len(line) <= _LINE:
        return line
    inside = "".join(f"    {name},\n" for name in sorted(names))
    return f"from {module} import (\n{inside})"


def _fill(template: str, **words: str) -> str:
    with open(os.path.join(_FOLDER, template), encoding="utf-8") as file:
        return Template(file.read()).substitute({name: word.strip("\n") for name, word in words.items()})


def _names(sites: Sequence[Site]) -> list[str]:
    """Return a name for each site: that of its function, with more in front of it where two have one."""
    names: list[str] = []
    for site in sites:
        module, qualname = split_site(site.site)
        parts = [*module.split("."), *qualname.split(".")]
        choices = ("_".join(parts[-count:]).strip("_").lower() for count in range(1, len(parts) + 1))
        names.append(next(name for name in choices if name not in names))
    return names


def _short(line: str) -> str:
    """Return an assignment as it is, or over three lines."""
    name, _, value = line.partition(" = ")
    return line if len(line) <= _LINE else f"{name} = (\n    {value}\n)"


def _head(name: str, parameters: Sequence[str]) -> str:
    """Return the first line of a definition, or as many as it takes."""
    line = f"    def {name}({', '.join(parameters)}) -> Any:"
    if len(line) <= _LINE:
        return line
    inside = "".join(f"        {parameter},\n" for parameter in parameters)
    return f"    def {name}(\n{inside}    ) -> Any:"
