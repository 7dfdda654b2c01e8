"""The status of a swarm as numbers that Prometheus reads; docs/command-line.md lists them.

A number that only grows is a counter; units are whole words. Names that members chose stand in labels. A value that
is not a number is left out, as a member may report anything.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from pipelined.swarm.records.members import WORKING

Values = Mapping[tuple[str, ...], Any]
"""By the values of the labels."""


class Number(NamedTuple):
    """One metric.

    Args:
        key: in the status, or in the report of a member.
        name: without the prefix of its group; of a counter without `_total`.
    """

    key: str
    name: str
    text: str
    counts: bool = False


OF_SWARM = (
    Number("step", "step", "Committed steps."),
    Number("loss", "loss", "Loss of the last step, mean over its samples."),
    Number("norm", "norm", "Norm of the mean gradient of the last step, before clipping."),
    Number("tokens_per_s", "tokens_per_second", "Tokens a second of all trainers, over the last microbatches of each."),
    Number("eval_loss", "eval_loss", "Loss of the last evaluation on validation data."),
    Number("eval_step", "eval_step", "Committed steps before the last evaluation."),
    Number("age_s", "status_age_seconds", "Seconds since the last reply of the directory."),
    Number("age_s", "look_age_seconds", "The former name of swarm_status_age_seconds."),
)
OF_PEER = (
    Number("silent", "silent", "1: the peer did not reply within a second."),
    Number("waiting", "waiting", "Pieces of work that wait for the peer's device."),
    Number("counted", "counted", "Microbatches of the next step that the peer's sum holds."),
    Number("share", "share_ratio", "The peer's share of its stage's replies to the trainers."),
    Number("forwards", "forwards", "Forward passes done.", True),
    Number("backwards", "backwards", "Backward passes done.", True),
    Number("sent", "sent_bytes", "Bytes that the peer has sent.", True),
    Number("received", "received_bytes", "Bytes that the peer has received.", True),
)
OF_TRAINER = (
    Number("silent", "silent", "1: the trainer did not reply within a second."),
    Number("rate", "microbatches_per_second", "Microbatches a second of the trainer, over its last microbatches."),
    Number("done", "microbatches", "Microbatches completed by the trainer.", True),
    Number("banned", "banned_peers", "Peers to which the trainer sends no request at present."),
)
BY_REASON = (
    Number("invalid_input", "invalid_input", "Connections and frames that the peer rejected.", True),
    Number("rejected_requests", "rejected_requests", "Requests that the peer rejected.", True),
    Number("invalid_input", "rejected", "The former name of swarm_peer_invalid_input_total.", True),
    Number("rejected_requests", "refused", "The former name of swarm_peer_rejected_requests_total.", True),
)
STAGE_PEERS = Number("", "stage_peers", "Peers that serve the stage.")
WEB_REJECTED = Number("web_rejected", "web_rejected", "Requests that the status page rejected.", True)


def metrics(status: Mapping[str, Any]) -> str:
    """The status in Prometheus's text format, a help text and a type for each metric."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_StatusCollector(status))
    return generate_latest(registry).decode()


class _StatusCollector:
    def __init__(self, status: Mapping[str, Any]):
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status
        peers = self._status["peers"]
        for each in OF_SWARM:
            if status.get(each.key) is not None:
                yield _family("swarm", each, {(): status})
        serving: Values = {
            (str(stage["stage"]),): {"": sum(stage[phase] for phase in WORKING)} for stage in status["summary"]
        }
        yield _family("swarm", STAGE_PEERS, serving, "stage")
        of_peers: Values = {(peer["name"], str(peer["stage"])): peer for peer in peers}
        yield from (_family("swarm_peer", each, of_peers, "peer", "stage") for each in OF_PEER)
        of_trainers: Values = {
            (each["name"],): {**each, "banned": _count(each.get("banned"))} for each in status["trainers"]
        }
        yield from (_family("swarm_trainer", each, of_trainers, "trainer") for each in OF_TRAINER)
        for each in BY_REASON:
            counts: Values = {(peer["name"],): peer.get(each.key) for peer in peers}
            yield _family("swarm_peer", each, _by_reason(each.key, counts), "peer", "reason")
        rejected = _by_reason(WEB_REJECTED.key, {(): status.get(WEB_REJECTED.key)})
        yield _family("swarm", WEB_REJECTED, rejected, "reason")


def _family(prefix: str, number: Number, values: Values, *labels: str) -> Metric:
    """One metric with its values.

    Args:
        values: where the number is found.
    """
    kind = CounterMetricFamily if number.counts else GaugeMetricFamily
    family = kind(f"{prefix}_{number.name}", number.text, labels=labels)
    for of_labels, each in values.items():
        if isinstance(value := each.get(number.key), int | float):
            family.add_metric(of_labels, value)
    return family


def _count(entries: Any) -> int | None:
    return len(entries) if isinstance(entries, dict) else None


def _by_reason(key: str, values: Values) -> Values:
    """Counts by reason, each under the labels of the process that counts and the reason."""
    counts = [(labels, each) for labels, each in values.items() if isinstance(each, dict)]
    return {(*labels, str(reason)): {key: count} for labels, each in counts for reason, count in each.items()}
