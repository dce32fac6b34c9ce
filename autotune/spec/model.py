"""What the user asked for, validated: the study file's schema (pydantic at the edge).

Durations, sizes and percentages arrive here already as numbers (seconds, shares); `spec.units`
reads their text forms, `spec.expressions` the objectives and constraints.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Strict, model_validator

from autotune.spec.expressions import Constraint, Objective, parse_constraint, parse_objective
from autotune.spec.units import parse_duration, parse_share


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]


def _objective(value: object) -> Objective:
    return value if isinstance(value, Objective) else parse_objective(value)


def _mount(value: object) -> object:
    parts = value.split(":") if isinstance(value, str) else []
    if len(parts) not in (2, 3) or not all(parts) or parts[2:] not in ([], ["ro"], ["rw"]):
        raise ValueError("expected SOURCE:TARGET, or SOURCE:TARGET:rw to write there")
    return value


def _constraint(value: object) -> Constraint:
    return value if isinstance(value, Constraint) else parse_constraint(value)


Duration = Annotated[float, BeforeValidator(parse_duration)]
"""Seconds; `90`, `90s`, `1.5h`, `2h30m`."""
Share = Annotated[float, BeforeValidator(parse_share)]
"""A share of one; `0.01` or `1%`."""
Whole = Annotated[int, Strict()]
"""A whole number that was written as one: neither `"7"` nor `true`."""
Real = Annotated[float, Strict()]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class FromEnv(_Model):
    """A secret by name: its value stays in our own environment."""

    from_env: str


class EngineSpec(_Model):
    """Which server, and how it is started."""

    kind: Literal["vllm", "sglang", "simulated", "simulated-sglang", "generic"] = "vllm"
    launcher: Literal["process", "docker", "attach"] = "process"
    image: str | None = None
    command: tuple[str, ...] | None = None
    args: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str | Whole | Real | FromEnv] = Field(default_factory=dict)
    gpus: tuple[Whole | str, ...] | None = None
    gpus_per_trial: Whole | None = Field(default=None, ge=1)
    """GPUs of one launch: with more of them, several launches run at the same time."""
    mounts: tuple[Annotated[str, BeforeValidator(_mount)], ...] = ()
    """`SOURCE:TARGET[:ro|rw]`, as docker writes them."""
    shm_size: str | None = None
    ipc: Literal["host", "private"] = "private"
    port: Whole | None = Field(default=None, ge=1, le=65535)
    url: str | None = None
    health: str | None = Field(default=None, pattern=r"^/\S*$")
    """Route that answers once the server may be asked; default: the engine's own."""
    model_name: str | None = None
    """What requests call the model, for a server that goes by another name than `model`."""
    flag_style: Literal["--flag value", "--flag=value", "-flag value"] = "--flag value"
    """How a server of kind generic is given its flags."""
    negatable: tuple[str, ...] = ()
    """Switches of a server of kind generic that have a `--no-` form."""
    startup_timeout: Duration = 900.0


class ArrivalsSpec(_Model):
    """When requests come, for recordings that do not say, or in place of what they say."""

    process: Literal["poisson", "gamma", "constant"] = "poisson"
    rate: Real = Field(gt=0)
    """Independent requests and new sessions per second; later turns follow their answers."""
    burstiness: Real = Field(default=1.0, gt=0)
    """Shape of gamma gaps: below 1 burstier than poisson."""
    seed: Whole = 0


class WorkloadSpec(_Model):
    """Which recorded traffic is replayed, and how much of it."""

    path: str
    format: str | None = None
    time_unit: Literal["ms", "s"] | None = None
    """Unit of plain numbers of time, if not the format's own."""
    block_size: Whole | None = Field(default=None, ge=1)
    """Prompt tokens per block id, if not the format's own."""
    output_tokens: Whole | None = Field(default=None, ge=1)
    """Answer length of rows that state none."""
    arrivals: ArrivalsSpec | None = None
    keep_text: bool = False
    """Keep the text of the prompts, and send it through the chat route."""
    tokenizer: str | None = None
    """Folder or tokenizer.json that counts text; default: the model's, if it lies here."""
    window: Duration | None = None
    time_scale: Real = Field(default=1.0, gt=0)
    """Above 1: faster than recorded (arrival times are divided by it)."""
    thin: Share = Field(default=1.0, gt=0)
    """Share of the independent requests and whole sessions that is kept."""
    spread_arrivals: bool = False
    """Draw arrivals that were rounded to buckets uniformly within their bucket."""
    priming: Literal["auto", "off"] | Annotated[Whole, Field(ge=0)] = "auto"
    """Prompt tokens sent before each measurement to warm the prefix cache, at most."""
    warmup: Literal["auto"] | Annotated[Whole, Field(ge=0)] = "auto"

    @property
    def max_priming_tokens(self) -> int | None:
        """`priming` as a number; None leaves it to the choice of the window."""
        if self.priming == "auto":
            return None
        return 0 if self.priming == "off" else self.priming


