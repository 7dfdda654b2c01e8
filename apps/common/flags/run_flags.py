"""The flags that training programs share: a frozen dataclass, from which a command line is made. No torch.

A program derives its own flags from `RunFlags`. A flag left open (None) is chosen and printed; checkpoints and metrics
record the resolved configuration.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from apps.common.flags.config_file import FLAGS, RESOLVED, expand_config, value_of
from apps.common.flags.groups import parse_words
from pipelined.errors import UsageError, refuse_below
from pipelined.process.reporting.events import Level
from pipelined.schedules import Knob, checked_knobs, knobs_of
from pipelined.state.checkpoints import checkpoint

MINIMUM = {
    **dict.fromkeys(("depth", "width", "microbatch", "microbatches", "batch", "tensor", "keep"), 1),
    **dict.fromkeys(("steps", "warmup", "lr", "min_lr", "beta1", "beta2", "eps", "weight_decay", "clip"), 0),
    **dict.fromkeys(("save_every", "eval_every", "digest"), 0),
}
"""The smallest value of each number that has one."""
ZERO = {
    "save_every": "0 saves only at the end and on a stop request",
    "eval_every": "0 evaluates only at the end",
    "eval_windows": "0 scores all windows",
}
"""What 0 means, for those of these numbers where it is a word of its own."""
AUTO = "auto"
"""With --tensor the planner chooses the ranks of a worker, with --layout how they split the model."""
AUTO_PLAN = Path(AUTO)
"""Instead of a plan file: measure and plan before the first step."""
ALIASES = ("stages",)
"""The second names of flags, which a file may use too."""


@dataclass(frozen=True)
class RunFlags:
    """How a run is arranged, trained, saved and reported; a program adds its model and its data."""

    schedule: str | None = None
    """Order of a pipeline's work: the name of a schedule, a dotted module, a .py file, or a .csv table.
    Default: chimera at even depths, else one_f_one_b."""
    depth: Annotated[int | None, tyro.conf.arg(aliases=("--stages",))] = None
    """Stages of a pipeline (D). Default: the even divisor of the ranks that is nearest to 4."""
    width: int | None = None
    """Pipeline groups side by side (W), each on its own microbatches. Default: all ranks divided by those of one."""
    tensor: int | Literal["auto"] = 1
    """Ranks of a worker (T), which split every tensor of its stages. Above 1 it needs a schedule with a
    flush; without --depth the schedule's least depth is taken. auto: the planner chooses, with all that is open."""
    microbatch: int | None = None
    """Sequences or images in a microbatch (B)."""
    batch: int | None = None
    """Sequences or images per step over all groups (B·N·W). Default: 32, or the product of the sizes that are given."""
    seed: int = 0
    """Seed of initial values, dropout, the order of the data, and the sample."""
    knobs: Mapping[str, int | str] = field(default_factory=dict)
    """Further settings of the schedule, those that are not the default; each of them is a flag."""
    plan: Path | None = None
    """Run the plan that `python -m pipelined plan --out` wrote, and compare its predictions with the run; other flags
    may repeat what the plan contains. auto: measure first, and choose among all schedules."""
    microbatches: int | None = None
    """Microbatches of a group per step (N). Default: the fewest, D or more, that divide the batch."""
    steps: int = 600
    """Steps to train; 0: only what follows training is done, such as the evaluation."""
    lr: float = 4e-3
    """Highest learning rate."""
    warmup: int = 30
    """Steps in which the learning rate rises."""
    lr_schedule: Literal["cosine", "wsd", "constant"] = "cosine"
    """How the learning rate falls after the warm-up: by half a cosine; wsd (warm-up, stable, decay): in a straight line
    over the last fifth of the other steps; constant: not at all."""
    min_lr: float | None = None
    """The learning rate at the last step, of cosine and wsd. Default: a tenth of --lr."""
    beta1: float = 0.9
    """AdamW's decay of the first moment."""
    beta2: float = 0.95
    """AdamW's decay of the second moment."""
    eps: float = 1e-8
    """AdamW's epsilon, added to the denominator."""
    weight_decay: float = 0.1
    """Decay of matrices (AdamW); vectors do not decay."""
    clip: float | None = None
    """Largest global gradient norm; 0 does not clip. Default: 1, or 0 where the schedule is asynchronous."""
    dtype: Literal["float32", "bfloat16", "float16", "float64", "bfloat16-parameters"] = "float32"
    """float32, float64, or bfloat16 or float16 (autocast in the forward, float32 parameters). float16 scales the loss,
    and skips a step whose gradients overflow. bfloat16-parameters: parameters, activations and gradients in bfloat16;
    the optimizer updates float32 copies of the parameters."""
    recompute: bool = False
    """Keep only a stage's input and output; run its forward again. --recompute attention is --recompute-attention."""
    recompute_attention: bool = False
    """Keep queries, keys and values alone of each attention, and compute its core again in the backward."""
    compile: bool = False
    """Compile each stage with torch.compile, at its first microbatch; with whole backwards."""
    share_devices: bool = False
    """Let ranks share a GPU where a machine has fewer GPUs than ranks."""
    all_reduce: str = "auto"
    """Algorithm of gradient sums: auto, ring, rabenseifner, multi_ring, recursive_doubling, hierarchical, native or
    shared. recursive_doubling:16384,ring: the first up to 16,384 bytes, the second beyond."""
    exact_sums: bool = False
    """Sum gradients exactly: for one --batch and --microbatch all parameters have the same bits at any depth and width,
    with any schedule and transport. Compare two runs by --digest. Each rank computes with one thread."""
    shard_optimizer: bool = False
    """The ranks that hold a parameter divide its update (ZeRO-1): each keeps the optimizer's state of its own rows.
    --all-reduce is then auto, ring, rabenseifner or shared."""
    offload_optimizer: bool = False
    """Keep the optimizer's state in host memory with a copy of the parameters, and update there (ZeRO-Offload). The
    losses are those of a run without."""
    delayed_update: bool = False
    """With --offload-optimizer: compute the next step while a step's update runs, and use its values one step later."""
    compress: str = "none"
    """Codec of activations and gradients between stages: none, bf16, blockwise8, fp16 or zstd. `blockwise8:256` and
    `zstd:9` set block and level."""
    transport: str = "auto"
    """auto (by launcher), mpi, tcp, local, or a URL such as `tcp://10.0.0.1:29500?wait=60` or `local://?delay=5ms`,
    in quotes, because shells read ? and &."""
    checkpoint: Path | None = None
    """Directory for checkpoints; one is written at the end, on a stop request, and every --save-every steps."""
    save_every: int = 0
    """Steps between checkpoints; 0 saves only at the end and on a stop request."""
    async_save: bool = False
    """Write a checkpoint of --save-every while training continues, from a copy of the state in host memory."""
    keep: int = 3
    """Checkpoints to keep."""
    resume: str | None = None
    """auto (the latest under --checkpoint, if any) or a checkpoint's directory. Flags that are not given
    are taken from it."""
    eval_every: int = 0
    """Steps between evaluations; 0 evaluates only at the end."""
    digest: int = 0
    """Steps between digests of all parameters, in the log and --metrics; 0: none. A swarm prints one at the end."""
    metrics: Path | None = None
    """Append one JSON object per step to this file."""
    config: Path | None = None
    """Read flags from this file: TOML, or the JSON that --print-config writes. Flags of the command line win."""
    tensorboard: Path | None = None
    """Write the same numbers to this directory, for TensorBoard (extra tensorboard)."""
    wandb: str | None = None
    """Send the same numbers to this project of Weights & Biases (extra wandb)."""
    print_config: bool = False
    """Print the resolved configuration as JSON, and stop."""
    dry_run: bool = False
    """Print the plan, the shapes and the memory of each rank, and stop."""
    log: Level = "warning"
    """Print events from this level up to stderr, one per line: debug, info, warning or error."""

    def __post_init__(self) -> None:
        for name, least in self.least().items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                refuse_below(least, flag(name), value, ZERO.get(name, ""))
        for name in ("beta1", "beta2"):
            if getattr(self, name) >= 1:
                raise UsageError(f"{flag(name)} must be below 1 (it is {getattr(self, name)})")
        if self.save_every and self.checkpoint is None:
            fact = f"--save-every {self.save_every} saves nothing without a directory"
            raise UsageError(f"{fact}; give --checkpoint DIR")
        if self.resume == "auto" and self.checkpoint is None:
            raise UsageError("--resume auto needs to know where to look; add --checkpoint DIR")

    @property
    def team_size(self) -> int:
        """The ranks of a worker; 1 where they are open."""
        return 1 if self.tensor == AUTO else int(self.tensor)

    @property
    def divides(self) -> bool:
        """Whether the ranks that hold a parameter divide its update."""
        return self.shard_optimizer

    @property
    def itemsize(self) -> int:
        """Bytes of a number of a parameter."""
        return {"float64": 8, "bfloat16-parameters": 2}.get(self.dtype, 4)

    @property
    def master_itemsize(self) -> int:
        """Bytes of a number of the copies that the optimizer updates; 0: it updates the parameters themselves."""
        has_masters = self.offload_optimizer or self.dtype == "bfloat16-parameters"
        return max(4, self.itemsize) if has_masters else 0

    @property
    def product_itemsize(self) -> int:
        """Bytes of a number of what matrix products take and give under autocast; 0 without it."""
        return 2 if self.dtype in ("bfloat16", "float16") else 0

    @property
    def lr_floor(self) -> float:
        """The share of --lr that --min-lr is."""
        return 0.1 if self.min_lr is None or not self.lr else self.min_lr / self.lr

    def least(self) -> Mapping[str, float]:
        """The smallest value of each number that has one."""
        return MINIMUM

    def to_dict(self) -> dict[str, Any]:
        """The configuration as JSON can hold it."""
        flags = {f.name: _json_value(getattr(self, f.name)) for f in fields(self) if f.name != "knobs"}
        return flags | {knob.name: knob.of(self) for knob in knobs_of(self.schedule)}


