"""Every flag of the GPT-2 program: one frozen dataclass, from which the command line is made. No torch.

A flag left open (None) is chosen and printed; checkpoints and metrics record the resolved configuration.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import tyro

from pipelined.aio.events import Level
from pipelined.errors import UsageError, refuse_below
from pipelined.schedules import Knob, knobs_of
from pipelined.schedules.knobs import set_knobs

LEAST = {
    **dict.fromkeys(("depth", "width", "microbatch", "microbatches", "batch", "tensor"), 1),
    **dict.fromkeys(("layers", "d_model", "heads", "vocab", "seq", "keep"), 1),
    **dict.fromkeys(("steps", "warmup", "lr", "weight_decay", "clip"), 0),
    **dict.fromkeys(("save_every", "eval_every", "digest", "sample"), 0),
}
"""The smallest value of each number that has one."""


@dataclass(frozen=True)
class Config:
    """Train a GPT-2 across ranks, in a bidirectional pipeline, hybrid with data parallelism."""

    schedule: str | None = None
    """Order of a pipeline's work: the name of a schedule, a dotted module, a .py file, or a .csv table; or swarm.
    Default: chimera at even depths, else one_f_one_b."""
    depth: Annotated[int | None, tyro.conf.arg(aliases=("--stages",))] = None
    """Stages of a pipeline (D); also called --stages. Default: the even divisor of the ranks that is nearest to 4; with
    --schedule swarm 3, or fewer, so that each stage has two ranks."""
    width: int | None = None
    """Pipeline groups side by side (W), each on its own microbatches. Default: the ranks divided by those of a group.
    With --schedule swarm the peers of a stage, 2 by default; a launcher's ranks determine their number."""
    tensor: int = 1
    """Ranks of a worker (T), which split every tensor of its stages: rank = (group * workers + worker) * T + member.
    Above 1 at depth 1, with a flush."""
    layout: str | None = None
    """How they split the model: data, megatron, or ROWS.COLUMNS.CONTRACTION by operator, such as
    c_attn=1.2.1,attn.c_proj=1.1.2,c_fc=1.2.1,mlp.c_proj=1.1.2,wte=1.2.1. Default: megatron."""
    knobs: tyro.conf.Suppress[tyro.conf.Fixed[Mapping[str, int | str]]] = field(default_factory=dict)
    """Further settings of the schedule, those that are not the default; each of them is a flag."""
    plan: Path | None = None
    """Run the plan that `python -m pipelined plan --out` wrote, and compare its predictions with the run; other flags
    may repeat what the plan contains. auto: measure first, and choose among all schedules."""
    microbatch: int | None = None
    """Sequences in a microbatch (B)."""
    microbatches: int | None = None
    """Microbatches of a group per step (N). Default: the fewest, D or more, that divide the batch."""
    batch: int | None = None
    """Sequences per step over all groups (B·N·W). Default: 32, or the product of the sizes that are given."""
    steps: int = 600
    """Steps to train; 0 only evaluates, exports and samples."""
    preset: str = "tiny"
    """Model: tiny, gpt2, gpt2-medium, gpt2-large, gpt2-xl, chimera (the paper's), or of AutoDDL's paper autoddl-8, -20
    and -44, autoddl-small, -large and -deep."""
    layers: int | None = None
    """Transformer blocks, instead of the preset's."""
    d_model: int | None = None
    """Width of the model, instead of the preset's."""
    heads: int | None = None
    """Attention heads, instead of the preset's."""
    vocab: int | None = None
    """Vocabulary of the model, at least that of the tokenizer, instead of the preset's (tiny: the tokenizer's)."""
    seq: int | None = None
    """Tokens of a sequence. Default: 64, or the model's positions if they are fewer."""
    dropout: float | None = None
    """Dropout probability in training, instead of the preset's."""
    data: tuple[Path, ...] = ()
    """Text files or directories. Default: Shakespeare's plays (extra shakespeare), or else Python's help topics."""
    tokenizer: str | None = None
    """bytes (256 symbols), gpt2, bpe:N (trained on the training text), a tokenizer.json, or a directory with one.
    Default: the tokenizer in --init, if there is one, else bytes."""
    lr: float = 4e-3
    """Highest learning rate."""
    warmup: int = 30
    """Steps in which the learning rate rises."""
    weight_decay: float = 0.1
    """Decay of matrices (AdamW); vectors do not decay."""
    clip: float | None = None
    """Largest global gradient norm; 0 does not clip. Default: 1, or 0 where the schedule is asynchronous."""
    seed: int = 0
    """Seed of initial values, dropout, the order of the data, and sampling."""
    dtype: Literal["float32", "bfloat16", "float64"] = "float32"
    """float32, float64, or bfloat16 (autocast in the forward, float32 parameters)."""
    recompute: bool = False
    """Keep only the input and output of a stage, and run its forward again before its backward."""
    all_reduce: str = "auto"
    """Algorithm of gradient sums: auto, ring, rabenseifner, multi_ring, recursive_doubling, hierarchical, native or
    shared. recursive_doubling:16384,ring: the first up to 16,384 bytes, the second beyond. measured: time all of them
    first."""
    exact_sums: bool = False
    """Sum gradients exactly: for one --batch and --microbatch all parameters have the same bits at any depth and width,
    with any schedule and transport. Compare two runs by --digest. Each rank computes with one thread."""
    compress: str = "none"
    """Codec of activations and gradients between stages: none, bf16, blockwise8, fp16 or zstd. `blockwise8:256` and
    `zstd:9` set block and level."""
    transport: str = "auto"
    """auto (by launcher), mpi, tcp, local, or a URL such as `tcp://10.0.0.1:29500?wait=60` or `local://?delay=5ms`."""
    listen: str | None = None
    """With --schedule swarm: tcp://HOST:PORT at which rank 0 accepts requests. Default: only this machine can join."""
    init: Path | None = None
    """Start from a Hugging Face GPT-2 directory, which determines the sizes."""
    export: Path | None = None
    """Write a Hugging Face GPT-2 directory at the end."""
    checkpoint: Path | None = None
    """Directory for checkpoints; one is written at the end, on a stop request, and every --save-every steps."""
    save_every: int = 0
    """Steps between checkpoints; 0 saves only at the end and on a stop request."""
    keep: int = 3
    """Checkpoints to keep."""
    resume: str | None = None
    """auto (the latest under --checkpoint, if any) or a checkpoint's directory. Flags that are not given
    are taken from it."""
    new_data: bool = False
    """With --resume: continue with another text or tokenizer than the checkpoint's."""
    eval_every: int = 0
    """Steps between evaluations; 0 evaluates only at the end."""
    digest: int = 0
    """Steps between digests of all parameters, in the log and in --metrics; 0 makes none."""
    metrics: Path | None = None
    """Append one JSON object per step to this file."""
    trace: Path | None = None
    """Write a Chrome/Perfetto timeline of all ranks to this file."""
    replay: Path | None = None
    """Run the instructions of every step in the order of a timeline that --trace wrote."""
    sample: int = 200
    """Tokens to sample at the end."""
    prompt: str = "ROMEO"
    """Text at the beginning of the sample."""
    print_config: bool = False
    """Print the resolved configuration as JSON, and stop."""
    dry_run: bool = False
    """Print the plan, the shapes and the memory of each rank, and stop."""
    log: Level = "warning"
    """Print events from this level up to stderr, one per line: debug, info, warning or error."""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if value is not None:
                refuse_below(least, flag(name), value)
        if self.resume == "auto" and self.checkpoint is None:
            raise UsageError("--resume auto needs to know where to look; add --checkpoint DIR")
        if self.new_data and self.resume is None:
            raise UsageError("--new-data goes with a run that is resumed; add --resume auto, or leave it out")
        if self.listen is not None and self.schedule != "swarm":
            fact = f"only a swarm is joined by others (--listen {self.listen}, --schedule {self.schedule or 'open'})"
            raise UsageError(f"{fact}; add --schedule swarm, or leave --listen out")
        if self.sample and not self.prompt:
            raise UsageError("a sample needs at least one character to begin with (--prompt is empty); or --sample 0")

    def plain(self) -> dict[str, Any]:
        """The configuration as JSON can hold it."""
        flags = {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "knobs"}
        return flags | {knob.name: knob.of(self) for knob in knobs_of(self.schedule)}


