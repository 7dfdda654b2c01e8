"""What is said of a swarm's training is what its processes train by."""

import pytest

from apps.swarm.config import SwarmTask, TrainingConfig
from apps.swarm.training import rules_of, training_of


@pytest.mark.parametrize("delayed", [False, True])
def test_updates_are_late_where_that_is_configured_and_another_setting_is_refused(delayed):
    told = SwarmTask(TrainingConfig(delayed_updates=delayed), vocabulary=256, text="")
    rules, others = (
        rules_of(each, training_of(each)) for each in (told, SwarmTask(TrainingConfig(), vocabulary=256, text=""))
    )
    assert rules.delayed == delayed
    assert (rules.digest != others.digest) == delayed