@dataclass(frozen=True)
class EvaluationFlags:
    """What an evaluation scores."""

    eval_windows: int | None = None
    """Most windows of --seq tokens that an evaluation scores, evenly spaced. 0: all. If the text has fewer, all are
    scored. Default: all of text, 256 of tokens."""


@dataclass(frozen=True)
class TextDataFlags(EvaluationFlags):
    """The data of a run that learns from text, and its tokenizer."""

    data: tuple[Path, ...] = ()
    """Text files or directories; or tokens in files, which every rank maps: a nanoGPT .bin, or a directory with an
    index. Default: Shakespeare's plays (extra shakespeare), or else Python's help topics."""
    val_data: tuple[Path, ...] = ()
    """What evaluations score, in any of these forms. Default: the end of each text, or of the tokens."""
    tokenizer: str | None = None
    """bytes (256 symbols), gpt2, bpe:N (trained on the training text), a tokenizer.json, or a directory with one.
    Default: the tokenizer in --init or in the index, gpt2 for a .bin or a published GPT-2, else bytes."""
    new_data: bool = False
    """With --resume: continue with another text or tokenizer than the checkpoint's."""


def config_json(config: RunFlags, resolved: Mapping[str, Any]) -> str:
    """What --print-config prints: the flags, which --config reads, and the resolved configuration."""
    flags = {name: value for name, value in config.to_dict().items() if name not in ("config", "print_config")}
    return json.dumps({FLAGS: {n: v for n, v in flags.items() if v not in (None, [])}, RESOLVED: resolved}, indent=2)


