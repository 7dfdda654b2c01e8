"""Every mistake a user can make, alone on one machine: one message with fact and remedy, exit code 2, and no torch."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
import torch

from apps.common.flags.presets import find_preset
from apps.common.lm.models.gpt2_presets import PRESETS
from pipelined.api.data.tokens.index import FORMAT
from pipelined.api.data.tokens.tokenizer import ByteTokenizer
from pipelined.state.checkpoints import checkpoint
from pipelined.state.checkpoints.checkpoint import Meta
from pipelined.state.checkpoints.claim import claim
from tests.launching import ROOT


@dataclass(frozen=True)
class Mistake:
    """A command line, `~` standing for the folder of prepared files, and words that the message must hold."""

    flags: str
    words: tuple[str, ...]


def mistake(flags, *words):
    return pytest.param(Mistake(flags, words), id=flags)


MISTAKES = [
    mistake("--depth 3 --schedule chimera", "chimera needs an even depth (depth: 3)", "--depth 2 or 4"),
    mistake("--depth 8", "more stages than layers (stages: 8, layers: 6", "lower --depth to 6"),
    mistake("--depth 4 --width 3 --batch 32", "the batch does not divide", "--batch 32", "choose a multiple of 3"),
    mistake("--depth 4 --pipes 3", "pipes: 3", "--pipes can be 2, 4"),
    mistake("--schedule zigzag", "unknown schedule 'zigzag'", "known: ", ", chimera, ", ", swarm, ravnest, or a"),
    mistake("--schedule ~/absent.py", "importing the schedule", "absent.py", "the known: ", ", chimera, "),
    mistake("--schedule ~/stuck.py --depth 2 --dry-run", "deadlock", "^ waits for 0F0p0"),
    mistake("--schedule ~/forgets.py --depth 2", "worker 0 lacks 0B0p0", "^ missing: 0B0p0"),
    mistake("--schedule ~/broken.py", "SyntaxError: expected ':' (broken.py, line 1)", "correct it"),
    mistake("--schedule ~/repeats.csv", "worker 1 has 2 times, not 1, 1B0p0", "^ once too often: 1B0p0"),
    mistake("--schedule ~/repeats.csv --microbatches 2", "microbatches: 2, its own: 1", "use --depth 2"),
    mistake("--schedule ~/absent.csv", "cannot read the table", "give a CSV file with a row a worker"),
    mistake("--schedule pipedream --clip 1", "--clip 1 does not go with pipedream", "global norm", "leave --clip out"),
    mistake("--schedule pipedream --replay x", "cannot read the trace x", "give a file written by --trace"),
    mistake("--all-reduce fast", "unknown all-reduce algorithm 'fast'", "known: auto, ", "or measured"),
    mistake("--all-reduce ring:8,ring:4,auto", "(bytes: 8, then 4)", "recursive_doubling:16384,ring"),
    mistake("--transport smoke", "unknown transport 'smoke'", "local, mpi, tcp"),
    mistake("--transport tcp", "torchrun", "not set: RANK, WORLD_SIZE"),
    mistake("--preset huge", "no preset is called 'huge'", "tiny, gpt2, "),
    mistake("--heads 3", "d_model: 128, heads: 3", "give --heads 2, or"),
    mistake("--seq 9999", "sequence: 9999, positions: 256", "take --seq between 1 and 256"),
    mistake("--dropout 1.5", "dropout must lie in [0, 1)", "1.5"),
    mistake("--lr nan", "--lr must be at least 0 (it is nan)"),
    mistake("--sample 5 --prompt=", "--prompt is empty", "--sample 0"),
    mistake("--bogus 3", "--bogus", "--help"),
    mistake("--depth four", "--depth", "four"),
    mistake("--dtype float8", "float8", "float32"),
    mistake("--data ~/absent", "cannot read the text", "absent", "give --data a readable file"),
    mistake("--data ~/empty", "is empty (0 bytes)", "give --data a file with text in it"),
    mistake("--data ~/binary", "is not UTF-8 text", "byte 0 of 256"),
    mistake("--data ~/nothing", "holds no files", "give --data one with text files in it"),
    mistake("--data ~/short", "too little text for one batch", "give more --data"),
    mistake("--data ~/tokens-cut", "a.bin is truncated (bytes: 99, expected: 100)", "write the tokens again"),
    mistake("--data ~/tokens", "too little text for one batch (tokens: 48,", "give more --data"),
    mistake("--data ~/tokens --tokenizer gpt2 --vocab 50257", "another tokenizer", "leave --tokenizer out"),
    mistake("--data ~/tokens/a.bin --tokenizer bytes", "a token: 300, symbols: 256", "give its --tokenizer"),
    mistake("--data ~/tokens ~/short", "holds tokens and", "give --data one of both kinds"),
    mistake("--data LICENSE --val-data ~/absent", "cannot read the text", "absent"),
    mistake("--tokenizer gpt2", "tokenizer: 50257, model: 256", "take --vocab 50257 or another --tokenizer"),
    mistake("--vocab 100", "tokenizer: 256, model: 100", "take --vocab 256 or another --tokenizer"),
    mistake("--tokenizer absent", "no tokenizer is called 'absent'", "take bytes, gpt2, "),
    mistake("--init ~/absent", "cannot read", "config.json"),
    mistake("--init ~/bert", "another architecture (model_type: bert, needed: gpt2)", "give a GPT-2 directory"),
    mistake("--export ~/occupied", "something else than a GPT-2 (entries: 1)", "give --export a new directory"),
    mistake("--checkpoint ~/empty", "is a file", "give --checkpoint a directory"),
    mistake("--checkpoint ~/other", "another model", "layers: 9 saved, 4 asked", "another directory"),
    mistake("--checkpoint ~/same", "an earlier run (the latest: step-00000007)", "add --resume auto"),
    mistake("--checkpoint ~/taken", "taken is in use by another run (process ", "save into another directory"),
    mistake("--checkpoint ~/other --resume auto", "another model", "layers: 9 saved, 4 asked"),
    mistake("--save-every 5", "--save-every 5 saves nothing without a directory", "give --checkpoint DIR"),
    mistake("--resume auto", "--resume auto needs to know where", "--checkpoint DIR"),
    mistake("--new-data", "--new-data goes with a run that is resumed", "add --resume auto"),
    mistake("--resume ~/trained --data LICENSE", "on other data (data: 12 saved,", "tokenizer: 34 saved", "--new-data"),
    mistake("--resume ~/absent", "no checkpoint", "name one"),
    mistake("--resume ~/cut", "is cut short (bytes: ", "resume from another checkpoint"),
    mistake("--resume ~/garbled", "is damaged", "resume from another checkpoint"),
    mistake("--resume ~/same --steps 6", "beyond the last step (saved: 7, --steps 6)", "raise --steps"),
    mistake("--metrics ~/absent/file", "cannot write", "name another --metrics"),
    mistake("--schedule swarm --pipes 2", "--pipes 2 means nothing to a swarm", "leave it out"),
    mistake("--schedule swarm --depth 9", "more stages than layers (stages: 9, layers: 6", "lower --depth to 6"),
    mistake("--schedule swarm --steps 0", "(--steps 0)", "leave --schedule swarm out"),
    mistake("--schedule swarm --compress zip", "--compress: unknown codec 'zip'", "or none"),
    mistake("--schedule swarm --checkpoint ~/same", "checkpoints of a pipeline", "another directory"),
    mistake("--schedule swarm --checkpoint ~/same --resume ~/same", "--resume auto"),
    mistake(
        "--listen tcp://127.0.0.1:0", "only swarms and clusters are joined by others", "add --schedule swarm or ravnest"
    ),
    mistake("--metrics ~/nothing", "is a directory", "give --metrics a file"),
    mistake("--trace ~/absent/file", "cannot write", "name another --trace"),
]

STUCK = """
from pipelined.schedules import gpipe

