"""The counts of `benchmarks.house` in a source tree, each by its syntax: a number, its goal, and the places."""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.house_rules.texts import prose, strings, unknown_names
from benchmarks.house_rules.tree import PACKAGES, Module, Tree
from benchmarks.house_rules.types import FUNCTIONS, alias_name, callable_names, is_callable

MAX_ENTRIES = 20
SMALL_LINES = 60
MAX_FILE, MAX_FUNCTION = 300, 60
MAX_CALLABLES, MAX_POSITIONAL = 2, 5
WORDS = re.compile(r"\b(?:[Ww]ho|[Ww]hoever|[Ww]hose|[Nn]obody|[Ss]omebody|is none|[Tt]he one rule)\b")
"""The words that plain English avoids. `is None`, the test of Python, is not among them."""
BRANCHED = (ast.IfExp, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SLEEPS = ("asyncio.sleep", "time.sleep")


@dataclass(frozen=True)
class Count:
    """One figure.

    Args:
        goal: what it is to be at most; None where nothing is promised.
        places: what was counted, worst first, for people to look at.
    """

    name: str
    number: float
    goal: float | None
    places: list[str] = field(default_factory=list)

    @property
    def is_met(self) -> bool:
        return self.goal is None or self.number <= self.goal


def counts(tree: Tree) -> list[Count]:
    """All counts of a tree, in the order of the table."""
    return [count for counted in COUNTS for count in counted(tree)]


def full_folders(tree: Tree) -> Iterator[Count]:
    """The most entries of one folder, registered plug-ins not counted."""
    sizes = {
        folder: len([e for e in tree.entries(folder) if f"{folder}.{e}" not in tree.plug_ins])
        for folder in tree.folders
    }
    yield _most("entries of a folder", MAX_ENTRIES, sizes)


def paragraphs(tree: Tree) -> Iterator[Count]:
    """Small files that one other module uses: a paragraph of that module rather than a file."""
    found = [
        f"{module.path} ({module.lines} lines, used by {next(iter(tree.importers[module.name]))})"
        for module in tree
        if module.lines < SMALL_LINES and len(tree.importers[module.name]) == 1
        if not module.is_entrance and module.name not in tree.plug_ins
    ]
    yield Count(f"files under {SMALL_LINES} lines with one importer", len(found), 10, found)


def circles(tree: Tree) -> Iterator[Count]:
    """Groups of modules that import one another, whatever hides it."""
    found = [" <-> ".join(sorted(group)) for group in _knots(tree.imports) if len(group) > 1]
    yield Count("import circles", len(found), 0, found)


def constructors(tree: Tree) -> Iterator[Count]:
    """Classes made with more than two callables, by `__init__` or as a dataclass."""
    aliases = callable_names(tree)
    found = {
        f"{module.path}:{node.lineno} {node.name}": sum(is_callable(each, aliases) for each in _made_of(node))
        for module in tree
        for node in module.nodes(ast.ClassDef)
    }
    over = {place: number for place, number in found.items() if number > MAX_CALLABLES}
    yield Count(f"constructors with over {MAX_CALLABLES} callables", len(over), 0, _worst(over))


def parameters(tree: Tree) -> Iterator[Count]:
    """Functions with more than five parameters that are not keyword-only; `self` and `cls` do not count."""
    over = {
        f"{module.path}:{node.lineno} {node.name}": number
        for module in tree
        for node in module.nodes(*FUNCTIONS)
        if (number := len(_positional(node))) > MAX_POSITIONAL
    }
    yield Count(f"functions with over {MAX_POSITIONAL} parameters not keyword-only", len(over), 0, _worst(over))


def constructions(tree: Tree) -> Iterator[Count]:
    """Calls that make a dataclass of the tree from more than five positional arguments; a splat counts as one."""
    made = {node.name for module in tree for node in module.nodes(ast.ClassDef) if _is_dataclass(node)}
    over = {
        f"{module.path}:{node.lineno} {name}": len(node.args)
        for module in tree
        for node in module.nodes(ast.Call)
        if (name := ast.unparse(node.func).rpartition(".")[2]) in made and len(node.args) > MAX_POSITIONAL
    }
    yield Count(f"dataclasses made from over {MAX_POSITIONAL} positional arguments", len(over), 0, _worst(over))


def lengths(tree: Tree) -> Iterator[Count]:
    """The longest file and the longest function, in lines, and all lines."""
    yield _most("longest file, lines", MAX_FILE, {str(module.path): module.lines for module in tree})
    functions = {
        f"{module.path}:{node.lineno} {node.name}": node.end_lineno - node.lineno + 1
        for module in tree
        for node in module.nodes(*FUNCTIONS)
    }
    yield _most("longest function, lines", MAX_FUNCTION, functions)
    by_package = {package: sum(module.lines for module in _below(tree, package)) for package in PACKAGES}
    yield Count("lines", sum(by_package.values()), 40_000, _worst(by_package))


def pairings(tree: Tree) -> Iterator[Count]:
    """Assignments of several values at once of which one is a conditional, a lambda or a comprehension."""
    found = [
        f"{module.path}:{node.lineno}"
        for module in tree
        for node in module.nodes(ast.Assign)
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)
        if any(isinstance(value, BRANCHED) for value in node.value.elts)
    ]
    yield Count("assignments of several values, one a branch or a loop", len(found), 0, found)