F = TypeVar("F", bound=RunFlags)


def start_of(config: RunFlags) -> Path | None:
    """The checkpoint that the run resumes, if any."""
    if config.resume == "auto":
        return config.checkpoint and checkpoint.latest(config.checkpoint)
    return Path(config.resume) if config.resume else None


def flag(name: str) -> str:
    """A field's name on the command line."""
    return "--" + name.replace("_", "-")


def _json_value(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_json_value(v) for v in value] if isinstance(value, tuple) else value


def parse_flags(arguments: list[str], default: F, program: str) -> F:
    """Make a program's flags of a command line.

    Args:
        default: the values of flags that are not given.
        program: how the program is called, for help.
    Raises:
        SystemExit: 0 after --help. UsageError: as `parse_words`; or as `checked_knobs`.
    """
    names = [*(f.name for f in fields(default)), *ALIASES]
    arguments = expand_config(arguments, lambda words: [*names, *(knob.name for knob in _knobs(words))])
    start = f"Start: mpirun -n 4 {program} --steps 100; without a launcher all ranks run in one process."
    about = f"{default.__doc__}\n\n{start}\n\nWhat is left out is chosen, and printed. --version shows the version."
    knobs = _knobs(arguments)
    config, values = parse_words(type(default), arguments, program, about=about, default=default, knobs=knobs)
    settings = {knob.name: values[knob.name] for knob in knobs}
    return replace(config, knobs=checked_knobs(config.schedule, settings))


def _knobs(arguments: Sequence[str]) -> Sequence[Knob[Any]]:
    """The settings of the schedule that a command line names."""
    return knobs_of(value_of("schedule", arguments))
