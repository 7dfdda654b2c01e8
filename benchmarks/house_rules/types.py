"""Types as the counts of `benchmarks.house` read them from syntax: aliases, and annotations of callables."""

import ast
import re

from benchmarks.house_rules.tree import Tree

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def callable_names(tree: Tree) -> frozenset[str]:
    """Names that stand for a callable type anywhere in the tree: aliases of Callable, and protocols with `__call__`."""
    found = {"Callable"}
    for module in tree:
        for statement in module.tree.body:
            value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
            if not isinstance(value, ast.Constant) and is_callable(value, found):
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                found |= {target.id for target in targets if isinstance(target, ast.Name)}
            if isinstance(statement, ast.ClassDef) and any("Protocol" in ast.unparse(b) for b in statement.bases):
                if any(isinstance(each, FUNCTIONS) and each.name == "__call__" for each in statement.body):
                    found.add(statement.name)
    return frozenset(found)


def alias_name(node: ast.stmt) -> str | None:
    """The name of a type alias of a module's top, such as `Work = Callable[[], None]`; None: it is something else."""
    match node:
        case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation):
            return name if node.value and "TypeAlias" in ast.unparse(annotation) else None
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp(op=ast.BitOr())):
            return name if re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", name) else None
    return None


def is_callable(annotation: ast.expr | None, names: frozenset[str] | set[str]) -> bool:
    """Whether an annotation is a callable or None; a table of callables is not."""
    match annotation:
        case ast.Constant(value=str(text)):
            return is_callable(ast.parse(text, mode="eval").body, names)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in names
        case ast.Subscript(value=value):
            return is_callable(value, names)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return is_callable(left, names) or is_callable(right, names)
    return False
