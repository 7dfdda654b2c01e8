"""Real processes of Ravnest train while one of the three members of etcd, their directory, dies."""

from contextlib import ExitStack

import pytest

from tests.chaos.test_struck_ravnest import AGAIN, FLAGS, MAX_S, check, ravnest
from tests.etcd_cluster import EtcdCluster, needs_etcd

pytestmark = pytest.mark.timeout(2 * MAX_S)


def trained(path, address, befall):
    """Train on this directory, and let something befall it once steps are done; no step is lost, none trained twice."""
    with ExitStack() as stack:
        at, orders = ["--coordinator", address], path / "orders"
        serve = ("serve", *at, "--ram", "1G", "--orders", orders, "--listen", "tcp://127.0.0.1:0", "--name")
        for number in range(3):
            stack.enter_context(ravnest(*serve, f"n{number}"))
        words = "train", *at, "--nodes", 3, *FLAGS.split(), "--clusters", 2, "--lease", 15
        train = stack.enter_context(ravnest(*words))
        said = []
        for line in train.stdout:
            said.append(line)
            if line.startswith("step 6:"):
                befall(stack)
        text = "".join(said)
        assert train.wait() == 0, text
    assert "step 6:" in text and AGAIN not in text, text
    check(text, orders)


@pytest.mark.in_turns(4)
def test_a_member_of_etcd_that_dies_costs_no_step(tmp_path):
    needs_etcd()
    with EtcdCluster(tmp_path) as cluster:
        trained(tmp_path, cluster.url("ravnest"), lambda stack: cluster.kill(0))
