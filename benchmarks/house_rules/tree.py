"""The source tree as the counts of `benchmarks.house` see it: parsed modules, and what each imports.

Nothing is imported or run here; a tree that does not work can be counted too.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGES = ("transports", "collectives", "pipelined", "apps")
PLUG_IN_FOLDERS = (
    "transports",
    "transports.codecs",
    "collectives.algorithms.all_gather",
    "collectives.algorithms.all_reduce",
    "collectives.algorithms.all_to_all",
    "collectives.algorithms.reduce_scatter",
    "pipelined.schedules",
    "pipelined.commands",
)
"""Folders of files that may be registered plug-ins."""
REGISTRY = "registry"
"""The module of such a folder that has the table. Without it, a plug-in is a file without an underscore."""


@dataclass(frozen=True)
class Module:
    """One file.

    Args:
        name: its dotted name; a folder's `__init__` has the folder's.
        path: relative to the root.
    """

    name: str
    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def is_face(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def is_entrance(self) -> bool:
        """Whether it is an `__init__` or a `__main__`, which belong to their folder."""
        return self.path.stem in ("__init__", "__main__")

    @property
    def folder(self) -> str:
        """Dotted name of the folder that it lies in."""
        return self.path.parent.as_posix().replace("/", ".")

    @cached_property
    def _nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    def nodes(self, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
        """All nodes of these kinds, nested ones too."""
        return (node for node in self._nodes if isinstance(node, kinds))


class Tree:
    """The modules below some packages, by name.

    Raises:
        SyntaxError: a file cannot be parsed, when it is first looked at.
    """

    def __init__(self, root: Path, packages: Sequence[str] = PACKAGES):
        self._root = root
        self.modules: Mapping[str, Module] = {module.name: module for each in packages for module in self._below(each)}

    def __iter__(self) -> Iterator[Module]:
        return iter(self.modules.values())

    def _below(self, package: str) -> Iterator[Module]:
        for path in sorted((self._root / package).rglob("*.py")):
            inside = path.relative_to(self._root)
            yield Module(_dotted(inside), inside, path.read_text())

    @cached_property
    def tests(self) -> Sequence[Module]:
        """The modules of the tests, of which only language counts."""
        return list(self._below("tests"))

    @cached_property
    def benchmarks(self) -> Sequence[Module]:
        """The modules of the benchmarks, of which only language counts."""
        return list(self._below("benchmarks"))

    @cached_property
    def imports(self) -> Mapping[str, frozenset[str]]:
        """By module the modules that it imports, in functions and under TYPE_CHECKING too.

        A name taken from a folder's face is an import of the face; that a folder's face runs before its modules is not.
        """
        return {module.name: frozenset(self._imported(module)) - {module.name} for module in self}

    @cached_property
    def importers(self) -> Mapping[str, frozenset[str]]:
        """By module the modules that use it. Through a face, the one that takes the name is the user, not the face."""
        users = defaultdict(set)
        for module in self:
            for name in (name for name, _ in self._named(module)) if not module.is_face else ():
                users[name].add(module.name)
        return {name: frozenset(users[name] - {name}) for name in self.modules}

    def _imported(self, module: Module) -> Iterator[str]:
        return (taken_from for _, taken_from in self._named(module))

    def _named(self, module: Module) -> Iterator[tuple[str, str]]:
        """For each import of this tree the module that defines what is taken, and the one that it is taken from."""
        for node in module.nodes(ast.Import, ast.ImportFrom):
            if isinstance(node, ast.Import):
                yield from ((alias.name, alias.name) for alias in node.names if alias.name in self.modules)
                continue
            source = _source(module, node)
            for alias in node.names:
                if f"{source}.{alias.name}" in self.modules:
                    yield f"{source}.{alias.name}", f"{source}.{alias.name}"
                elif source in self.modules:
                    yield self._definer(source, alias.name), source

    def _definer(self, source: str, name: str) -> str:
        """The module that a face takes a name from, through further faces; any other module defines its own."""
        module = self.modules[source]
        for node in module.tree.body if module.is_face else ():
            if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
                named = _source(module, node)
                if named in self.modules and named != source:
                    return self._definer(named, name)
        return source

    @cached_property
    def plug_ins(self) -> frozenset[str]:
        """The registered plug-ins, as dotted names of modules or folders."""
        return frozenset(f"{folder}.{name}" for folder in PLUG_IN_FOLDERS for name in self._plug_ins_of(folder))

    def _plug_ins_of(self, folder: str) -> set[str]:
        stems = self.entries(folder)
        registry = self.modules.get(f"{folder}.{REGISTRY}")
        if registry is None:
            return {stem for stem in stems if not stem.startswith("_")}
        return stems & {word for text in _table_strings(registry.tree) for word in re.findall(r"\w+", text)}

    def entries(self, folder: str) -> set[str]:
        """The modules and folders that lie in a folder, without `__init__` and `__main__`."""
        prefix = f"{folder}."
        below = {name.removeprefix(prefix).split(".")[0] for name in self.modules if name.startswith(prefix)}
        return below - {"__main__"}

    @property
    def folders(self) -> list[str]:
        return sorted({module.folder for module in self})


def _dotted(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _source(module: Module, node: ast.ImportFrom) -> str:
    """The dotted name after `from`."""
    if not node.level:
        return node.module or ""
    base = module.folder.split(".")
    base = base[: len(base) - node.level + 1]
    return ".".join([*base, *([node.module] if node.module else [])])


def _table_strings(tree: ast.Module) -> Iterator[str]:
    """The strings in the literal tables that a module assigns at its top level."""
    for statement in tree.body:
        value = statement.value if isinstance(statement, ast.Assign | ast.AnnAssign) else None
        if value is not None:
            nodes = ast.walk(value)
            yield from (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
