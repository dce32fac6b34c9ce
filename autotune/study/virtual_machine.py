"""Machines that start engines in virtual time: what a launch takes, says and serves, at once."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Protocol

from autotune.canonical import Json
from autotune.clock import VirtualClock
from autotune.engines.facts import engine_facts
from autotune.engines.plan import LaunchPlan
from autotune.search.start_cost import compile_key
from autotune.simulator.arguments import SERVE
from autotune.simulator.cli import log_for, read, start
from autotune.simulator.config import EngineConfig
from autotune.simulator.core import Noise
from autotune.simulator.log import ServerLog
from autotune.simulator.memory import OutOfMemory
from autotune.simulator.profile import Profile
from autotune.simulator.startup import log_death
from autotune.simulator.traffic import Traffic
from autotune.simulator.virtual import VirtualRun, simulate

_REFUSED_S = 2.0
"""Seconds until a program has said that it does not know an argument."""


class VirtualEngine(Protocol):
    """An engine that is up."""

    def replay(self, traffic: Traffic) -> VirtualRun:
        """What a client would see of this traffic, from an empty cache."""
        ...

    def last_words(self, out: OutOfMemory) -> str:
        """What its log says when it runs out of memory under load."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualLaunch:
    """How a start went: what the log says, how long it took, and the engine; or the exit code of a
    program that ended by itself.
    """

    log: str
    seconds: float
    engine: VirtualEngine | None = None
    exit_code: int | None = None


class VirtualMachine(Protocol):
    """Starts engines."""

    def launch(self, plan: LaunchPlan, trial: int) -> VirtualLaunch:
        """Start a plan; `trial` makes this launch's noise its own."""
        ...


@dataclass(slots=True, kw_only=True)
class SimulatedMachine:
    """The simulated engine of `python -m autotune.simulator`, with its flags, refusals and noise.

    `cold_s`, `warm_s`: seconds that a start takes where an engine must compile for its settings,
    and where it did before; None: what the engine's own arguments or its profile say. `seed`: of
    the noise of all launches; an engine's `--sim-seed` outranks it.
    """

    cold_s: float | None = None
    warm_s: float | None = None
    seed: int = 0
    _compiled: set[str] = field(default_factory=set)

    def launch(self, plan: LaunchPlan, trial: int) -> VirtualLaunch:
        """See `VirtualMachine`. Raises ValueError for a plan that starts another program."""
        command = next((word for word in SERVE.values() if word in plan.argv), None)
        if command is None:
            raise ValueError(f"not a simulated engine: {' '.join(plan.argv)}")
        words = plan.argv_for("127.0.0.1", 8000)[plan.argv.index(command) :]
        text, clock = io.StringIO(), VirtualClock()
        log = log_for(words, text, clock)
        try:
            with redirect_stderr(text):
                asked = read(words, log)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
            return VirtualLaunch(log=text.getvalue(), seconds=_REFUSED_S, exit_code=code)
        if asked is None:
            return VirtualLaunch(log=text.getvalue(), seconds=_REFUSED_S, exit_code=2)
        args, model, profile = asked
        key = _compile_key(plan.engine, vars(args))
        total_s = self.warm_s if key in self._compiled else self.cold_s
        config = start(args, model, profile, plan.env, log, clock, total_s=total_s)
        if config is None:
            return VirtualLaunch(log=text.getvalue(), seconds=clock.monotonic(), exit_code=1)
        self._compiled.add(key)
        seed = hash((self.seed, trial)) if args.sim_seed is None else args.sim_seed
        return VirtualLaunch(
            log=text.getvalue(),
            seconds=clock.monotonic(),
            engine=SimulatedEngineUp(config, profile, Noise(share=args.sim_noise, seed=seed)),
        )


class SimulatedEngineUp:
    """A simulated engine after its start. Each replay has its own step noise; the launch's factor
    stays.
    """

    def __init__(self, config: EngineConfig, profile: Profile, noise: Noise) -> None:
        self._config = config
        self._profile = profile
        self._share = noise.share
        rng, self._launch = noise.rng()
        self._seeds = random.Random(rng.random())

    def replay(self, traffic: Traffic) -> VirtualRun:
        """See `VirtualEngine`."""
        noise = Noise(share=self._share, seed=self._seeds.getrandbits(32), launch=self._launch)
        return simulate(traffic, self._config, self._profile, noise=noise)

    def last_words(self, out: OutOfMemory) -> str:
        """See `VirtualEngine`."""
        text = io.StringIO()
        log_death(ServerLog(text, VirtualClock()), out, self._profile)
        return text.getvalue()


def _compile_key(engine: str, args: Mapping[str, Json]) -> str:
    given = {name.replace("_", "-"): value for name, value in args.items() if value is not None}
    return compile_key(given, _compile_flags(engine))


@lru_cache
def _compile_flags(engine: str) -> tuple[str, ...]:
    return tuple(engine_facts(engine).compile_flags(None))
