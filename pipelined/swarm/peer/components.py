"""The components of one peer that its requests, its joining and its registrations share."""

from dataclasses import dataclass
from typing import Self

from pipelined.actors.device.executor import Executor
from pipelined.membership.connection import LocalMember
from pipelined.membership.messaging.client import MemberClient, Probe
from pipelined.state.stages.saver import Saver
from pipelined.state.stages.store import CheckpointStore
from pipelined.swarm.peer.device_watchdog import DeviceWatchdog
from pipelined.swarm.peer.lifecycle import Presence
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import Rules
from pipelined.swarm.settings import PeerSettings
from pipelined.swarm.stages.swarm_stage import Coding


@dataclass(frozen=True)
class PeerSetup:
    """What one peer holds and saves: its settings, with its store open.

    Args:
        stage: which to hold; None: the leader decides.
        grace_s: seconds that it continues to serve after a notice, if it is the last of its stage.
        store: where it saves its state, and finds what was saved; None: nowhere.
        save_every: steps from one save to the next; 0: only when it leaves as the last peer of its stage.
        threads: whether the event loop has threads to code tensors and to save in.
    """

    stage: int | None = None
    grace_s: float = PeerSettings.grace
    store: CheckpointStore | None = None
    save_every: int = 0
    threads: bool = True


@dataclass(frozen=True)
class PeerComponents:
    """The components of one peer.

    Args:
        local: this process; its name is unique among the peers.
        watchdog: computes for this peer, one piece of work at a time.
        probe: finds the members that this process cannot reach; its client sends all requests to members.
        saver: saves the stage, and finds what was saved.
        presence: what the directory lists of this peer.
        coding: the coding of the tensors between stages.
    """

    local: LocalMember
    view: SwarmView
    rules: Rules
    watchdog: DeviceWatchdog
    probe: Probe
    saver: Saver
    presence: Presence
    coding: Coding

    @classmethod
    def of(cls, local: LocalMember, view: SwarmView, rules: Rules, executor: Executor, setup: PeerSetup) -> Self:
        """The components of a peer with these settings."""
        address, clock, lease_s = local.endpoint.address, local.clock, rules.lease_s
        saver = Saver(setup.store, setup.save_every, setup.threads, view.notify)
        return cls(
            local,
            view,
            rules,
            DeviceWatchdog(executor, lease_s),
            Probe(MemberClient(local.endpoint, view), clock, lease_s),
            saver,
            Presence(local.name, address, rules.digest, clock, view.notify, saver=saver),
            Coding(rules.codec, setup.threads),
        )
