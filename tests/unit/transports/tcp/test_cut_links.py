"""A machine that vanishes is noticed within the documented limits, and a live one is never taken for it.

The links are real ones between two network namespaces; see `cut_links`. Its limits are short; those of the code are
tested in `tests/chaos/test_cut_links_in_full.py`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launching import ROOT

PROGRAM = Path(__file__).with_name("cut_links.py")
NAMESPACE = ["unshare", "--net", "--map-root-user"]


def without_namespaces():
    """Why this machine cannot make two network namespaces; None where it can."""
    if missing := [name for name in ("unshare", "ip") if shutil.which(name) is None]:
        return f"{missing[0]} is not installed"
    trial = subprocess.run(
        [*NAMESPACE, *"ip link add name near type veth peer name far".split()], capture_output=True, text=True
    )
    return trial.stderr.strip() or f"exit code {trial.returncode}" if trial.returncode else None


def outcomes(*arguments):
    if reason := without_namespaces():
        pytest.skip(f"no network namespaces can be made here ({reason})")
    command = [*NAMESPACE, sys.executable, str(PROGRAM), *arguments]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, env=surroundings)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def check(found, idle, connecting, sending, late):
    """Each case ended after its limit and at most `late` seconds after it, or did not end."""
    least = {"idle": idle, "asking": sending, "sending": sending, "connecting": connecting}
    assert found.pop("mended") is None and found.pop("stopped") is None
    assert 0 < found.pop("sending_to_a_full_receiver") < sending + late
    assert found.keys() == least.keys()
    assert all(least[case] - EARLY_S < found[case] < least[case] + late for case in least), found


EARLY_S = 1.5
"""The limits count from the last byte that came, which the connection brought some moments before the cut."""


def test_a_cut_link_is_noticed_in_time_and_a_mended_one_or_a_stopped_process_is_not_lost():
    check(outcomes(), idle=2.0, connecting=1.0, sending=2.5, late=4.0)
