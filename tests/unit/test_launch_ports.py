"""Ports of servers that start at the same time."""

from __future__ import annotations

import pytest

from autotune.errors import EnvironmentFault
from autotune.launch import ports


def test_a_port_is_given_to_one_server_until_it_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offered = iter([20001, 20001, 20002, 20001])
    monkeypatch.setattr(ports, "choose_port", lambda: next(offered))
    leases = ports.PortLeases()
    assert leases.take() == 20001
    assert leases.take() == 20002  # nobody listens on the first yet, and it is not free
    leases.give_back(20001)
    assert leases.take() == 20001


def test_no_port_is_better_than_one_that_is_another_servers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ports, "choose_port", lambda: 20001)
    leases = ports.PortLeases()
    leases.take()
    with pytest.raises(EnvironmentFault, match="no free port"):
        leases.take()
