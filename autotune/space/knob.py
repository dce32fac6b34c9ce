"""A knob: one setting of the engine that may vary, and the values it may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from autotune.canonical import Json, canonical_json
from autotune.space import grids
from autotune.spec.conditions import Condition
from autotune.spec.units import plain_number
from autotune.spec.versions import check_version_range, version_in_range

Kind = Literal["int", "float", "choice", "switch"]


class KnobError(ValueError):
    """A knob that cannot be: `key` names the part at fault (`range`), `index` the value in it."""

    def __init__(self, message: str, key: str, index: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.key = key
        self.index = index


def switch_value(value: Json) -> bool | None:
    """What a switch's value means: true, false, or the words on and off; None for anything else.

    yes and no are not understood: whoever writes them may mean a text.
    """
    if isinstance(value, bool):
        return value
    return {"on": True, "off": False}.get(value) if isinstance(value, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One setting that may vary. Its name is its flag without dashes in front.

    `values` lists what it may take (None among them: the flag is left out); or `low` to `high`
    inclusive, `log` for ratios, `step` added or, with `multiply`, a factor. A switch has neither.
    `when`: active only where this is true. `lossy`: may change answers. `versions`: engine versions
    it exists in. `env`: set through this variable; `flag`: the flag where it is not the name.
    """

    name: str
    kind: Kind
    values: tuple[Json, ...] | None = None
    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    step: int | float | None = None
    multiply: bool = False
    when: Condition | None = None
    lossy: bool = False
    versions: str | None = None
    why: str = ""
    env: str | None = None
    flag: str | None = None

    def __post_init__(self) -> None:
        if self.kind == "switch":
            self._check_switch()
        elif self.values is not None:
            self._check_values(self.values)
        else:
            self._check_range()
        if self.versions is not None:
            try:
                check_version_range(self.versions)
            except ValueError as error:
                raise KnobError(str(error), "versions") from None

    def grid(self) -> tuple[Json, ...]:
        """The finite list of values, in order, each once.

        Ranges are quantised: by `step`; without one see `grids.integers` and `grids.reals`.
        """
        if self.kind == "switch":
            return (False, True)
        if self.values is not None:
            return tuple(self.coerced(value) for value in self.values)
        assert self.low is not None
        assert self.high is not None
        if self.step is not None:
            fill = grids.multiplied if self.multiply else grids.stepped
            return tuple(self.coerced(value) for value in fill(self.low, self.high, self.step))
        if self.kind == "int":
            return grids.integers(int(self.low), int(self.high), log=self.log)
        return grids.reals(float(self.low), float(self.high), log=self.log)

    def coerced(self, value: Json) -> Json:
        """The value in this knob's form: on and off as booleans, whole numbers as floats for a
        float. Raises ValueError for a value of another kind. None stays: the flag is left out.
        """
        if value is None:
            return None
        number = isinstance(value, int | float) and not isinstance(value, bool)
        match self.kind:
            case "switch":
                switch = switch_value(value)
                if switch is None:
                    raise ValueError("expected true or false (or on, off)")
                return switch
            case "int":
                if not (number and value == int(value)):
                    raise ValueError("expected a whole number")
                return int(value)
            case "float":
                if not number:
                    raise ValueError("expected a number")
                return float(value)
            case "choice":
                return value

    def exists_in(self, version: str | None) -> bool:
        """Whether the engine of this version has the knob; an unknown version is given the benefit
        of the doubt.
        """
        if self.versions is None or version is None:
            return True
        return version_in_range(version, self.versions) is not False

    def domain(self) -> str:
        """The values as a reader wants them: `512, 1024, 2048`, `8 to 1024 x2`, `on, off`."""
        if self.kind == "switch":
            return "on, off"
        if self.values is not None:
            return ", ".join(_shown(value) for value in self.values)
        assert self.low is not None
        assert self.high is not None
        by = "x" if self.multiply else "step "
        step = "" if self.step is None else f" {by}{plain_number(self.step)}"
        return f"{plain_number(self.low)} to {plain_number(self.high)}{step}"

    def _check_switch(self) -> None:
        if self.low is not None:
            raise KnobError("a switch has no range", "range")
        if self.values is not None:
            raise KnobError("a switch is on or off; leave the values out", "values")

    def _check_values(self, values: tuple[Json, ...]) -> None:
        if self.low is not None:
            raise KnobError("values or a range, not both", "range")
        if self.step is not None or self.log:
            raise KnobError("belongs to a range, not to values", "step" if self.step else "log")
        if not values:
            raise KnobError("no values", "values")
        seen: set[str] = set()
        for index, value in enumerate(values):
            try:
                text = canonical_json(self.coerced(value))
            except ValueError as error:
                raise KnobError(str(error), "values", index) from None
            if text in seen:
                raise KnobError("a repeated value", "values", index)
            seen.add(text)

    def _check_range(self) -> None:
        if self.kind == "choice":
            raise KnobError("a choice needs `values`", "type")
        if self.low is None or self.high is None:
            raise KnobError("needs `values` or a `range`", "type")
        for index, end in enumerate((self.low, self.high)):
            try:
                self.coerced(end)
            except ValueError as error:
                raise KnobError(str(error), "range", index) from None
        if self.low >= self.high:
            raise KnobError("the low end comes first, and the ends differ", "range")
        if self.low <= 0 and (self.log or self.multiply):
            raise KnobError("ratios need a low end above 0", "range", 0)
        if self.step is not None:
            self._check_step(self.step)

    def _check_step(self, step: int | float) -> None:
        if self.multiply and step <= 1:
            raise KnobError("a factor is more than 1", "step")
        if step <= 0:
            raise KnobError("a step is more than 0", "step")
        if self.kind == "int" and step != int(step):
            raise KnobError("expected a whole number", "step")
        try:
            self.grid()
        except ValueError as error:
            raise KnobError(str(error), "step") from None


def _shown(value: Json) -> str:
    if value is None:
        return "(left out)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    return canonical_json(value)
