"""The text of a new patch and of its test: `templates/`, and the sites that are to be replaced."""

from __future__ import annotations

import ast
import builtins
import os
from string import Template

from overlay.authoring.lint import PLACEHOLDER
from overlay.base.record import Record
from overlay.deciding.conditions import obstacle
from overlay.errors import SelectionError
from overlay.reading.origin import import_chain
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
_KNOWN = """
                        Known(
                            site=_{name},
                            digests=("TODO: what `overlay digest` prints for each release that was tested",),
                        ),"""
_REPLACEMENT = """
                        Replacement(
                            site=_{name},
                            make=make_{maker},
                        ),"""


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
        msg = f"{site!r} is no function here: name one as module:qualname, and with --site where to look"
        raise SelectionError(msg)
    functions = [
        node for node in tree.nodes(import_chain(site, tree)[-1]) if isinstance(node, ast.FunctionDef)
    ]
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


def patch_text(patch: str, project: str, sites: Sequence[Site], upstream: str, test: str) -> str:
    """Return the text of a patch file.

    Args:
        patch: The patch's id.
        project: The name of the project's constant in `overlay.compat.projects`.
        sites: What is to be replaced, at least one.
        upstream: Where upstream discusses it, `owner/repo#number`; empty if nobody has said so yet.
        test: The path of the patch's test.

    """
    names = _names(sites)
    return _fill(
        "patch.txt",
        id=patch,
        project=project,
        upstream=upstream or f"{PLACEHOLDER}: owner/repo#number",
        test=test,
        factories="\n".join(
            _FACTORY.format(name=name, head=_head(name, site.parameters))
            for name, site in zip(names, sites, strict=True)
        ),
        sites="\n".join(
            _short(f'_{name.upper()} = "{site.site}"') for name, site in zip(names, sites, strict=True)
        ),
        shape="".join(_KNOWN.format(name=name.upper()) for name in names),
        replacements="".join(_REPLACEMENT.format(name=name.upper(), maker=name) for name in names),
    )


def test_text(patch: str, module: str) -> str:
    """Return the text of the test of the patch that a module holds."""
    imports = sorted([f"from {module} import PATCH", "from overlay.testing import applied, assert_form"])
    return _fill("test.txt", id=patch, imports="\n".join(imports))


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
