"""What holds for every test: Hypothesis without deadlines, and no traffic beyond the loopback."""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Iterator

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

_connect = socket.socket.connect


def _local_only(self: socket.socket, address: object) -> None:
    if self.family in (socket.AF_INET, socket.AF_INET6):
        assert isinstance(address, tuple)
        host = str(address[0])
        if host != "localhost" and not ipaddress.ip_address(host).is_loopback:
            raise AssertionError(f"a test may not connect to {host}")
    _connect(self, address)  # type: ignore[arg-type]


@pytest.fixture(autouse=True, scope="session")
def loopback_only() -> Iterator[None]:
    """Connections of this process to anything but this machine fail."""
    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", _local_only)
    yield
    patch.undo()
