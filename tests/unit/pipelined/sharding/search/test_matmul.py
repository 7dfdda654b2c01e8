"""A split multiplication against the closed forms: elements, messages after one another, and numbers held."""

from fractions import Fraction

import pytest

from pipelined.sharding.factors import Factors
from pipelined.sharding.search.matmul import STATES, Matmul, factorizations, splits


def elements(matmul, factors, phase, **how):
    """Elements that a rank sends in a phase of a step."""
    return sum(r.elements(factors[r.axis]) for r in matmul.rings(factors, **how) if r.phase == phase)


def hops(matmul, factors, phase, **how):
    """Messages that follow one another in a phase of a step."""
    return sum(r.passes * (factors[r.axis] - 1) for r in matmul.rings(factors, **how) if r.phase == phase)


PHASES = ("forward", "backward", "update")


def test_a_multiplication_split_in_two_each_way_sends_what_is_known():
    matmul, factors = Matmul(64, 96, 128), Factors(2, 2, 2)
    assert [elements(matmul, factors, phase) for phase in PHASES] == [1792, 1792, 3072]


@pytest.mark.parametrize("q", [2, 3, 4])
def test_a_square_multiplication_on_a_cube_of_ranks_sends_the_same_in_every_phase(q):
    n, factors = 144, Factors(q, q, q)
    assert [elements(Matmul(n, n, n), factors, phase) for phase in PHASES] == pytest.approx(
        [2 * (q - 1) / q**3 * n**2] * 3
    )


@pytest.mark.parametrize("factors", factorizations(12), ids=str)
def test_elements_and_hops_are_the_closed_forms(factors):
    (p0, p1, p2), (m, k, n) = factors, (24, 36, 60)
    matmul = Matmul(m, k, n)
    forward = Fraction(p1 - 1, p1) * m * k / (p0 * p2) + Fraction(p2 - 1, p2) * m * n / (p0 * p1)
    regathered = Fraction(p1 - 1, p1) * m * k / (p0 * p2)
    update = 2 * Fraction(p0 - 1, p0) * k * n / (p1 * p2)
    expected = [forward, forward, update]
    assert [elements(matmul, factors, phase) for phase in PHASES] == pytest.approx([float(x) for x in expected])
    assert elements(matmul, factors, "backward", regather_input=True) == pytest.approx(float(forward + regathered))
    assert [hops(matmul, factors, phase) for phase in PHASES] == [p1 + p2 - 2, p1 + p2 - 2, 2 * (p0 - 1)]


@pytest.mark.parametrize("microbatches", [1, 4])
@pytest.mark.parametrize(
    ("state", "sums", "held"), [("none", 2, 4), ("zero1", 2, 2.5), ("zero2", 0, 1.75), ("zero3", 0, 1)]
)
def test_zero_holds_less_and_sends_more_with_every_microbatch(state, sums, held, microbatches):
    matmul, factors, n = Matmul(64, 96, 128), Factors(4, 2, 1), microbatches
    gathered = 3 / 4 * 96 * 128 / 2
    times = {"none": 2, "zero1": 2, "zero2": n + 1, "zero3": 3 * n}[state]
    extra = sum(elements(matmul, factors, phase, microbatches=n, state=state) for phase in PHASES)
    plain = sum(elements(matmul, factors, phase, microbatches=n) for phase in PHASES[:2])
    assert extra - plain == pytest.approx(times * gathered)
    assert matmul.state_numbers(factors, state) == pytest.approx(held * 96 * 128 / 2)
    assert STATES[0] == "none"


def test_microbatches_send_as_much_in_more_messages():
    matmul, factors = Matmul(64, 96, 128), Factors(1, 4, 2)
    assert elements(matmul, factors, "forward", microbatches=8) == pytest.approx(elements(matmul, factors, "forward"))
    assert hops(matmul, factors, "forward", microbatches=8) == 8 * hops(matmul, factors, "forward")


def test_summa_is_rows_and_columns_with_weights_and_inputs_gathered_anew():
    (r, c), (m, k, n) = (4, 2), (64, 96, 128)
    told = sum(
        elements(Matmul(m, k, n), Factors(r, c, 1), phase, state="zero3", regather_input=True) for phase in PHASES
    )
    assert told == pytest.approx(3 * ((c - 1) / c * m * k / r + (r - 1) / r * k * n / c))


def test_summa_sends_a_message_for_each_panel_of_an_operand():
    """max(r, c) panels, of each (c-1) + (r-1) messages one after another, three times."""
    how = {"state": "zero3", "regather_input": True}
    told = sum(hops(Matmul(64, 96, 128), Factors(4, 2, 1), phase, **how) for phase in PHASES)
    assert told == 3 * 4 * ((2 - 1) + (4 - 1))
    assert sum(hops(Matmul(64, 96, 128), Factors(4, 1, 1), phase, **how) for phase in PHASES) == 3 * (4 - 1)


def test_an_embedding_of_ids_sums_its_output_alone():
    matmul, factors = Matmul(64, 1000, 128, of_ids=True), Factors(2, 2, 3)
    reduced = 2 / 3 * 64 * 128 / 4
    assert [elements(matmul, factors, phase) for phase in PHASES[:2]] == pytest.approx([reduced, reduced])


def test_a_tied_head_embeds_with_the_vocabulary_as_contraction():
    plain, tied = Matmul(64, 128, 1000), Matmul(64, 128, 1000, embeds=True)
    embedding, turned = Matmul(64, 1000, 128, of_ids=True), Factors(2, 2, 3)
    factors = Factors(2, 3, 2)
    for phase in PHASES[:2]:
        assert elements(tied, factors, phase) == pytest.approx(
            elements(plain, factors, phase) + elements(embedding, turned, phase)
        )
    assert elements(tied, factors, "update") == elements(plain, factors, "update")


@pytest.mark.parametrize(("state", "uses"), [("none", 0), ("zero2", 1), ("zero3", 3)])
def test_a_tied_head_gathers_and_scatters_for_each_use(state, uses):
    plain, tied, factors = Matmul(64, 128, 1000), Matmul(64, 128, 1000, embeds=True), Factors(4, 1, 1)
    sums = [sum(elements(matmul, factors, phase, state=state) for phase in PHASES) for matmul in (plain, tied)]
    assert sums[1] - sums[0] == pytest.approx(uses * 3 / 4 * 128 * 1000)


@pytest.mark.parametrize(("ranks", "number"), [(8, 10), (16, 15), (64, 28), (256, 45), (4096, 91), (12, 18)])
def test_the_factorizations_are_counted(ranks, number):
    factors = factorizations(ranks)
    assert len(set(factors)) == len(factors) == number and all(a * b * c == ranks for a, b, c in factors)


def test_two_levels_multiply():
    assert len(splits((8, 16))) == 10 * 15
