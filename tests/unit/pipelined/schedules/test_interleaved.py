"""Interleaved 1F1B: the order is in rounds of P, and with one chunk it is that of 1F1B."""

from pipelined.programs.proof.check import check
from pipelined.programs.recording import record
from pipelined.schedules import Shape, find

interleaved = find("interleaved")


def recorded(workers, chunks, microbatches):
    program = record(interleaved, Shape(workers * chunks, microbatches, {"chunks": chunks}))
    check(program)
    return program


def test_the_order_of_two_workers_with_two_stages_each():
    order = [" ".join(f"{i.stage}{i.op}{i.microbatch}" for i in worker) for worker in recorded(2, 2, 4).workers]
    assert order == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_one_chunk_is_1f1b():
    for microbatches in (4, 8):
        shape = Shape(4, microbatches)
        assert record(interleaved, shape).workers == record(find("one_f_one_b"), shape).workers
