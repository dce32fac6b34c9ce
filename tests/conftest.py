"""What holds for every test: Hypothesis without deadlines, no traffic beyond the loopback, and no
test that is marked `docker` without a daemon.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

TESTS = Path(__file__).parent
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


@pytest.fixture(scope="session")
def docker_daemon() -> None:
    """Skips where no Docker daemon answers. Asked without the client library, which leaves the
    socket of a failed connection to the garbage collector.
    """
    kind, _, path = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").partition("://")
    if kind != "unix":
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            _connect(probe, path)
        except OSError as error:
            pytest.skip(f"no Docker daemon: {error}")


@pytest.fixture(scope="session")
def host_image(docker_daemon: None) -> dict[str, Any]:
    """`image`, `python` and `mounts` that run this host's programs, ours and our tests included."""
    import autotune

    script, ours = TESTS / "real_engine" / "host_image.py", Path(autotune.__file__).parents[1]
    said = subprocess.run(
        [sys.executable, script, "autotune-test-host:1", ours, TESTS],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    made: dict[str, Any] = json.loads(said.stdout)
    return made


@pytest.fixture(autouse=True)
def marked_docker(request: pytest.FixtureRequest) -> None:
    """What is marked `docker` needs a daemon."""
    if request.node.get_closest_marker("docker") is not None:
        request.getfixturevalue("docker_daemon")
