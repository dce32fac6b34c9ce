"""How long one engine step takes.

    t = a + max(m, b*T) + c*A + d*K + f*[the step holds prefill]

T tokens computed; A attention pairs of prefill chunks, sum of chunk*(already computed + chunk/2); K
context tokens read by decoding requests. The form was fitted on an H200 with vLLM 0.26; against its
open-loop latencies the four percentiles (TTFT and TPOT, p50 and p95) are off by 3 % on average.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from autotune.simulator.config import EngineConfig
from autotune.simulator.profile import Factors, Profile, StepCoefficients


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What one step computes: tokens, attention pairs, context tokens read, and counts."""

    tokens: int
    pairs: float
    context: int
    prefills: int
    sequences: int


class StepModel(Protocol):
    """How long steps take, in seconds without noise."""

    def seconds(self, work: StepWork) -> float:
        """Duration of any step."""
        ...

    def pace(self, sequences: int) -> Callable[[int], float]:
        """Duration of a step in which so many sequences decode and nothing else happens, as a
        function of the context tokens that they read.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The step-time model under one configuration. `floor_s`: no step is shorter (eager mode)."""

    coefficients: StepCoefficients
    floor_s: float = 0.0

    def seconds(self, work: StepWork) -> float:
        """Duration of a step in seconds, without noise; 0 for a step that computes nothing."""
        if work.tokens == 0:
            return 0.0
        k = self.coefficients
        seconds = (
            k.a_s
            + max(k.m_s, k.b_s * work.tokens)
            + k.c_s * work.pairs
            + k.d_s * work.context
            + (k.f_s if work.prefills else 0.0)
        )
        return max(seconds, self.floor_s)

    def pace(self, sequences: int) -> Callable[[int], float]:
        """See `StepModel`."""
        k, floor_s = self.coefficients, self.floor_s
        fixed, slope = k.a_s + max(k.m_s, k.b_s * sequences), k.d_s
        if fixed >= floor_s:
            return lambda context: fixed + slope * context
        return lambda context: max(fixed + slope * context, floor_s)


def step_time(config: EngineConfig, profile: Profile) -> StepTime:
    """The model with the factors of quantization, KV type, attention backend and parallelism.

    Raises KeyError for a type the profile does not know (`validation` refuses those beforehand).
    """
    factors = (
        profile.weights[config.quantization].factors,
        profile.kv_cache[config.kv_cache_dtype].factors,
        profile.attention_backends[config.attention_backend],
    )
    a, m, b, c, d = (_product(factors, name) for name in "ambcd")
    tp = config.tensor_parallel_size
    split = 1.0 if tp == 1 else tp * profile.tensor_parallel_efficiency
    k = profile.step
    host = 0.0 if config.async_scheduling else profile.sync_host_s
    return StepTime(
        coefficients=StepCoefficients(
            a_s=k.a_s * a + host,
            m_s=k.m_s * m / split,
            b_s=k.b_s * b / split,
            c_s=k.c_s * c / split,
            d_s=k.d_s * d / split,
            f_s=k.f_s,
        ),
        floor_s=profile.eager_floor_s if config.enforce_eager else 0.0,
    )


def _product(factors: tuple[Factors, ...], name: str) -> float:
    value = 1.0
    for factor in factors:
        value *= float(getattr(factor, name))
    return value
