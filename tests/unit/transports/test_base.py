"""The contracts of a rank and an endpoint know no death; tests alone do. Its effect is tested over every transport."""

import pytest

from tests.conformance.worlds import kill
from transports import Transport
from transports.rpc.base import Endpoint


@pytest.mark.parametrize("contract", [Transport, Endpoint])
def test_a_contract_has_no_deaths(contract):
    assert not {"kill", "die", "_die"} & set(dir(contract))


def test_a_rank_with_a_process_of_its_own_is_refused(monkeypatch):
    monkeypatch.setattr(Transport, "__abstractmethods__", frozenset())
    with pytest.raises(TypeError, match="a rank of Transport dies with its process"):
        kill(Transport(3, 4))
