"""The texts of a source file, and the names that its docstrings state and its code has."""

import ast
import re
from collections.abc import Iterator, Mapping

from benchmarks.house_rules.tree import Module
from benchmarks.house_rules.types import FUNCTIONS

SECTION = re.compile(r"([A-Z]\w+):")
ENTRY = re.compile(r" {4}(\*{0,2}\w+(?:, \*{0,2}\w+)*): ")
"""The beginning of an entry: a name, or several that share a text."""
Classes = Mapping[str, ast.ClassDef]


def prose(module: Module) -> Iterator[str]:
    """Docstrings, of attributes too, and the texts that go into help."""
    for node in module.nodes(ast.Expr, ast.keyword):
        if isinstance(node, ast.Expr):
            yield from _text(node.value)
        elif isinstance(node, ast.keyword) and node.arg == "help":
            yield from _text(node.value)


def strings(module: Module) -> Iterator[str]:
    """All strings but docstrings; of an f-string its constant parts."""
    prose = {id(node.value) for node in module.nodes(ast.Expr)}
    for node in module.nodes(ast.Constant):
        if id(node) not in prose:
            yield from _text(node)


def unknown_names(node: ast.AST, classes: Classes) -> list[str]:
    """The names that the docstring of a function or a class states, and that its code does not have.

    Args:
        classes: by name; from these a class may inherit.
    """
    docstring = ast.get_docstring(node) if isinstance(node, (*FUNCTIONS, ast.ClassDef)) else None
    arguments = list(_stated(docstring or "", "Args"))
    attributes = list(_stated(docstring or "", "Attributes"))
    unknown = set(arguments) - _parameters(node, classes) if arguments else set()
    unknown |= set(attributes) - _attributes(node, classes) if attributes else set()
    return [name for name in (*arguments, *attributes) if name in unknown]


def _stated(docstring: str, wanted: str) -> Iterator[str]:
    """The names of one section, without stars."""
    section = ""
    for line in docstring.splitlines():
        if heading := SECTION.match(line):
            section = heading[1]
        elif section == wanted and (entry := ENTRY.match(line)):
            yield from (name.strip("*") for name in entry[1].split(", "))


def _parameters(node: ast.AST, classes: Classes) -> set[str]:
    """The names of what a function or a class is called with."""
    if not isinstance(node, ast.ClassDef):
        return {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
    for each in node.body:
        if isinstance(each, FUNCTIONS) and each.name in ("__init__", "__new__"):
            return _parameters(each, classes)
    return _fields(node).union(*(_parameters(base, classes) for base in _bases(node, classes)))


def _attributes(node: ast.AST, classes: Classes) -> set[str]:
    """The names of what a class has: fields, methods and properties, and what its code assigns."""
    nodes = list(ast.walk(node))
    named = {each.name for each in nodes if isinstance(each, FUNCTIONS)}
    assigned = {each.attr for each in nodes if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)}
    variables = {each.id for each in nodes if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return (named | assigned | variables).union(*(_attributes(base, classes) for base in _bases(node, classes)))


def _fields(node: ast.ClassDef) -> set[str]:
    declared = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
    return {target.id for target in declared if isinstance(target, ast.Name)}


def _bases(node: ast.AST, classes: Classes) -> list[ast.ClassDef]:
    """The classes of the tree from which a class inherits."""
    names = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in getattr(node, "bases", [])]
    return [classes[name] for name in names if name in classes and classes[name] is not node]


def _text(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
