"""Chats for tests, and what the assistant says in them."""

CHATS = [
    [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello to you"},
    ],
    [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two."},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "Three."},
    ],
    [{"role": "user", "content": "été"}, {"role": "assistant", "content": "oui"}],
]


def spoken(chats):
    """The assistant's messages."""
    return [message["content"] for chat in chats for message in chat if message["role"] == "assistant"]
