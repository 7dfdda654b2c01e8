"""Chats in JSON lines as text: `{"messages": [{"role": "user", "content": "Hello"}, ...]}`, a chat a line.

Every message becomes `<|im_start|>ROLE`, a line end, the content and `<|im_end|>` (ChatML); messages are parted by line
ends. What the assistant says counts as a target, with its `<|im_end|>`; nothing else does.
"""

from collections.abc import Iterator
from pathlib import Path

from pipelined.api.data.tokens.formats import TextChunk, loaded_row, require_utf8
from pipelined.errors import UsageError

ASSISTANT = "assistant"


def chat_chunks(path: Path, field: str) -> Iterator[TextChunk]:
    """The chats of a file, each a document.

    Args:
        field: the key that holds the messages.
    Raises:
        UsageError: the file is no `.jsonl`; or a line is no chat.
    """
    if path.suffix.lower() != ".jsonl":
        raise UsageError(f"{path} is no .jsonl; --chat reads JSON lines with a list of messages")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                line_name = f"line {number} of {path}"
                yield from _chunks_of(loaded_row(line, line_name), field, line_name, len(line))


def _chunks_of(row: dict[str, object], field: str, line_name: str, size: int) -> Iterator[TextChunk]:
    messages = _messages(row, field, line_name)
    for turn, (role, content) in enumerate(messages, 1):
        opening = ("\n" if turn > 1 else "") + f"<|im_start|>{role}\n"
        closing = f"{content}<|im_end|>"
        is_last = turn == len(messages)
        nbytes = size if turn == 1 else 0
        if role != ASSISTANT:
            yield TextChunk(opening + closing, is_last, nbytes, counted=False)
        else:
            yield TextChunk(opening, False, nbytes, counted=False)
            yield TextChunk(closing, is_last, 0)


def _messages(row: dict[str, object], field: str, line_name: str) -> list[tuple[str, str]]:
    """The role and the content of each message."""
    value = row.get(field)
    if not isinstance(value, list) or not value:
        raise UsageError(f"{line_name} has no list of messages in {field!r}; name the key by --field, or mend the line")
    keys = ("role", "content")
    messages = [tuple(item.get(key) if isinstance(item, dict) else None for key in keys) for item in value]
    for role, content in messages:
        if not isinstance(role, str) or not isinstance(content, str):
            raise UsageError(f"{line_name} has a message without a text as its role and its content; mend it")
        require_utf8(role + content, line_name, field)
    return [(str(role), str(content)) for role, content in messages]
