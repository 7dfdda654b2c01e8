"""A membership view is what the directory has, and nothing of what it had."""

import pytest

from pipelined.aio.clock import run_virtual
from pipelined.swarm.records.members import PEERS, PeerRecord, Phase
from tests.unit.pipelined.swarm.records.followed import followed, put


def record(name, stage=0):
    return PeerRecord(name, f"virtual://{name}", 1, stage, Phase.SERVING, "model").pack()


def test_nothing_is_kept_of_departed_peers():
    """However many names there were: a peer that comes again has another, and a swarm runs for months."""

    async def story(view, directory):
        await directory.transact({}, {f"{PEERS}stays": record("stays")})
        for number in range(100):
            lease = await directory.grant(60.0)
            revision = await directory.transact({}, {f"{PEERS}p{number}": record(f"p{number}")}, lease=lease)
            await view.wait_for(lambda revision=revision: view.revision >= revision)
            assert view.record_revision(f"p{number}") == revision
            await lease.revoke()
        await view.wait_for(lambda: "p99" not in view.peers)
        assert view.peers.keys() == view.census.record_revisions.keys() == {"stays"}
        assert view.record_revision("p0") == 0 and "p0" not in view.census.record_revisions

    run_virtual(followed(story))


def test_an_unreadable_record_is_named_until_it_is_gone():
    async def story(view, directory):
        await directory.transact({}, {f"{PEERS}odd": b"no record"})
        await view.wait_for(lambda: bool(view.unreadable))
        assert "not a PeerRecord" in view.unreadable[f"{PEERS}odd"] and not view.peers
        await directory.transact({}, {}, delete=[f"{PEERS}odd"])
        await view.wait_for(lambda: not view.unreadable)
        assert not view.census.record_revisions

    run_virtual(followed(story))


@pytest.mark.parametrize("stages", [None, {0}])
def test_a_record_under_another_peers_key_is_refused(stages):
    """Its own key names no peer when it goes, so that a peer read from it would stay for ever."""

    async def story(view, directory):
        keys = [f"{prefix}{name}" for prefix in (PEERS, "stage/0/") for name in ("a", "b")]
        put = {key: record("c", stage=0) if key.endswith("a") else record("b", stage=1) for key in keys}
        revision = await directory.transact({}, put)
        await view.wait_for(lambda: view.revision >= revision)
        assert not view.serving(0) and len(view.unreadable) == (1 if stages is None else 2)
        revision = await directory.transact({}, {}, delete=keys)
        await view.wait_for(lambda: view.revision >= revision)
        assert not view.peers and not view.unreadable

    run_virtual(followed(story, stages))


def test_a_peer_that_moves_is_at_one_stage_for_all_that_follow_either():
    async def story(view, directory):
        lease = await directory.grant(60.0)
        place = await put(directory, lease, "p0", 0)
        await view.follow_stages({0, 1})
        await place.put(PeerRecord("p0", "virtual://p0", lease.number, 1, Phase.SERVING, "model"))
        await view.wait_for(lambda: view.revision >= place.revision)
        assert [len(view.serving(stage)) for stage in (0, 1)] == [0, 1]
        await view.follow_stages({0})
        assert not view.peers and not view.census.record_revisions
        await view.follow_stages({1})
        assert set(view.peers) == {"p0"}
        await lease.revoke()
        await view.wait_for(lambda: not view.peers)

    run_virtual(followed(story, frozenset()))
