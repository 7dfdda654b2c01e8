"""The address at which a process on this machine listens, with what makes its links slow."""

import pytest

from apps.common.flags.address import link_options, listen_url


@pytest.mark.parametrize("links", ["delay=50ms&rate=500mbit", "delay=50ms,rate=500mbit", "delay=50ms,rate=500mbit,"])
def test_a_comma_separates_as_an_ampersand_does_which_a_shell_takes_for_the_end_of_a_command(links):
    assert link_options(links) == "delay=50ms&rate=500mbit"
    assert listen_url(links) == "tcp://127.0.0.1:0?delay=50ms&rate=500mbit"


def test_without_links_the_address_has_no_options():
    assert listen_url("") == "tcp://127.0.0.1:0"
