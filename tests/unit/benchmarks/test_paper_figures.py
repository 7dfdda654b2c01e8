"""The simulated figures: on free links they are closed forms, and the models have the paper's parameters."""

import math
from dataclasses import replace

import pytest

from apps.common.lm.models.gpt2_presets import parameters
from benchmarks.paper_figures import BERT, FIGURES, lines, stages

FIGURE_14, FIGURE_15 = FIGURES


def test_bert_48_has_the_parameters_of_table_4():
    """Beside ours: segments, the pooler, the head's own layer with its norm, a bias for each symbol, two classes."""
    width = BERT.d_model
    heads = 2 * width + 2 * (width * width + width) + 2 * width + BERT.vocab + 2 * (width + 1)
    ours = parameters(BERT)  # with a final norm of its own, as an embedding's norm there
    assert ours + heads == 669_790_012


def test_on_free_links_bert_48_is_the_closed_forms():
    """Units: a forward of one sequence. Chimera 30 of 8, DAPPLE 57 of 4, GPipe 76 of 4, GEMS 21 of 32, 2BW 16 of 16."""
    speedups = [line.speedup for line in lines(FIGURE_14, math.inf)]
    assert speedups == pytest.approx([1, 228 / 240, 304 / 240, 672 / 240, 256 / 240])


def test_a_small_gpt_2_is_the_closed_forms_too():
    figure = replace(FIGURE_15, nodes=32, batch=32, fewest=32)
    found = {line.label: line for line in lines(figure, math.inf)}
    chimera = 32 * 3 + 15 * 4
    assert found["GPipe"].speedup == pytest.approx((16 + 15) * 4 * 2 / chimera)
    assert found["GEMS"].speedup == pytest.approx((8 + 7 * 17 + 16) * 4 / chimera)
    assert found["Chimera"].efficiency == pytest.approx(1)
    assert (found["DAPPLE"].depth, found["DAPPLE"].microbatches) == (8, 8)


def test_slower_links_cost_more_where_more_is_summed():
    slow, free = (list(lines(FIGURE_14, moved)) for moved in (0.25, math.inf))
    assert all(s.operations >= f.operations for s, f in zip(slow, free, strict=True))
    assert slow[0].operations > free[0].operations
    assert slow[0].efficiency < free[0].efficiency


def test_stages_share_the_model_evenly():
    workload = stages(FIGURE_14, 4, 8)
    assert sum(group.elements for group in workload.parameters) == 48 * (12 * 1024**2 + 13 * 1024) + 2 * 30522 * 1024