def flag(name: str) -> str:
    """A field's name on the command line."""
    return "--" + name.replace("_", "-")


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def parse(arguments: list[str], default: Config | None = None) -> Config:
    """Make a Config of a command line.

    Args:
        default: the values of flags that are not given, instead of their own defaults.

    Raises:
        SystemExit: 0 after --help, 2 on an unknown flag or a value of another type (tyro names the nearest flag).
        UsageError: a value out of range, or the user's own schedule cannot be read.
    """
    about, knobs = f"{Config.__doc__} --version shows the version.", knobs_of(_schedule(arguments))
    flags, default = _with(knobs), default or Config()
    start = flags(**{f.name: getattr(default, f.name) for f in fields(Config)})
    found = tyro.cli(flags, args=arguments, default=start, prog="python -m apps.gpt2", description=about)
    given = {f.name: getattr(found, f.name) for f in fields(Config)}
    return Config(**{**given, "knobs": set_knobs(knobs, vars(found))})


def _with(knobs: Sequence[Knob[Any]]) -> type[Config]:
    """A `Config` with a flag for each knob, and with the help of flags that may be left open.

    Raises:
        UsageError: a knob has the name of another flag.
    """
    for taken in {f.name for f in fields(Config)} & {knob.name for knob in knobs}:
        raise UsageError(f"the knob {taken} of the schedule has the name of another flag; rename it")
    made = [(k.name, Annotated[type(k.default), tyro.conf.arg(help=k.help)], field(default=k.default)) for k in knobs]
    open_flags = [(f.name, _open(f.type), f) for f in fields(Config) if f.default in (None, ())]
    return make_dataclass("Config", [*open_flags, *made], bases=(Config,), frozen=True)


def _open(kind: Any) -> Any:
    """The type of a flag that may be left open; its help says in words what happens then, and not (default: None)."""
    plain = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    metavar = get_args(plain)[0].__name__.upper() if NoneType in get_args(plain) else None
    shown = tyro.conf.arg(
        metavar=metavar, help_behavior_hint=lambda value: "" if value in ("None", "") else f"(default: {value})"
    )
    return Annotated[kind, shown]


def _schedule(arguments: Sequence[str]) -> str | None:
    """The schedule that a command line names: its flags depend on it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--schedule", nargs="?")
    return parser.parse_known_args(arguments)[0].schedule
