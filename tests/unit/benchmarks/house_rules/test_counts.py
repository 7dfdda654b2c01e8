"""Each count of `benchmarks.house` on a tree of a few lines, where the answer is known."""

from textwrap import dedent

import pytest

from benchmarks import house
from benchmarks.house_rules.counts import COUNTS, Count, counts
from benchmarks.house_rules.tree import Tree


@pytest.fixture
def count(tmp_path):
    """Counts a tree that is given as the text of each file; returns the counts by name."""

    def counted(files):
        for path, text in files.items():
            file = tmp_path / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(dedent(text))
        return {each.name: each for each in counts(Tree(tmp_path))}

    return counted


def test_a_folder_counts_its_files_and_folders_but_not_its_entrances(count):
    names = ("__init__", "__main__", "one", "two", "room/__init__", "room/three")
    found = count({f"apps/{name}.py": "" for name in names})["entries of a folder"]
    assert (found.number, found.places) == (3, [])
    assert count({f"apps/more{n}.py": "" for n in range(18)})["entries of a folder"].places == ["apps (21)"]


@pytest.mark.parametrize("registry, expected", [(None, 1), ('KNOWN = {"gpipe": "gpipe", "zb": "pkg.zero_bubble"}', 2)])
def test_plug_ins_are_not_counted_as_entries(count, registry, expected):
    """By the table where there is one (then the table itself counts), else by the name that has no underscore."""
    folder = "pipelined/schedules"
    files = {f"{folder}/{name}.py": "" for name in ("__init__", "gpipe", "zero_bubble", "_own")}
    files |= {f"{folder}/registry.py": registry} if registry else {}
    assert count(files)["entries of a folder"].number == expected


def test_a_small_file_with_one_importer_is_counted_also_through_a_face(count):
    files = {
        "collectives/__init__.py": "from collectives.small import small, other\n",
        "collectives/small.py": "def small(): pass\n",
        "collectives/two.py": "",
        "collectives/long.py": "x = 1\n" * 60,
        "collectives/unused.py": "",
        "apps/a.py": "def late():\n    from collectives import small, two\n    import collectives.long\n" + "\n" * 60,
        "apps/b.py": "from collectives import two\n" + "\n" * 60,
    }
    found = count(files)["files under 60 lines with one importer"]
    assert found.places == ["collectives/small.py (1 lines, used by apps.a)"] and found.number == 1


def test_a_plug_in_is_no_paragraph_of_its_importer(count):
    table = "from transports import local\nTRANSPORTS = {'local': 'transports.local'}\n"
    files = {"transports/local.py": "", "transports/registry.py": table}
    assert count(files)["files under 60 lines with one importer"].number == 0


def test_circles_are_found_in_functions_and_under_type_checking(count):
    files = {
        "apps/__init__.py": "",
        "apps/a.py": "from apps import b\n",
        "apps/b.py": "if TYPE_CHECKING:\n    from apps.c import C\n",
        "apps/c.py": "def late():\n    from .a import A\n",
        "apps/d.py": "import apps.a\nimport json\n",
        "pipelined/__init__.py": "from pipelined.e import E\n",
        "pipelined/e.py": "from pipelined import E\n",
    }
    found = count(files)["import circles"]
    assert sorted(found.places) == ["apps.a <-> apps.b <-> apps.c", "pipelined <-> pipelined.e"]


def test_a_face_that_loads_its_modules_is_no_circle(count):
    files = {"apps/__init__.py": "from apps.a import A\n", "apps/a.py": "import apps.b\n", "apps/b.py": ""}
    assert count(files)["import circles"].number == 0


