"""Detection of the launcher: rank, world size and transport of this process, read from environment variables.

Nothing here imports torch or MPI, so a wrong flag is refused before either is loaded. torchrun's variables take
precedence over those of mpirun and srun, because mpirun or srun may have started torchrun.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pipelined.errors import UsageError, require_switch
from transports import read_url, schemes

MPI = (("PMI_RANK", "PMI_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))
HYDRA = "MPI_LOCALRANKID"
"""A variable that MPICH's mpirun sets for each rank, and srun does not."""
SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")
TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
AGENT = "TORCHELASTIC_RUN_ID"
"""A variable that torchrun's agent sets. If a user sets the other four by hand, no agent watches the ranks."""
LOCAL = (
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
"""The variables of each launcher for a rank's number on its node, and the number of ranks there."""
TORCHRUN_LOCAL = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
"""Those of torchrun. If srun or mpirun started torchrun, their variables describe torchrun, not the rank."""


@dataclass(frozen=True)
class Launch:
    """The place of one process in the job.

    Args:
        url: the transport to open.
        rank: the rank of this process; 0 if it is the only one.
        world_size: ranks in the job; None if the plan decides it (all ranks run in this process).
        launcher: its name (torchrun, mpirun, srun, or no launcher); whether a rank prints errors depends on it.
        local_rank: the number of this rank on its node.
        local_size: ranks on this node; all ranks of the job if the launcher does not set it; None if the plan decides.
        hydra: whether the launcher is MPICH's, which does not name a rank that died.
        kills_on_first_exit: whether the launcher may end all ranks after the first exit, before another rank can print
            its reason.
        share_devices: whether ranks of a node may share a GPU.
    """

    url: str
    rank: int
    world_size: int | None
    launcher: str
    local_rank: int = 0
    local_size: int | None = None
    hydra: bool = False
    kills_on_first_exit: bool = False
    share_devices: bool = False

    def __post_init__(self) -> None:
        require_switch("share_devices", self.share_devices)

    @property
    def prints_errors(self) -> bool:
        """Whether this rank prints errors that the user can correct: one rank for each launcher."""
        return self.rank == 0 or (self.launcher == "torchrun" and self.local_rank == 0)

    @property
    def on_one_node(self) -> bool:
        """Whether no rank runs on another node, as far as the launcher says; srun need not say."""
        return self.launcher != "srun" and self.local_size == self.world_size

    def count_ranks_here(self, world_size: int) -> int:
        """The number of ranks on this node, which share its cores and its memory, as far as the launcher says.

        This is for decisions before the ranks have found one another; then `Transport.ranks_here` knows.

        Args:
            world_size: ranks in the job; all of them are here if no launcher started them.
        """
        return self.local_size or world_size


ALONE = Launch("local://", 0, None, "no launcher")


def detect(environ: Mapping[str, str], transport: str = "auto") -> Launch:
    """Detect the launcher of this process.

    Args:
        environ: usually `os.environ`.
        transport: "auto", or the URL or name of a transport, which overrides the launcher's.
    Raises:
        UsageError: an unknown transport, or one that needs a launcher that did not start this process.
    """
    if transport != "auto":
        _check(str(transport))
    launch = _from_torchrun(environ) or _from_mpi(environ) or _from_slurm(environ) or ALONE
    scheme = transport.partition(":")[0]
    if transport == "auto":
        return launch
    if scheme == "local":
        launch = _refuse_many(launch)
    elif scheme == "mpi":
        launch = _from_mpi(environ) or _from_slurm(environ) or Launch("mpi://", 0, None, "no launcher")
    else:
        launch = _require_torchrun(environ, transport)
    return launch if "://" not in transport else replace(launch, url=transport)


def _check(transport: str) -> None:
    """Raise UsageError for an unknown transport, or a URL with impossible links."""
    name, colon, _ = transport.partition(":")
    if name not in schemes():
        raise UsageError(f"unknown transport {transport!r}; known: auto, {', '.join(schemes())}, or a URL of these")
    if colon and not transport.startswith(f"{name}://"):
        raise UsageError(f"--transport {transport} is no URL; write {name}://… or {name}")
    try:
        if colon:
            read_url(transport)
    except ValueError as error:
        raise UsageError(f"--transport {transport}: {error}") from error


def _require_torchrun(environ: Mapping[str, str], transport: str) -> Launch:
    launch = _from_torchrun(environ)
    if launch is None:
        missing_names = ", ".join(name for name in TORCHRUN if name not in environ)
        fact = f"--transport {transport} needs torchrun's variables (not set: {missing_names})"
        raise UsageError(f"{fact}; start with torchrun")
    return launch


def _refuse_many(launch: Launch) -> Launch:
    """All ranks run in this process; several such processes are refused, because they would write the same files."""
    if launch.world_size not in (None, 1):
        count = f"processes that {launch.launcher} started: {launch.world_size}"
        fact = f"--transport local runs all ranks in one process ({count})"
        raise UsageError(f"{fact}; start one process, or leave --transport out")
    return ALONE


def _from_torchrun(environ: Mapping[str, str]) -> Launch | None:
    if any(name not in environ for name in TORCHRUN):
        return None
    host = environ["MASTER_ADDR"]
    url = f"tcp://{f'[{host}]' if ':' in host else host}:{environ['MASTER_PORT']}"
    return _launch(environ, url, "RANK", "WORLD_SIZE", "torchrun")


def _from_mpi(environ: Mapping[str, str]) -> Launch | None:
    for rank, size in MPI:
        if rank in environ and size in environ:
            launcher = "srun" if _is_by_srun(environ, rank, size) else "mpirun"
            return _launch(environ, "mpi://", rank, size, launcher)
    return None


def _is_by_srun(environ: Mapping[str, str], rank: str, size: str) -> bool:
    """Whether srun itself set MPICH's variables (`--mpi=pmi2`), not an mpirun that srun started on each node."""
    is_same = all(environ[name] == environ.get(slurm) for name, slurm in zip((rank, size), SLURM, strict=True))
    return is_same and rank == "PMI_RANK" and HYDRA not in environ


def _from_slurm(environ: Mapping[str, str]) -> Launch | None:
    """A step that srun started, or None; the shell of a batch script is a step with one task, and does not count."""
    if any(name not in environ for name in SLURM) or environ["SLURM_STEP_NUM_TASKS"] == "1":
        return None
    return _launch(environ, "mpi://", *SLURM, "srun")


def _launch(environ: Mapping[str, str], url: str, rank: str, size: str, launcher: str) -> Launch:
    number, ranks = _numbers(environ, rank, size)
    if not 0 <= number < ranks:
        fact = f"the launcher's variables name a rank outside of the world ({rank}={number}, {size}={ranks})"
        raise UsageError(f"{fact}; unset them or start afresh")
    node = number, ranks
    for local_rank, local_size in (TORCHRUN_LOCAL, *LOCAL) if launcher == "torchrun" else (*LOCAL, TORCHRUN_LOCAL):
        if local_rank in environ and local_size in environ:
            local, count = _numbers(environ, local_rank, local_size)
            node = local, min(count, ranks)  # srun in a script of sbatch may start fewer than the script's number
            break
    hydra = rank == "PMI_RANK"
    kills = launcher == "srun" or rank.startswith("OMPI_") or AGENT in environ
    return Launch(url, number, ranks, launcher, *node, hydra=hydra, kills_on_first_exit=kills)


def _numbers(environ: Mapping[str, str], rank: str, size: str) -> tuple[int, int]:
    try:
        return int(environ[rank]), int(environ[size])
    except ValueError:
        values = f"{rank}={environ[rank]!r}, {size}={environ[size]!r}"
        raise UsageError(f"the launcher's variables are not numbers ({values}); unset them or start afresh") from None
