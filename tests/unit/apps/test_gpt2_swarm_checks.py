"""What lies where a swarm's job is to save: what it cannot go on from is refused before anything is started."""

import numpy as np
import pytest

from apps._config import parse
from apps._gpt2_swarm_checks import check_swarm_job
from apps._gpt2_swarm_job import resolve_swarm
from pipelined.errors import UsageError
from pipelined.swarm.records import Mark
from pipelined.swarm.saved import save


@pytest.mark.parametrize("resume", ["", " --resume auto"])
def test_a_directory_in_which_a_stage_lacks_every_step_is_refused_with_the_steps_of_each_stage(tmp_path, resume):
    job = resolve_swarm(parse(f"--schedule swarm --stages 2 --checkpoint {tmp_path}{resume}".split()), None)
    check_swarm_job(job)
    state = {"weight/value": np.zeros(3, np.float32)}
    for step in (5, 10):
        save(tmp_path, Mark(step, 0, 2, "run"), state, job.model.identity())
    with pytest.raises(UsageError, match=r"no step that all stages saved.*\(steps 5, 10: stage 0; no step: stage 1\)"):
        check_swarm_job(job)
