"""A Llama of `transformers`, unchanged, cut where its modules begin: `mpirun -n 4 python examples/llama.py`."""

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

import pipelined as pp

torch.manual_seed(0)  # every rank builds the same model
sizes = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=4, num_attention_heads=4)
model = LlamaForCausalLM(LlamaConfig(**sizes, attention_dropout=0.1, tie_word_embeddings=True, use_cache=False))
text = torch.tensor(list(Path(__file__).read_bytes()))[:1024].view(16, 64)
batches = [(text[:, :-1], text[:, 1:])] * 20


def loss(output, targets):
    return cross_entropy(output.logits.flatten(0, 1), targets.flatten())


done = pp.train(pp.trace(model, text[:2, :-1]), batches, loss=loss, optimizer=torch.optim.AdamW, depth=4)
if state := done.state_dict():  # on rank 0
    model.load_state_dict(state)
    print(f"loss {done.losses[0]:.4f} at first, {done.losses[-1]:.4f} at last; the state loads into the Llama")
