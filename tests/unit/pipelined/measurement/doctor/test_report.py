"""The report says what there is, how fast it is, and what to change."""

from pipelined.measurement.doctor import advise, as_text
from pipelined.measurement.doctor.speed import Hop, Speed, SumSpeed
from pipelined.measurement.fit import Fit
from pipelined.measurement.timed.collective_costs import CollectiveCosts
from tests.unit.pipelined.measurement.doctor.test_advice import FOUND, changed


def test_links_and_sums_are_reported_in_the_fields_words():
    sums = (SumSpeed(1 << 20, "shared", 1e-3, 1.048576e9, 1.5 * 1.048576e9),)
    far = Hop((0, 2), 5e-4, 1e-9, 1e-5, 1e-11)
    text = as_text(changed(speed=Speed(FOUND.speed.near, far, sums)), [])
    assert "ranks 0 and 1: alpha 10 ± 1 µs, beta 0.100 ± 0.010 ns/byte (10.00 GB/s)" in text
    assert "between nodes ranks 0 and 2: alpha 500 ± 10 µs, beta 1.000 ± 0.010 ns/byte (1.00 GB/s)" in text
    assert "   1048576       1.000       1.049       1.573" in text and "algbw GB/s" in text
    assert text.endswith("nothing to change")


def test_the_costs_of_collectives_stand_one_below_the_other_with_the_papers_fit_last():
    alpha_beta, alpha_beta_gamma = Fit((2e-5, 1e-10), (1e-6, 2e-12)), Fit((2e-5, 1e-10, 5e-11), (1e-6, 2e-12, 1e-11))
    costs = CollectiveCosts((0, 2), {"all_gather": alpha_beta}, alpha_beta_gamma, alpha_beta, 5e-11)
    text = as_text(changed(collectives={"between nodes": costs}), [])
    head, names, gathered, joint, pooled = text.splitlines()[-7:-2]
    assert head == "collectives by messages between nodes, ranks 0, 2 (adding: 0.050 ns/byte)"
    assert names.split() == ["alpha", "(µs)", "beta", "(ns/byte)", "gamma", "(ns/byte)"]
    assert gathered.split("  ")[1] == "all_gather" and gathered.endswith("20.0 ± 1.0     0.100 ± 0.002")
    assert joint.endswith("20.0 ± 1.0     0.100 ± 0.002     0.050 ± 0.010") and "together" in joint
    assert "as AutoDDL" in pooled and pooled.endswith("0.100 ± 0.002")


def test_what_is_missing_is_reported_with_its_reason():
    libraries = {"packages": {}, "mpi": None, "mpi_error": "no libmpi", "mpi_threads": None}
    libraries |= {"torch": None, "torch_error": "no torch"}
    examination = changed(machine={"memory": None, "threads": 0, "quota": 1.5}, libraries=libraries, speed=None)
    text = as_text(examination, advise(examination))
    assert "MPI      none: no libmpi (no package)" in text and "torch    none: no torch" in text
    assert "8, 1.5 cores' worth of time; OMP_NUM_THREADS is not set" in text and "memory   unknown" in text
    assert "  ! mpi4py is not installed on a: pip install 'pipelined[mpich]'\n" in text


def test_gpus_are_named():
    assert "devices  H100 (80.0 GiB)" in as_text(changed(libraries={"devices": [["H100", 80 << 30]]}), [])
