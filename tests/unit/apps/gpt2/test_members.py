"""What lies where a swarm's job is to save: what it cannot go on from is refused before anything is started."""

from dataclasses import replace

import numpy as np
import pytest

from apps.gpt2.config import parse
from apps.gpt2.job import model_config
from apps.gpt2.members import check_saved_stages
from apps.gpt2.swarm.job import resolve_swarm
from pipelined.errors import UsageError
from pipelined.state.stages.store import DiskStore, saved_stages
from pipelined.state.stages.store_checks import text_mismatch
from pipelined.state.stages.versions import SavedStage
from tests.launching import ROOT


@pytest.mark.parametrize("resume", ["", " --resume auto"])
def test_a_directory_in_which_a_stage_lacks_every_step_is_refused_with_the_steps_of_each_stage(tmp_path, resume):
    job = resolve_swarm(parse(f"--schedule swarm --stages 2 --checkpoint {tmp_path}{resume}".split()), None)
    job.check()
    state = {"weight/value": np.zeros(3, np.float32)}
    for step in (5, 10):
        DiskStore(tmp_path, job.model.identity()).save(SavedStage(step, 0, 2, "run"), state)
    with pytest.raises(UsageError, match=r"no step that all stages saved.*\(steps 5, 10: stage 0; no step: stage 1\)"):
        job.check()


@pytest.mark.parametrize("resume", ["", " --resume auto"])
@pytest.mark.parametrize("schedule, other", [("swarm", "ravnest"), ("ravnest", "swarm")])
def test_stages_of_a_swarm_and_of_clusters_are_refused_to_one_another(tmp_path, schedule, other, resume):
    config = parse(f"--schedule {schedule} --checkpoint {tmp_path}{resume}".split())
    model = replace(model_config(config), tied=False)
    state = {"weight/value": np.zeros(3, np.float32)}
    if other == "ravnest":
        state["weight/updates"] = np.array(5)
    DiskStore(tmp_path, model.identity()).save(SavedStage(5, 0, 1, "run-1"), state)
    told = rf"holds stages of --schedule {other} \(the latest: step 5\); .* go on from it with --schedule {other}"
    with pytest.raises(UsageError, match=told):
        check_saved_stages(config, model)


def test_clusters_that_lamb_trained_are_no_start_of_a_job_that_trains_by_adamw(tmp_path):
    config = parse(f"--schedule ravnest --checkpoint {tmp_path} --resume auto".split())
    model = replace(model_config(config), tied=False)
    state = {"weight/value": np.zeros(3, np.float32), "weight/updates": np.array(5)}
    DiskStore(tmp_path, model.identity()).save(SavedStage(5, 0, 1, "run-1"), state)
    check_saved_stages(config, model)
    DiskStore(tmp_path, model.identity(), optimizer="lamb").save(SavedStage(6, 0, 1, "run-1"), state)
    with pytest.raises(UsageError, match=r"another optimizer trained \(step 6: lamb, here: adamw\); give --checkpoint"):
        check_saved_stages(config, model)


def test_another_text_than_was_saved_is_refused_with_both_digests_unless_it_is_meant(tmp_path):
    flags = f"--schedule swarm --stages 1 --checkpoint {tmp_path} --resume auto --data {ROOT / 'LICENSE'}"
    job = resolve_swarm(parse(flags.split()), None)
    digest = job.read_text().digest
    state = {"weight/value": np.zeros(3, np.float32)}
    DiskStore(tmp_path, job.model.identity(), text=digest).save(SavedStage(5, 0, 1, "run"), state)
    job.read_text()
    DiskStore(tmp_path, job.model.identity(), text="1234").save(SavedStage(6, 0, 1, "run"), state)
    told = rf"trained on other data \(step 6; digest: 1234 saved, {digest[:16]} here\); .*--new-data"
    with pytest.raises(UsageError, match=told):
        job.read_text()
    resolve_swarm(parse([*flags.split(), "--new-data"]), None).read_text()


def test_stages_that_do_not_say_what_they_were_trained_on_are_gone_on_with(tmp_path):
    DiskStore(tmp_path, {}).save(SavedStage(5, 0, 1, "run"), {"weight/value": np.zeros(3, np.float32)})
    assert text_mismatch(tmp_path, saved_stages(tmp_path), "1234") == text_mismatch(tmp_path, [], "1234") == ""