def namesakes(tree: Tree) -> Iterator[Count]:
    """Names that classes of two files bear; apps may repeat a name."""
    files = defaultdict(list)
    for module in tree:
        for node in module.tree.body if module.name.split(".")[0] != "apps" else ():
            if isinstance(node, ast.ClassDef):
                files[node.name].append(str(module.path))
    found = [f"{name}: {', '.join(paths)}" for name, paths in sorted(files.items()) if len(paths) > 1]
    yield Count("class names in two places", len(found), 0, found)


def aliases(tree: Tree) -> Iterator[Count]:
    """Names of type aliases with several meanings: two definitions, or one beside a class; apps may repeat a name."""
    meanings = defaultdict(lambda: defaultdict(list))
    for module in tree:
        for node in module.tree.body if module.name.split(".")[0] != "apps" else ():
            if isinstance(node, ast.ClassDef):
                meanings[node.name]["class"].append(str(module.path))
            elif (name := alias_name(node)) is not None:
                meanings[name][ast.unparse(node.value)].append(str(module.path))
    found = {
        f"{name}: {', '.join(path for paths in texts.values() for path in paths)}"
        for name, texts in meanings.items()
        if len(texts) > 1
    }
    yield Count("type aliases with several meanings", len(found), 0, sorted(found))


def language(tree: Tree) -> Iterator[Count]:
    """Words that plain English avoids, per thousand words of docstrings and help, by package."""
    folders = {package: _below(tree, package) for package in PACKAGES}
    for package, modules in {**folders, "benchmarks": tree.benchmarks, "tests": tree.tests}.items():
        texts = [(module, text) for module in modules for text in prose(module)]
        words = sum(len(text.split()) for _, text in texts)
        by_file = defaultdict(int)
        for module, text in texts:
            by_file[str(module.path)] += len(WORDS.findall(text))
        found = {path: number for path, number in by_file.items() if number}
        rate = 1000 * sum(found.values()) / words if words else 0.0
        yield Count(f"avoided words per 1,000, {package}", round(rate, 2), 0.5, _worst(found))


def messages(tree: Tree) -> Iterator[Count]:
    """Avoided words in texts of code: errors, logs, reports. A text has a blank; what has none is a key or a name."""
    by_file = {
        str(module.path): sum(len(WORDS.findall(text)) for text in strings(module) if " " in text) for module in tree
    }
    found = {path: number for path, number in by_file.items() if number}
    yield Count("avoided words in messages", sum(found.values()), 0, _worst(found))


