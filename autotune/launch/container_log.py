"""Following a container's log without ever waiting for it.

The stream of a quiet container may time out and that of an ended one may never end, so a thread
reads it and nobody depends on that thread: what it missed is read again before removal.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from docker.errors import DockerException
from requests.exceptions import RequestException
from urllib3.exceptions import HTTPError

from autotune.errors import EnvironmentFault
from autotune.launch.server_log import MaskedLog

FOLLOW_TIMEOUT_S = 3600
"""A stream silent for this long is opened anew; the daemon may have forgotten it."""
CATCH_UP_S = 2.0
"""How long the reader may take to reach the end of an ended container's log."""

_STREAM_ERRORS = (DockerException, RequestException, HTTPError, OSError, EnvironmentFault)


class ContainerLog:
    """Copies one container's output into a masked log, completely by the time `finish` returns."""

    def __init__(self, log: MaskedLog, *, connect: Callable[[int], Any]) -> None:
        self.path: Path = log.path
        self._log = log
        self._connect = connect
        self._complete = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._stream: Any = None

    def follow(self, container_id: str) -> None:
        """Begin to copy; returns at once."""
        self._thread = threading.Thread(
            target=self._copy, args=(container_id,), name="container-log", daemon=True
        )
        self._thread.start()

    def finish(self, client: Any, container_id: str) -> None:
        """Complete the file and close it. Call when the container has ended and still exists.

        Bounded by `CATCH_UP_S` and the client's own timeout; a daemon that cannot give the log
        leaves what was copied so far.
        """
        assert self._thread is not None
        self._thread.join(CATCH_UP_S)
        self._ended.set()
        stream = self._stream
        if not self._complete.is_set():
            if stream is not None and self._thread.is_alive():
                stream.close()
            self._read_again(client, container_id)
        self._log.close()

    def _copy(self, container_id: str) -> None:
        try:
            client = self._connect(FOLLOW_TIMEOUT_S)
        except _STREAM_ERRORS:
            return
        try:
            self._stream = client.api.logs(container_id, stream=True, follow=True)
            for data in self._stream:
                if self._ended.is_set():
                    return
                self._log.feed(data)
            self._complete.set()
        except _STREAM_ERRORS:
            return  # the rest is read again at the end
        finally:
            client.close()

    def _read_again(self, client: Any, container_id: str) -> None:
        try:
            whole = client.api.logs(container_id, stream=False, follow=False)
        except _STREAM_ERRORS:
            return
        self._log.restart()
        self._log.feed(whole)
