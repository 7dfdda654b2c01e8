"""What a launcher leaves in the environment decides the transport."""

import pytest

from pipelined.errors import UsageError
from pipelined.process.launch import Launch, detect

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "2950"}


def test_no_launcher_means_all_ranks_in_this_process():
    assert detect({}) == Launch("local://", 0, None, "no launcher")


@pytest.mark.parametrize(
    ("environ", "by"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, "mpirun"),
        ({"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}, "srun"),
    ],
)
def test_mpirun_and_srun_mean_mpi(environ, by):
    assert detect(environ) == Launch("mpi://", 3, 4, by, 3, 4, kills_on_first_exit=True)


def test_mpich_s_launcher_is_known_for_its_patience_and_silence():
    assert detect({"PMI_RANK": "3", "PMI_SIZE": "4"}) == Launch("mpi://", 3, 4, "mpirun", 3, 4, hydra=True)


PMI2 = {"PMI_RANK": "3", "PMI_SIZE": "4", "SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4"}


def test_srun_is_named_where_it_sets_mpich_s_variables_and_mpirun_where_srun_only_started_it():
    assert detect(PMI2) == Launch("mpi://", 3, 4, "srun", 3, 4, hydra=True, kills_on_first_exit=True)
    assert detect({**PMI2, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2"}).launcher == "mpirun"
    assert detect({**PMI2, "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}).launcher == "mpirun"  # one rank a node


def test_torchrun_s_agent_ends_all_when_one_has_gone():
    assert detect({**TORCHRUN, "TORCHELASTIC_RUN_ID": "none"}).kills_on_first_exit
    assert not detect(TORCHRUN).kills_on_first_exit


def test_torchrun_wins_over_the_mpirun_that_started_it():
    launch = detect({**TORCHRUN, "PMI_RANK": "0", "PMI_SIZE": "1"})
    assert launch == Launch("tcp://127.0.0.1:2950", 1, 4, "torchrun", 1, 4)


@pytest.mark.parametrize(
    "outer",
    [
        {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_NTASKS_PER_NODE": "1"},
        {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"},
    ],
)
def test_of_torchruns_that_srun_or_mpirun_started_ranks_have_torchrun_s_place_on_the_node(outer):
    """Each rank believed that it was alone on its node, took all cores, and reported every refusal."""
    inner = {"RANK": "5", "WORLD_SIZE": "8", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
    found = detect({**outer, **inner, "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "x"})
    assert (found.launcher, found.rank, found.local_rank, found.local_size) == ("torchrun", 5, 1, 4)
    assert not found.prints_errors and found.count_ranks_here(8) == 4


def test_a_step_smaller_than_its_batch_script_has_no_more_ranks_on_a_node_than_in_all():
    step = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "4"}
    assert detect(step).local_size == 2


def test_a_rank_beyond_the_world_is_refused():
    with pytest.raises(UsageError, match=r"name a rank outside of the world .PMI_RANK=2, PMI_SIZE=2"):
        detect({"PMI_RANK": "2", "PMI_SIZE": "2"})


def test_a_batch_script_s_own_shell_is_no_step():
    assert detect({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}).url == "local://"


def test_tcp_without_torchrun_names_what_is_missing():
    with pytest.raises(UsageError, match="RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"):
        detect({}, "tcp")


def test_a_variable_that_is_no_number_is_named():
    with pytest.raises(UsageError, match="PMI_SIZE='many'"):
        detect({"PMI_RANK": "0", "PMI_SIZE": "many"})


def test_a_launcher_s_word_on_the_node_is_taken():
    launch = detect({"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"})
    assert (launch.local_rank, launch.local_size) == (1, 4)


def test_the_cores_of_a_node_are_shared_by_its_own_ranks_or_by_all_where_no_launcher_counts_them():
    counted = {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
    launches = detect(counted), detect({"PMI_RANK": "5", "PMI_SIZE": "8"}), detect({})
    assert [launch.count_ranks_here(8) for launch in launches] == [4, 8, 8]


def test_an_unknown_transport_names_the_known():
    with pytest.raises(UsageError, match=r"unknown transport 'smoke'.*local, mpi, tcp"):
        detect({}, "smoke")


@pytest.mark.parametrize("transport", ["tcp:10.0.0.1:4000", "local:delay=5ms", "mpi:", "tcp:/10.0.0.1:4000"])
def test_a_url_without_its_slashes_is_refused(transport):
    """Its host or its options were dropped."""
    name = transport.partition(":")[0]
    with pytest.raises(UsageError, match=rf"^--transport {transport} is no URL; write {name}://… or {name}$"):
        detect(TORCHRUN, transport)


def test_a_url_slows_the_links_of_any_launcher():
    assert detect({}, "local://?delay=5ms").url == "local://?delay=5ms"
    assert detect({"PMI_RANK": "3", "PMI_SIZE": "4"}, "mpi://?rate=1gbit").url == "mpi://?rate=1gbit"
    assert detect(TORCHRUN, "tcp://?loss=0.1").url == "tcp://?loss=0.1"


def test_links_that_cannot_be_are_answered_with_what_can():
    with pytest.raises(UsageError, match=r"rate= takes a number and one of the units kbit, mbit, gbit"):
        detect({}, "local://?rate=fast")


def test_one_process_for_all_ranks_is_refused_where_there_are_several():
    with pytest.raises(UsageError, match=r"torchrun started: 4\); start one process"):
        detect(TORCHRUN, "local")


def test_one_rank_of_each_launcher_speaks():
    assert detect({**TORCHRUN, "RANK": "0"}).prints_errors
    assert not detect(TORCHRUN).prints_errors
    assert detect({**TORCHRUN, "RANK": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}).prints_errors
    assert not detect({"PMI_RANK": "4", "PMI_SIZE": "8", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "4"}).prints_errors


def test_an_ipv6_address_is_bracketed_in_the_url():
    assert detect({**TORCHRUN, "MASTER_ADDR": "::1"}).url == "tcp://[::1]:2950"