def test_names(tree: Tree) -> Iterator[Count]:
    """Avoided words in the names of tests."""
    found = [
        f"{module.path}:{node.lineno} {node.name}"
        for module in tree.tests
        for node in module.nodes(*FUNCTIONS)
        if node.name.startswith("test_") and WORDS.search(node.name.replace("_", " "))
    ]
    yield Count("test names with avoided words", len(found), 0, found)


def sleeps(tree: Tree) -> Iterator[Count]:
    """Sleeps of tests on the machine's clock, by file; sleeping for 0 seconds is a turn of the loop."""
    by_file = {
        str(module.path): sum(ast.unparse(node.func) in SLEEPS and _is_long(node) for node in module.nodes(ast.Call))
        for module in tree.tests
    }
    found = {path: number for path, number in by_file.items() if number}
    yield Count("sleeps of tests", sum(found.values()), 0, _worst(found))


def docstrings(tree: Tree) -> Iterator[Count]:
    """Names that a docstring states under `Args:` or `Attributes:`, and that the function or class does not have."""
    found = []
    packages = {node.name: node for module in tree for node in module.nodes(ast.ClassDef)}
    for module in (*tree, *tree.benchmarks, *tree.tests):
        classes = {**packages, **{node.name: node for node in module.nodes(ast.ClassDef)}}
        for node in module.nodes(*FUNCTIONS, ast.ClassDef):
            found += [f"{module.path}:{node.lineno} {node.name}: {name}" for name in unknown_names(node, classes)]
    yield Count("names in docstrings that the code lacks", len(found), 0, found)


COUNTS: Sequence[Callable[[Tree], Iterator[Count]]] = (
    full_folders,
    paragraphs,
    circles,
    constructors,
    parameters,
    constructions,
    lengths,
    pairings,
    namesakes,
    aliases,
    language,
    messages,
    test_names,
    sleeps,
    docstrings,
)


def _most(name: str, goal: int, sizes: dict[str, int]) -> Count:
    """A count that is the largest of some sizes; its places are those beyond the goal."""
    return Count(name, max(sizes.values(), default=0), goal, _worst({k: n for k, n in sizes.items() if n > goal}))


def _is_long(call: ast.Call) -> bool:
    """Whether a sleep may last longer than 0 seconds."""
    return not (call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0)


def _worst(sizes: dict[str, int]) -> list[str]:
    return [f"{place} ({number:,})" for place, number in sorted(sizes.items(), key=lambda item: (-item[1], item[0]))]


def _below(tree: Tree, package: str) -> list[Module]:
    return [module for module in tree if module.name.split(".")[0] == package]


def _knots(imports: dict[str, frozenset[str]]) -> list[set[str]]:
    """The strongly connected parts of a graph (Tarjan 1972), without recursion."""
    order, lowest, stack, on_stack, found = {}, {}, [], set(), []
    for root in imports:
        work = [(root, iter(sorted(imports[root])))] if root not in order else []
        while work:
            node, following = work[-1]
            if node not in order:
                order[node] = lowest[node] = len(order)
                stack.append(node)
                on_stack.add(node)
            for after in following:
                if after not in order:
                    work.append((after, iter(sorted(imports.get(after, ())))))
                    break
                if after in on_stack:
                    lowest[node] = min(lowest[node], order[after])
            else:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[node])
                if lowest[node] == order[node]:
                    at = stack.index(node)
                    found.append(set(stack[at:]))
                    on_stack.difference_update(stack[at:])
                    del stack[at:]
    return found


def _positional(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    found = [*node.args.posonlyargs, *node.args.args]
    return found[1:] if found and found[0].arg in ("self", "cls") else found


def _made_of(node: ast.ClassDef) -> Iterator[ast.expr | None]:
    """The annotations of what a class is made with: its `__init__`'s parameters, or a dataclass's fields."""
    for statement in node.body:
        if isinstance(statement, FUNCTIONS) and statement.name == "__init__":
            yield from (each.annotation for each in [*_positional(statement), *statement.args.kwonlyargs])
        if isinstance(statement, ast.AnnAssign) and _is_dataclass(node):
            yield statement.annotation


def _is_dataclass(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
