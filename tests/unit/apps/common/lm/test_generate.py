"""`generate`: the greedy continuation of a whole model, in pipelines of several depths; checkpoints; refusals."""

import re

import pytest
import torch

from apps.common.lm.generate import main
from apps.common.lm.huggingface.rotary import export_rotary
from apps.common.lm.models.rotary import RotaryLM
from apps.common.lm.models.rotary_presets import RotaryConfig
from apps.gpt2.__main__ import main as gpt2
from apps.llama.__main__ import start as llama
from pipelined.api.data.tokens.tokenizer import ByteTokenizer, train_tokenizer
from pipelined.training.stages.key_values import KeyValueCache
from tests.launching import ROOT

PROMPT, POSITIONS, TOKENS = "To be", 16, 14


def saved(directory, kind):
    """A small model with random weights, and the bytes as its tokenizer; returns the prompt and what it adds."""
    torch.manual_seed(3)
    if kind == "swarm":
        config = RotaryConfig(3, 16, 2, 256, POSITIONS, dropout=0.0, deviation=0.3)
        logits = RotaryLM(config).build(range(5), torch.float32, "cpu", 3)
        export_rotary(directory, dict(logits.named_parameters()), config, ByteTokenizer())
    else:
        model = theirs(kind).eval()
        model.save_pretrained(directory)
        ByteTokenizer().save(directory)

        def logits(ids):
            return model(ids).logits

    ids = list(PROMPT.encode())
    with torch.no_grad():
        for _ in range(TOKENS):
            ids.append(int(logits(torch.tensor([ids[-POSITIONS:]]))[0, -1].argmax()))
    return ids


def theirs(kind):
    """A model of `transformers`."""
    import transformers  # not at collection: it takes longer than torch

    if kind == "gpt2":
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=256, n_positions=POSITIONS, n_embd=16, n_layer=3, n_head=2, initializer_range=0.3
            )
        )
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "max_position_embeddings": POSITIONS}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=256, **sizes, **heads))


@pytest.mark.parametrize(("kind", "program"), [("gpt2", gpt2), ("llama", llama), ("swarm", llama)])
def test_the_likeliest_tokens_are_those_of_a_whole_model_at_every_depth(kind, program, tmp_path, capsys, monkeypatch):
    """A stage computes each token once, and beyond the positions of the model all of them for each new one."""
    ids, forwards, run = saved(tmp_path, kind), [], KeyValueCache.run
    monkeypatch.setattr("apps.common.lm.generate.printable", repr)
    monkeypatch.setattr(
        KeyValueCache, "run", lambda past, layers, x: forwards.append(x.shape[1]) or run(past, layers, x)
    )
    for depth in (1, 3):
        forwards.clear()
        flags = ["--prompt", PROMPT, "--tokens", str(TOKENS), "--temperature", "0", "--depth", str(depth)]
        assert program(["generate", "--from", str(tmp_path), *flags]) == 0
        assert capsys.readouterr().out.strip() == repr(ByteTokenizer().decode(ids))
        assert forwards == [*[len(PROMPT)] * depth, *[1] * 11 * depth, *[POSITIONS] * 2 * depth]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("split", ["--depth 1", "--depth 3", "--tensor 2", "--depth 2 --tensor 2"])
def test_prompts_are_continued_in_one_batch_each_as_alone(split, tmp_path, capsys, monkeypatch):
    """Some go beyond the positions of the model; each draws as alone."""
    saved(tmp_path, "gpt2")
    monkeypatch.setattr("apps.common.lm.generate.printable", repr)
    prompts, flags = ["Ay", "To be, or not to be", "O", "Ay"], ["generate", "--from", str(tmp_path), "--tokens", "12"]
    for prompt in prompts:
        assert gpt2([*flags, "--prompt", prompt]) == 0
    alone = capsys.readouterr().out.splitlines()
    assert gpt2([*flags, *split.split(), "--prompt", *prompts]) == 0
    assert capsys.readouterr().out.splitlines() == "\n---\n".join(alone).splitlines()


def test_a_checkpoint_continues_a_prompt_as_its_export(tmp_path, capsys):
    files = f"--data {ROOT / 'LICENSE'} --export {tmp_path / 'out'} --checkpoint {tmp_path / 'saved'}"
    flags = f"--layers 1 --d-model 16 --seq 16 --steps 1 --batch 4 --depth 2 --sample 0 {files}"
    assert gpt2(flags.split()) == 0
    capsys.readouterr()
    said = []
    for source in ("saved", "out"):
        assert main("apps.gpt2", f"--from {tmp_path / source} --tokens 9 --seed 4 --top-p 0.9".split()) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] and said[0].startswith("ROMEO")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--top-p 0", "--top-p must be above 0 and at most 1 (it is 0)"),
        ("--temperature -1", "--temperature must be at least 0"),
        ("--depth 9", "more stages than layers (stages: 9, layers: 6)"),
        ("--tensor 2", "only a GPT-2 is split by --tensor"),
        ("--prompt", "a prompt needs at least one character"),
        ("--tokenizer absent", "no tokenizer is called 'absent'"),
    ],
)
def test_impossible_settings_are_refused(flags, message, tmp_path, capsys):
    saved(tmp_path, "llama")
    assert main("apps.llama", f"--from {tmp_path} {flags}".split()) == 2
    assert message in capsys.readouterr().err


def test_a_prompt_of_tokens_that_the_model_has_not_is_refused(tmp_path, capsys):
    """The bytes are the first 256 symbols; the first merges of a text of one word make a symbol of the word."""
    saved(tmp_path / "model", "llama")
    (tmp_path / "words").mkdir()
    train_tokenizer(260, ["ROMEO " * 50]).save(tmp_path / "words")
    flags = ["--from", str(tmp_path / "model"), "--tokenizer", str(tmp_path / "words"), "--tokens", "1"]
    assert main("apps.llama", flags) == 2
    assert re.search(
        r"tokens that the model has not .token 2\d\d, vocabulary of the model: 256, of the tokenizer: 260.; give --tok",
        capsys.readouterr().err,
    )
    assert main("apps.llama", [*flags, "--prompt", "x"]) == 0


def test_a_directory_of_another_model_is_refused(tmp_path, capsys):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert main("apps.gpt2", ["--from", str(tmp_path)]) == 2
    assert "is of a program that cannot generate (bert)" in capsys.readouterr().err
    assert main("apps.gpt2", ["--from", str(tmp_path / "absent")]) == 2
    assert "no checkpoint" in capsys.readouterr().err
