"""The parts of one peer that its requests, its joining and its registrations share."""

from dataclasses import dataclass

from pipelined.actors.device.executor import Executor
from pipelined.membership.connection import LocalMember
from pipelined.membership.messaging.client import MemberClient, Probe
from pipelined.state.stages.saver import Saver
from pipelined.swarm.peer.device_watchdog import DeviceWatchdog
from pipelined.swarm.peer.lifecycle import Presence
from pipelined.swarm.records.view import SwarmView
from pipelined.swarm.rules import PeerConfig, Rules
from pipelined.swarm.stages.swarm_stage import Coding


@dataclass(frozen=True)
class PeerParts:
    """The parts of one peer.

    Args:
        local: this process; its name is unique among the peers.
        probe: finds the members that this process cannot reach; its client sends all requests to members.
        saver: saves the stage, and finds what was saved.
        presence: what the directory lists of this peer.
        coding: of the tensors between stages.
    """

    local: LocalMember
    view: SwarmView
    rules: Rules
    device: DeviceWatchdog
    probe: Probe
    saver: Saver
    presence: Presence
    coding: Coding

    @classmethod
    def of(cls, local: LocalMember, view: SwarmView, rules: Rules, device: Executor, config: PeerConfig) -> "PeerParts":
        """The parts of a peer with these settings."""
        address, clock, lease_s = local.endpoint.address, local.clock, rules.lease_s
        saver = Saver(config.store, config.save_every, config.threads, view.notify)
        return cls(
            local,
            view,
            rules,
            DeviceWatchdog(device, lease_s),
            Probe(MemberClient(local.endpoint, view), clock, lease_s),
            saver,
            Presence(local.name, address, rules.digest, clock, view.notify, saver=saver),
            Coding(rules.codec, config.threads),
        )
