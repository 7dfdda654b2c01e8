"""A status of a swarm, with the parts that a test names changed."""

import math
from collections import Counter
from dataclasses import replace

from pipelined.swarm.protocol.status import EndpointTraffic, PeerReport, StageReport, StatusReply, TrainerReport
from pipelined.swarm.records.members import PeerRecord, Phase, TrainerRecord
from pipelined.swarm.status.swarm_status import LeftOut, PeerStatus, StageSummary, SwarmStatus, TrainerStatus

TRAFFIC = EndpointTraffic(1 << 20, 5, {"not a frame": 2}, {"malformed": 3})
STAGE = StageReport(step=3, counted=2, waiting=1, forwards=10, backwards=9)
REPORT = TrainerReport(done=7, rate=2.5, replies={}, banned={"tcp://x:1": 4.0}, leads=None)


def peer_reply(stage=STAGE, *, traffic=TRAFFIC, unsaved="", donor="", events=()):
    return StatusReply(False, traffic, peer=PeerReport(stage, unsaved, donor), events=events)


def trainer_reply(report=REPORT, *, events=(), **changes):
    return StatusReply(False, TRAFFIC, trainer=replace(report, **changes), events=events)


def peer(name='a"b', stage=1, phase=Phase.SERVING, reply=None, share=math.nan):
    return PeerStatus(PeerRecord(name, "here", 1, stage, phase, "m"), reply or peer_reply(), share)


def trainer(name="t", reply=None):
    return TrainerStatus(TrainerRecord(name, "there", 1, "m"), reply or trainer_reply())


def summary(stage, **peers):
    return StageSummary(stage, Counter({Phase[name.upper()]: count for name, count in peers.items()}))


def status(**changes):
    base = SwarmStatus(
        step=3,
        loss=1.5,
        norm=0.25,
        leader="t",
        stages=2,
        peers=[peer()],
        trainers=[trainer()],
        steps=9,
        tokens_per_s=640.0,
        waits_for="a peer of stage 0",
        eval_loss=1.25,
        eval_step=2,
        observers=[],
        unsaved_stages=[],
        unreadable={},
        events=[],
        leading=None,
        donors={},
        savers=[],
        summary=[summary(0, joining=1), summary(1, serving=1)],
        left_out=LeftOut(),
    )
    return replace(base, **changes)