stage_map = gpipe.stage_map

async def schedule(worker):
    for _ in worker.stage_map.microbatches[0]:
        await worker.backward(0)
        await worker.forward(0)
"""


def save(directory, model, config=None):
    """A checkpoint of one parameter after seven steps."""
    record = checkpoint.write_shard(directory, 7, 0, 1, {"weight": {"value": torch.arange(9.0)}})
    return checkpoint.commit(directory, Meta(7, model.identity(), config or {}), [record], keep=1)


def write_tokens(directory, size):
    """An index of 50 tokens, the largest of them 300, and so many bytes of a shard."""
    directory.mkdir()
    (directory / "a.bin").write_bytes(((300).to_bytes(2, "little") * 50)[:size])
    (directory / "tokenizer.json").write_text(ByteTokenizer().to_json())
    shards = [{"file": "a.bin", "tokens": 50}]
    (directory / "index.json").write_text(json.dumps({"format": FORMAT, "dtype": "uint16", "shards": shards}))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of files that are wrong, each in its own way."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "empty").touch()
    (folder / "binary").write_bytes(bytes(range(255, -1, -1)))
    (folder / "short").write_text("to be\n")
    (folder / "stuck.py").write_text(STUCK)
    (folder / "forgets.py").write_text(STUCK.replace("await worker.backward(0)", "pass"))
    (folder / "broken.py").write_text("def stage_map(shape)\n")
    (folder / "repeats.csv").write_text("0F0,0B0\n1F0,1B0,1B0\n")
    for name, size in (("tokens", 100), ("tokens-cut", 99)):
        write_tokens(folder / name, size)
    for name in ("nothing", "bert", "occupied"):
        (folder / name).mkdir()
    (folder / "bert" / "config.json").write_text('{"model_type": "bert"}')
    (folder / "occupied" / "thesis.txt").write_text("years of work")
    tiny = find_preset("tiny", PRESETS)
    save(folder / "same", tiny)
    save(folder / "trained", tiny, {"text": {"data": "12", "tokenizer": "34"}})
    save(folder / "other", type(tiny)(layers=9, d_model=128, heads=4, vocab=256))
    shard = next(save(folder / "cut", tiny).glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    (save(folder / "garbled", tiny) / "manifest.json").write_text("{")
    with claim(folder / "taken", "another"):
        yield folder


def contents(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture(scope="module")
def outcomes(files):
    """What every command line came to, in one process without torch; it must leave the files as they are."""
    mistakes = [case.values[0] for case in MISTAKES]
    lines = [one.flags.replace("~", str(files)).split(" ") for one in mistakes]
    before = contents(files)
    command = [sys.executable, "-B", "-m", "tests.usage.refused"]
    done = subprocess.run(command, input=json.dumps(lines), capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 0, done.stderr
    assert contents(files) == before
    return dict(zip(mistakes, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("wrong", MISTAKES)
def test_a_mistake_is_reported_in_one_message_before_torch_is_imported(wrong, outcomes):
    outcome = outcomes[wrong]
    told = " ".join(outcome["said"].split())
    assert outcome["code"] == 2, told
    assert all(word in told for word in wrong.words), told
    assert told.count("error:") == told.count("python -m apps.gpt2: error: ") == 1
    assert "Traceback" not in told
