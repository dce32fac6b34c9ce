"""Makes the measurements of one study, all with the same settings."""

from __future__ import annotations

from pathlib import Path

from autotune.clock import Clock, StopSignal
from autotune.launch.launcher import RunningServer
from autotune.replay.calibration import ClientPlan
from autotune.study.client import client_plan
from autotune.study.facts import sequence_cap
from autotune.study.measuring import MeasureSession, MeasureSettings
from autotune.workload.arrivals import scaled
from autotune.workload.trace import Trace


class Measurer:
    """Makes sessions with a study's settings."""

    def __init__(self, settings: MeasureSettings, *, clock: Clock, stop: StopSignal) -> None:
        self._settings = settings
        self._clock = clock
        self._stop = stop
        self._plans: dict[tuple[bool, float], ClientPlan] = {}

    def session(
        self,
        server: RunningServer,
        trace: Trace,
        folder: Path,
        startup_s: float | None,
        *,
        salt: str,
        held_out: bool = False,
        multiplier: float = 1.0,
    ) -> MeasureSession:
        """A session against one server. `salt` must differ between measurements. `multiplier`: so
        many times the rate of the trace.
        """
        settings = self._settings
        faster = scaled(trace, multiplier)
        return MeasureSession(
            server_url=server.url,
            model=server.plan.model,
            alive=lambda: server.poll() is None,
            trace=faster,
            folder=folder,
            startup_s=startup_s,
            salt=salt,
            settings=settings,
            priming=settings.held_out_priming if held_out else settings.priming,
            engine=server.plan.engine,
            max_num_seqs=sequence_cap(server.plan.argv),
            client=self._client(faster, server.url, folder, (held_out, multiplier)),
            clock=self._clock,
            stop=self._stop,
        )

    def _client(
        self, trace: Trace, url: str, folder: Path, traffic: tuple[bool, float]
    ) -> ClientPlan:
        """The same for every trial with the same traffic: held out or not, and its multiplier."""
        if traffic not in self._plans:
            self._plans[traffic] = client_plan(
                trace.requests, url, folder, clock=self._clock, stop=self._stop,
                cores=self._settings.cores,
            )  # fmt: skip
        return self._plans[traffic]
