"""Waiting for an absolute instant inside an event loop, to a tenth of a millisecond.

Event loop timers are good to about a millisecond (uvloop rounds to whole ones), which would count
as waiting time of every request. Linux' timerfd wakes the loop like a readable socket instead.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from types import TracebackType

MIN_SLEEP_S = 0.001
"""uvloop rounds timers to milliseconds; a shorter sleep would spin."""
_CLOCK_MONOTONIC = 1
_ABSOLUTE = 1
_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC if hasattr(os, "O_CLOEXEC") else 0


class _Moment(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _Moment), ("value", _Moment))


async def until(due: float) -> None:
    """Sleep until an absolute monotonic instant with the loop's own timers; never returns early."""
    while (wait := due - time.monotonic()) > 0:  # noqa: ASYNC110 - time is the condition
        await asyncio.sleep(max(wait, MIN_SLEEP_S))


class Pacer:
    """Waits for one instant after another. A context manager; one waiter at a time."""

    def __init__(self) -> None:
        self._descriptor = -1
        self._libc: ctypes.CDLL | None = None
        self._woken: asyncio.Future[None] | None = None

    def __enter__(self) -> Pacer:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            descriptor = libc.timerfd_create(_CLOCK_MONOTONIC, _NONBLOCK_CLOEXEC)
        except (OSError, AttributeError):  # no such call on this system
            return self
        if descriptor >= 0:
            self._libc, self._descriptor = libc, descriptor
            asyncio.get_running_loop().add_reader(descriptor, self._ring)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    async def until(self, due: float) -> None:
        """Sleep until an absolute monotonic instant; never returns early."""
        while (wait := due - time.monotonic()) > 0:
            if not self._set(due):
                await asyncio.sleep(max(wait, MIN_SLEEP_S))
                continue
            self._woken = asyncio.get_running_loop().create_future()
            await self._woken

    def _set(self, due: float) -> bool:
        if self._libc is None:
            return False
        seconds = int(due)
        # One nanosecond up, so that rounding never wakes before the instant.
        moment = _Moment(seconds, min(999_999_999, int((due - seconds) * 1e9) + 1))
        timer = _Timer(_Moment(0, 0), moment)
        return bool(
            self._libc.timerfd_settime(self._descriptor, _ABSOLUTE, ctypes.byref(timer), None) == 0
        )

    def _ring(self) -> None:
        try:
            os.read(self._descriptor, 8)
        except BlockingIOError:
            return
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)
