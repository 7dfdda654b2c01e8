"""Ranks of one machine count the cores that they may run on together, and nonsense is refused."""

import asyncio
import socket

import pytest

from transports.errors import WireError
from transports.tcp.cores import MOST_CORES, cores_together
from transports.tcp.join.control import read_letter, send_letter
from transports.tcp.sockets import watched


async def answer(sock, words):
    heard = await read_letter(sock, "cores")
    if words is None:
        sock.close()
    else:
        await send_letter(sock, *words)
    return heard


def together(monkeypatch, own, *said):
    """What a rank bound to its own cores counts beside neighbours that say these."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(own))

    async def main():
        pairs = [tuple(map(watched, socket.socketpair())) for _ in said]
        counting = cores_together([here for here, _ in pairs])
        answers = (answer(there, words) for (_, there), words in zip(pairs, said, strict=True))
        try:
            count, *heard = await asyncio.gather(counting, *answers)
            return count, heard
        finally:
            for sock in (sock for pair in pairs for sock in pair):
                sock.close()

    return asyncio.run(main())


def test_a_core_that_several_ranks_may_run_on_counts_once(monkeypatch):
    assert together(monkeypatch, {3}, ("cores", [4]), ("cores", [3, 5])) == (3, [[3], [3]])


def test_ranks_bound_to_one_core_share_it(monkeypatch):
    assert together(monkeypatch, {0}, ("cores", [0]), ("cores", [0]))[0] == 1


def test_alone_on_its_machine_a_rank_has_its_own(monkeypatch):
    assert together(monkeypatch, {0, 1, 7}) == (3, [])


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (("cores", [-1]), "cores that are no numbers"),
        (("cores", [True]), "cores that are no numbers"),
        (("cores", [MOST_CORES]), "cores that are no numbers"),
        (("cores", "all"), "cores that are no numbers"),
        (("go", None), "an unexpected letter"),
        (("cores", list(range(MOST_CORES)) * 9), "a letter beyond the limit"),
        (None, "hung up"),
    ],
)
def test_a_neighbour_that_leaves_or_talks_nonsense_is_refused(monkeypatch, said, why):
    with pytest.raises((WireError, OSError)) as failed:
        together(monkeypatch, {0}, said)
    assert why in str(failed.value)
