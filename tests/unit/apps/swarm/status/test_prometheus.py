"""Prometheus gets every number of a look once, named as its own checker wants names to be."""

import re
import shutil
import subprocess

import pytest

from apps.swarm.status.prometheus import metrics
from tests.unit.pipelined.swarm.status.samples import peer, status, summary, trainer

WHOLE = {**status(age_s=12.0).to_dict(), "web_rejected": {"Not Found": 2}}
ABBREVIATED = r"_(s|ms|us|ns|sec|secs|b|kb|mb|gb)(_|$)"


def test_each_number_is_there_once():
    lines = metrics(WHOLE).splitlines()
    assert {
        "swarm_step 3.0",
        "swarm_loss 1.5",
        "swarm_eval_loss 1.25",
        "swarm_tokens_per_second 640.0",
        "swarm_look_age_seconds 12.0",
        "swarm_status_age_seconds 12.0",
        'swarm_stage_peers{stage="0"} 0.0',
        'swarm_stage_peers{stage="1"} 1.0',
        r'swarm_peer_forwards_total{peer="a\"b",stage="1"} 10.0',
        r'swarm_peer_share_ratio{peer="a\"b",stage="1"} NaN',
        r'swarm_peer_rejected_total{peer="a\"b",reason="not a frame"} 2.0',
        r'swarm_peer_refused_total{peer="a\"b",reason="malformed"} 3.0',
        r'swarm_peer_invalid_input_total{peer="a\"b",reason="not a frame"} 2.0',
        r'swarm_peer_rejected_requests_total{peer="a\"b",reason="malformed"} 3.0',
        'swarm_trainer_microbatches_per_second{trainer="t"} 2.5',
        'swarm_trainer_banned_peers{trainer="t"} 1.0',
        'swarm_web_rejected_total{reason="Not Found"} 2.0',
    } <= set(lines)
    assert len(lines) == len(set(lines))


def test_every_metric_has_a_type_and_a_help_text_and_is_named_by_the_rules():
    """What promtool checks, for machines that have none."""
    lines = metrics(WHOLE).splitlines()
    kinds = dict(re.findall(r"^# TYPE (\w+) (\w+)$", "\n".join(lines), re.MULTILINE))
    helped = dict(re.findall(r"^# HELP (\w+) (.+)$", "\n".join(lines), re.MULTILINE))
    assert kinds.keys() == helped.keys() and {re.match(r"\w+", line)[0] for line in lines if line[0] != "#"} <= {*kinds}
    for name, kind in kinds.items():
        assert (kind == "counter") == name.endswith("_total"), name
        assert not re.search(ABBREVIATED, name), name


@pytest.mark.skipif(not shutil.which("promtool"), reason="promtool comes with Prometheus")
def test_promtool_has_nothing_to_say():
    done = subprocess.run(["promtool", "check", "metrics"], input=metrics(WHOLE), text=True, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_a_member_says_that_is_no_number_is_left_out():
    wrong = {"forwards": "9", "sent": None, "waiting": [1], "invalid_input": 7, "rejected_requests": {"x": "y"}}
    plain = {"peers": [peer().to_dict() | wrong], "trainers": [trainer().to_dict() | {"banned": 3, "silent": True}]}
    told = metrics({**status().to_dict(), **plain})
    assert "forwards_total{" not in told and "backwards_total{" in told
    assert not re.search(
        r"(sent_bytes_total|waiting|(rejected|invalid_input|refused|rejected_requests)_total|banned_peers)\{", told
    )


def test_all_peers_of_a_stage_are_counted_whether_they_are_shown_or_not():
    stage = summary(1, joining=7, serving=400, draining=2, leaving=5)
    assert 'swarm_stage_peers{stage="1"} 402.0' in metrics(status(summary=[stage]).to_dict()).splitlines()
