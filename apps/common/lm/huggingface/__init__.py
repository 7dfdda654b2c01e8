"""Directories of models as Hugging Face keeps them: config.json, safetensors, tokenizer."""
