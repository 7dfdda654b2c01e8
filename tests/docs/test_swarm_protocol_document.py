"""docs/swarm-protocol.md is what the classes of the protocol say."""

from tests.docs.swarm_protocol import FILE, document


def test_the_document_is_as_the_program_writes_it():
    assert FILE.read_text() == document(), "write it again: python -m tests.docs.swarm_protocol"