def test_constructors_with_more_than_two_callables_are_counted(count):
    text = """
        Say = Callable[[str], None]
        Table = dict[str, Callable]
        class Hears(Protocol):
            def __call__(self): ...
        class Three:
            def __init__(self, a: Say, b: "Callable[[], int] | None", *, c: Hears): ...
        class Two:
            def __init__(self, a: Say, b: int, c: Table, d: Callable): ...
        @dataclass(frozen=True)
        class Fields:
            a: Say
            b: collections.abc.Callable[[], None]
            c: Callable | None = None
        class NoDataclass:
            a: Say
            b: Say
            c: Say
    """
    found = count({"apps/a.py": text})["constructors with over 2 callables"]
    assert found.places == ["apps/a.py:11 Fields (3)", "apps/a.py:6 Three (3)"] and found.number == 2


def test_functions_with_more_than_five_parameters_not_keyword_only_are_counted(count):
    text = """
        def six(a, b, c, d, e, f): ...
        def five(a, b, c, d, e, *rest, f, **more): ...
        class A:
            async def seven(self, a, b, c, /, d, e, f, g): ...
            def five(self, a, b, c, d, e): ...
    """
    found = count({"apps/a.py": text})["functions with over 5 parameters not keyword-only"]
    assert found.places == ["apps/a.py:5 seven (7)", "apps/a.py:2 six (6)"] and found.number == 2


def test_dataclasses_made_from_more_than_five_positional_arguments_are_counted(count):
    files = {
        "pipelined/a.py": "@dataclass(frozen=True)\nclass Six: ...\nclass Plain: ...\n",
        "apps/b.py": """
            import pipelined.a
            a.Six(1, 2, 3, 4, 5, 6)
            a.Six(1, 2, 3, 4, 5, f=6)
            a.Six(1, 2, 3, *rest)
            a.Plain(1, 2, 3, 4, 5, 6)
        """,
        "transports/c.py": "Six(1, 2, 3, 4, 5, 6, 7)\n",
    }
    found = count(files)["dataclasses made from over 5 positional arguments"]
    assert found.places == ["transports/c.py:1 Six (7)", "apps/b.py:3 Six (6)"] and found.number == 2


def test_lines_of_files_functions_and_all_are_counted(count):
    long = "def long():\n" + "    x = 1\n" * 61
    found = count({"apps/a.py": "x = 1\n" * 301, "transports/b.py": f"class A:\n    x = 1\n\n{long}"})
    assert (found["longest file, lines"].number, found["longest file, lines"].places) == (301, ["apps/a.py (301)"])
    assert found["longest function, lines"].places == ["transports/b.py:4 long (62)"]
    assert (found["lines"].number, found["lines"].is_met) == (366, True)
    assert found["lines"].places[:2] == ["apps (301)", "transports (65)"]


def test_classes_of_one_name_are_counted_outside_apps(count):
    one = "class One: ...\nclass Two: ...\n"
    files = {"transports/a.py": one, "pipelined/b.py": "class One: ...\n", "apps/c.py": one}
    found = count(files)["class names in two places"]
    assert found.places == ["One: transports/a.py, pipelined/b.py"] and found.number == 1


def test_aliases_are_counted_by_name_where_they_mean_several_things(count):
    files = {
        "transports/a.py": "Work = Callable[[], None]\nKey = tuple[int, ...]\nShape = tuple[int, int]\nONE = A[0]\n",
        "collectives/b.py": "Work: TypeAlias = int\nKey = tuple[int, ...]\n\nclass Shape: ...\n",
        "pipelined/c.py": "ONE = A[1]\nwork = Callable[[], int]\nPart: type = int\n\nclass Part: ...\n",
        "apps/d.py": "Key = str | int\n",
    }
    found = count(files)["type aliases with several meanings"]
    assert found.places == ["Shape: transports/a.py, collectives/b.py", "Work: transports/a.py, collectives/b.py"]
    assert found.number == 2


def test_avoided_words_are_counted_in_docstrings_and_help_alone(count):
    text = '''
        """Whoever sends; nobody: whole, One that is none."""
        a: int = 1
        """The one rule."""
        # who
        say("whose", help="whose value is None")
    '''
    found = count({"apps/a.py": text})["avoided words per 1,000, apps"]
    words = 8 + 3 + 4
    assert found.number == round(5 / words * 1000, 2) and found.places == ["apps/a.py (5)"]
    assert not found.is_met


