import asyncio
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectives import Group, ProblemSize, all_reduce
from collectives.algorithms import ALL_REDUCE, AUTO
from collectives.algorithms.choice import algorithm_for, format_choice, names_in, parse_choice
from transports.local import world


def test_one_name_is_for_all_sizes():
    assert parse_choice("ring") == ((inf, "ring"),) and algorithm_for("ring", 1 << 40) == "ring"


@pytest.mark.parametrize(
    ("nbytes", "name"), [(0, "shared"), (100, "shared"), (101, "rabenseifner"), (2000, "rabenseifner"), (2001, "ring")]
)
def test_a_size_is_within_its_own_bytes(nbytes, name):
    assert algorithm_for("shared:100,rabenseifner:2000,ring", nbytes) == name


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("rings", "unknown all-reduce algorithm 'rings'; known: auto, "),
        ("ring:10,rings", "unknown all-reduce algorithm 'rings'"),
        ("", "unknown all-reduce algorithm ''"),
        ("ring:10", "unknown all-reduce algorithm 'ring:10'"),
        ("ring,auto", r"no size limit of 1 to 18 digits for ring \(got: 'ring'\); write for example"),
        ("ring:-1,auto", "no size limit of 1 to 18 digits for ring"),
        (f"ring:{'9' * 400},ring:10,auto", r"no size limit of 1 to 18 digits for ring \(got: 'ring:9{59}'\)"),
        (f"ring:{'9' * 5000},auto", "no size limit of 1 to 18 digits for ring"),
        (",ring", "no size limit of 1 to 18 digits for an algorithm"),
        ("ring:10,shared:10,auto", r"do not rise in .* \(bytes: 10, then 10\)"),
    ],
)
def test_words_that_make_no_sense_are_refused_with_what_does(words, says):
    with pytest.raises(ValueError, match=says):
        parse_choice(words)


@given(st.dictionaries(st.integers(0, 1 << 30), st.sampled_from((AUTO, *ALL_REDUCE.names)), min_size=1, max_size=8))
def test_a_choice_is_parsed_as_it_was_formatted(best):
    words = format_choice(best)
    assert {nbytes: algorithm_for(words, nbytes) for nbytes in best} == best
    assert names_in(words) == set(best.values())


def test_each_array_is_reduced_by_the_algorithm_of_its_size():
    ends, short, long = world(5), [np.ones(40) for _ in range(5)], [np.ones(400) for _ in range(5)]

    async def main():
        groups = [Group(end, range(5), 0) for end in ends]
        for pairs in (zip(groups, short, strict=True), zip(groups, long, strict=True)):
            await asyncio.gather(*(all_reduce(*pair, "sum", "ring:320,rabenseifner") for pair in pairs))

    asyncio.run(main())
    for rank, end in enumerate(ends):
        sent = (
            ALL_REDUCE.forms("ring").bytes_to(ProblemSize.on_one_node(5, 320, 8), rank),
            ALL_REDUCE.forms("rabenseifner").bytes_to(ProblemSize.on_one_node(5, 3200, 8), rank),
        )
        assert end.traffic.bytes_to == {
            peer: sum(part.get(peer, 0) for part in sent) for peer in sorted({*sent[0], *sent[1]})
        }
