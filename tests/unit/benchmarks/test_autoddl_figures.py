"""The benchmark of AutoDDL's figures: known answers, and what it makes of them."""

import pytest

from benchmarks.autoddl_figures import BLOCK, PIZ_DAINT, WHOLE_BLOCK, Setting, as_table, compared, elements


def test_figure_3_is_the_papers():
    found = elements(BLOCK, 64)
    assert found["factors"] == [[4, 8, 2], [4, 4, 4]]
    assert (found["sent"]["best"]["forward"], found["sent"]["megatron"]["forward"]) == (2**11, 15 * 2**8)


def test_a_block_on_eight_ranks_sends_what_is_known():
    sent = {name: sum(phases.values()) for name, phases in elements(WHOLE_BLOCK, 8)["sent"].items()}
    assert {name: sent[name] for name in ("best", "data", "megatron_1d")} == {
        "best": 8768,
        "data": 1344,
        "megatron_1d": 57344,
    }


def test_a_runtime_follows_from_the_printed_shares():
    small = "--layers 1 --d-model 64 --heads 4 --vocab 64 --seq 16 --ranks 4 --batch 8"
    found = compared(Setting("small", small, PIZ_DAINT, replicas=2, baselines=("megatron",), saved=0.5, faster=0.25))
    assert found["second"] == "megatron" and found["share_printed"] == 0.5
    assert (
        found["faster"]
        == found["saved"] / 2
        == pytest.approx((1 - found["seconds"] / found["baselines"]["megatron"]) / 2)
    )
    blocks = [elements(WHOLE_BLOCK, 8)]
    table = as_table(
        {
            "figure 3": elements(BLOCK, 64),
            "block": blocks,
            **{figure: [found] for figure in ("Figure 9", "Figure 10", "Table 3")},
        }
    )
    assert "(4,8,2) (4,4,4) sends 2,048 Mi elements" in table and table.count("small") == 3