@pytest.mark.parametrize("folder", ["benchmarks", "tests"])
def test_avoided_words_are_counted_in_benchmarks_and_tests(count, folder):
    found = count({f"{folder}/a.py": '"""Nobody waits."""'})
    assert found[f"avoided words per 1,000, {folder}"].places == [f"{folder}/a.py (1)"]


def test_every_count_of_an_empty_tree_meets_its_goal(tmp_path):
    found = counts(Tree(tmp_path))
    assert len(found) >= len(COUNTS) and all(count.is_met for count in found)


def test_the_table_names_places_only_beyond_the_goal():
    found = [Count("circles", 1, 0, ["a <-> b"]), Count("lines", 7, 9, ["apps (7)"])]
    assert house.table(found, with_places=False).splitlines()[1].split() == ["circles", "1", "0", "over"]
    assert [line.strip() for line in house.table(found, with_places=True).splitlines()][2] == "a <-> b"
    assert "apps (7)" not in house.table(found, with_places=True)


def test_avoided_words_are_counted_in_messages_but_not_in_keys_or_docstrings(count):
    text = '''
    """Whose docstring counts elsewhere."""
    KEY = "nobody"
    def f(rank):
        raise ValueError(f"rank {rank}, whose peer left, is told by nobody")
    '''
    found = count({"apps/a.py": text})["avoided words in messages"]
    assert (found.number, found.places) == (2, ["apps/a.py (2)"])


def test_avoided_words_are_counted_in_the_names_of_tests(count):
    text = "def test_who_waits(): pass\ndef test_a_whole_step(): pass\ndef whoever(): pass\n"
    found = count({"tests/unit/test_a.py": text})["test names with avoided words"]
    assert found.places == ["tests/unit/test_a.py:1 test_who_waits"]


def test_sleeps_of_tests_are_counted_but_not_turns_of_the_loop(count):
    text = "asyncio.sleep(0)\nasyncio.sleep(0, 1)\nasyncio.sleep(wait)\ntime.sleep(0.5)\nclock.sleep(1)\n"
    found = count({"tests/unit/test_a.py": text, "apps/a.py": "time.sleep(1)\n"})["sleeps of tests"]
    assert (found.number, found.places) == (2, ["tests/unit/test_a.py (2)"])


@pytest.mark.parametrize("folder", ["apps", "benchmarks", "tests/unit"])
def test_names_in_docstrings_that_the_code_lacks_are_counted(count, folder):
    text = '''
    class Base:
        size: int
        def __init__(self, root): self.root = root
    class Derived(Base):
        """A class.

        Args:
            root, leaf: given.
        Attributes:
            size: in bytes.
            root: as given.
            lost: why.
        """
    @dataclass
    class Record(Generic[T]):
        """A record.

        Args:
            rank: of the worker: a number.
                world: part of the text above.
            rank_count: an old name.
        """
        rank: int
    def f(a, /, b, *rest, c, **settings):
        """A function.

        Args:
            a, b: numbers.
            *rest: more.
            c: one.
            **settings: as of `g`.
            d: gone.
        Returns:
            e: no argument.
        """
    '''
    found = count({f"{folder}/a.py": text})["names in docstrings that the code lacks"]
    places = [place.removeprefix(f"{folder}/a.py:").partition(" ")[2] for place in found.places]
    assert (found.number, sorted(places)) == (4, ["Derived: leaf", "Derived: lost", "Record: rank_count", "f: d"])


def test_a_type_error_is_found_with_its_place(tmp_path):
    (tmp_path / "setup.cfg").write_text("[mypy]\npackages = apps\n")
    (tmp_path / "apps").mkdir()
    (tmp_path / "apps" / "__init__.py").write_text("x: int = 'no number'\n")
    count = house.type_errors(tmp_path)
    assert (count.number, count.goal) == (1, 0) and count.places[0].startswith("apps/__init__.py:1: error:")