class BudgetSpec(_Model):
    """When the search ends: whichever comes first. Confirmation of finalists is inside it."""

    time: Duration | None = Field(default=None, gt=0)
    trials: Whole | None = Field(default=None, ge=1)
    gpu_hours: Real | None = Field(default=None, gt=0)
    """Hours of launches times the GPUs that each holds."""

    @property
    def gpu_seconds(self) -> float | None:
        """`gpu_hours` in the unit of everything else."""
        return None if self.gpu_hours is None else 3600 * self.gpu_hours


class SearchSpec(_Model):
    """How candidates are proposed and finalists confirmed."""

    sampler: Literal["guided", "tpe", "gp", "nsga2", "random", "qmc", "grid"] = "guided"
    seed: Whole = 0
    finalists: Whole = Field(default=1, ge=1)
    early_stop: Literal["exact", "growing_queue", "off"] = "exact"
    """When the replay of a trial of the search is ended before its end."""
    repeats: Whole = Field(default=3, ge=0)
    """Paired launches (baseline, finalist) after the search; 0 leaves the result unconfirmed."""
    extra_repeats: Whole = Field(default=2, ge=0)
    """Further pairs at most, as long as the verdict is open and the budget lasts."""
    baseline_repeats: Whole = Field(default=1, ge=0)
    """Further measurements of the baseline, to learn what differs without a cause."""
    parallel: Whole | None = Field(default=None, ge=1)
    """Launches at the same time, at most; None: as many as the GPUs allow."""

    @property
    def most_repeats(self) -> int:
        """Pairs at most: fewer than three give no interval, so none are added to them."""
        return self.repeats + self.extra_repeats if self.repeats >= 3 else self.repeats


CHECK_LIMITS = {"likelihood": 0.01, "agreement": 0.5, "lm-eval": 0.01}
"""Check -> how much worse answers may get, where the study does not say."""
CHECK_TIMES = {"likelihood": 20.0, "agreement": 20.0, "lm-eval": 600.0}
"""Check -> seconds that it may take in a trial, where the study does not say."""


class QualitySpec(_Model):
    """The guard on answers that a lossy knob must pass."""

    check: Literal["likelihood", "agreement", "lm-eval", "none"] = "likelihood"
    max_loss: Share | None = None
    """How much worse answers may get; None: see `limit`."""
    time: Duration | None = Field(default=None, gt=0)
    """Seconds that a check may take; None: see `seconds`."""
    task: str | None = None
    """For `lm-eval`: the name of a task, or the path of a task file."""
    documents: Whole | None = Field(default=None, ge=1)
    """For `lm-eval`: only so many documents of the task."""

    @model_validator(mode="after")
    def _whole(self) -> QualitySpec:
        if (self.task is None) == (self.check == "lm-eval"):
            needed = "needs a `task`" if self.task is None else "takes no `task`"
            raise ValueError(f"the check `{self.check}` {needed}")
        if self.documents is not None and self.check != "lm-eval":
            raise ValueError(f"the check `{self.check}` takes no `documents`")
        return self

    @property
    def limit(self) -> float:
        """The largest loss that passes, a share."""
        return CHECK_LIMITS.get(self.check, 0.0) if self.max_loss is None else self.max_loss

    @property
    def seconds(self) -> float:
        """How long a check may take."""
        return CHECK_TIMES.get(self.check, 0.0) if self.time is None else self.time


class StudySpec(_Model):
    """A whole study file."""

    name: str
    model: str
    engine: EngineSpec = Field(default_factory=EngineSpec)
    baseline: dict[str, Any] | str = Field(default_factory=dict)
    space: str | dict[str, Any]
    workload: WorkloadSpec
    objective: Annotated[
        list[Annotated[Objective, BeforeValidator(_objective)]], BeforeValidator(_items)
    ] = Field(min_length=1, max_length=3)
    constraints: Annotated[
        list[Annotated[Constraint, BeforeValidator(_constraint)]], BeforeValidator(_items)
    ] = Field(default_factory=list)
    budget: BudgetSpec = Field(default_factory=BudgetSpec)
    search: SearchSpec = Field(default_factory=SearchSpec)
    quality: QualitySpec | None = None
