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


class MetricSpec(NamedTuple):
    """One metric.

    Args:
        key: in the status, or in the report of a member.
        name: without the prefix of its group; of a counter without `_total`.
    """

    key: str
    name: str
    text: str
    counts: bool = False


SWARM_METRICS = (
    MetricSpec("step", "step", "Committed steps."),
    MetricSpec("loss", "loss", "Loss of the last step, mean over its samples."),
    MetricSpec("norm", "norm", "Norm of the mean gradient of the last step, before clipping."),
    MetricSpec(
        "tokens_per_s", "tokens_per_second", "Tokens a second of all trainers, over the last microbatches of each."
    ),
    MetricSpec("eval_loss", "eval_loss", "Loss of the last evaluation on validation data."),
    MetricSpec("eval_step", "eval_step", "Committed steps before the last evaluation."),
    MetricSpec("age_s", "status_age_seconds", "Seconds since the last reply of the directory."),
    MetricSpec("age_s", "look_age_seconds", "The former name of swarm_status_age_seconds."),
)
PEER_METRICS = (
    MetricSpec("silent", "silent", "1: the peer did not reply within a second."),
    MetricSpec("waiting", "waiting", "Pieces of work that wait for the peer's device."),
    MetricSpec("counted", "counted", "Microbatches of the next step that the peer's sum holds."),
    MetricSpec("share", "share_ratio", "The peer's share of its stage's replies to the trainers."),
    MetricSpec("forwards", "forwards", "Forward passes done.", True),
    MetricSpec("backwards", "backwards", "Backward passes done.", True),
    MetricSpec("sent", "sent_bytes", "Bytes that the peer has sent.", True),
    MetricSpec("received", "received_bytes", "Bytes that the peer has received.", True),
)
TRAINER_METRICS = (
    MetricSpec("silent", "silent", "1: the trainer did not reply within a second."),
    MetricSpec("rate", "microbatches_per_second", "Microbatches a second of the trainer, over its last microbatches."),
    MetricSpec("done", "microbatches", "Microbatches completed by the trainer.", True),
    MetricSpec("banned", "banned_peers", "Peers to which the trainer sends no request at present."),
)
METRICS_BY_REASON = (
    MetricSpec("invalid_input", "invalid_input", "Connections and frames that the peer rejected.", True),
    MetricSpec("rejected_requests", "rejected_requests", "Requests that the peer rejected.", True),
    MetricSpec("invalid_input", "rejected", "The former name of swarm_peer_invalid_input_total.", True),
    MetricSpec("rejected_requests", "refused", "The former name of swarm_peer_rejected_requests_total.", True),
)
STAGE_PEERS = MetricSpec("", "stage_peers", "Peers that serve the stage.")
WEB_REJECTED = MetricSpec("web_rejected", "web_rejected", "Requests that the status page rejected.", True)


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
        for spec in SWARM_METRICS:
            if status.get(spec.key) is not None:
                yield _family("swarm", spec, {(): status})
        serving: Values = {
            (str(stage["stage"]),): {"": sum(stage[phase] for phase in WORKING)} for stage in status["summary"]
        }
        yield _family("swarm", STAGE_PEERS, serving, "stage")
        peer_values: Values = {(peer["name"], str(peer["stage"])): peer for peer in peers}
        yield from (_family("swarm_peer", spec, peer_values, "peer", "stage") for spec in PEER_METRICS)
        trainer_values: Values = {
            (trainer["name"],): {**trainer, "banned": _count(trainer.get("banned"))} for trainer in status["trainers"]
        }
        yield from (_family("swarm_trainer", spec, trainer_values, "trainer") for spec in TRAINER_METRICS)
        for spec in METRICS_BY_REASON:
            counts: Values = {(peer["name"],): peer.get(spec.key) for peer in peers}
            yield _family("swarm_peer", spec, _by_reason(spec.key, counts), "peer", "reason")
        rejected = _by_reason(WEB_REJECTED.key, {(): status.get(WEB_REJECTED.key)})
        yield _family("swarm", WEB_REJECTED, rejected, "reason")


def _family(prefix: str, spec: MetricSpec, values: Values, *labels: str) -> Metric:
    """One metric with its values.

    Args:
        values: by label values, the status or report that has the number.
    """
    kind = CounterMetricFamily if spec.counts else GaugeMetricFamily
    family = kind(f"{prefix}_{spec.name}", spec.text, labels=labels)
    for label_values, report in values.items():
        if isinstance(value := report.get(spec.key), int | float):
            family.add_metric(label_values, value)
    return family


def _count(entries: Any) -> int | None:
    return len(entries) if isinstance(entries, dict) else None


def _by_reason(key: str, values: Values) -> Values:
    """Counts by reason, each under the labels of the process that counts and the reason."""
    counts = [(labels, count_of) for labels, count_of in values.items() if isinstance(count_of, dict)]
    return {(*labels, str(reason)): {key: count} for labels, count_of in counts for reason, count in count_of.items()}
