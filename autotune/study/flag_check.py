"""A study's flags against the flags that its engine lists of itself, before anything is launched.

A knob that this engine lacks is dropped with a note, a renamed one is given its name here; a fixed
flag that it lacks would fail every trial, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from autotune.canonical import Json
from autotune.engines.catalog import is_known_flag, is_simulated
from autotune.engines.engine import LaunchTarget
from autotune.engines.facts import EngineFacts, engine_facts
from autotune.engines.flag_fit import FlagFit, fit_flag, value_problem
from autotune.engines.flag_table import FlagTable, flag_table
from autotune.engines.flags import as_switch, flag_name, flag_problem
from autotune.engines.help_text import EngineHelp
from autotune.errors import InputError, Place, Problem
from autotune.launch.probe import HelpReading, read_help
from autotune.space.candidate import MODEL
from autotune.space.knob import Knob
from autotune.space.search_space import SearchSpace
from autotune.spec.model import StudySpec
from autotune.spec.nearest import nearest
from autotune.spec.origins import Locator
from autotune.study.target import Baseline

_NAMES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "simulated": "the simulated engine",
    "simulated-sglang": "the simulated SGLang",
}

FIXED, TODAY = "fixed for all trials", "runs today"
"""Labels of flags that cannot be, in the study file."""

Locate = Callable[[str], Place | None]
"""Name of a flag -> where the study sets it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagCheck:
    """What one engine's flags are. `reading` None: it is not asked (attached, unknown kind). Where
    it does not answer, the table of its version tells, if there is one.
    """

    engine: str
    version: str | None
    facts: EngineFacts
    reading: HelpReading | None

    @property
    def listed(self) -> EngineHelp | None:
        """The flags as the engine lists them, else as the table of its version has them."""
        if self.reading is not None and self.reading.help is not None:
            return self.reading.help
        table = self._table
        if table is None:
            return None
        found = table.help()
        if len(table.versions) == 1:
            return found
        # Between two tables: what is known exactly of one of their flags still counts
        fitting = (f for f in found.flags if not flag_problem(self.facts, f.name, self.version))
        return EngineHelp(flags=tuple(fitting))

    @property
    def _table(self) -> FlagTable | None:
        return flag_table(self.facts.engine, self.version) if self.version else None

    @property
    def notes(self) -> list[str]:
        """Why the engine could not be asked, if it should have been."""
        note = self.reading.note if self.reading is not None else None
        if note and self._table is not None:
            note += f"; {self._table.where} was used instead"
        return [note] if note else []

    @property
    def where(self) -> str | None:
        """Where the flags were read, in words; None where only single facts are known."""
        if self.reading is not None and self.reading.help is not None:
            return self.reading.where
        return self._table.where if self._table is not None else None

    def knob_problem(self, knob: Knob) -> str | None:
        """What of a knob does not fit this engine, as a phrase; None if all of it does. A flag with
        another name here fits.
        """
        fitted, note = self._fit_knob(knob)
        same = fitted is not None and len(fitted.grid()) == len(knob.grid())
        return None if same or note is None else note.partition(": ")[2]

    @property
    def title(self) -> str:
        """The engine in words: `vLLM 0.26.0`."""
        name = _NAMES.get(self.engine, self.engine)
        return f"{name} {self.version}" if self.version else name

    def fit(self, name: str) -> FlagFit:
        """See `fit_flag`. An engine that did not answer may have flags that no version is known to
        have and that are like none of its own: a plugin's.
        """
        silent = self.reading is not None and self.reading.help is None
        own = flag_name(self.facts, name)
        head = own.partition(".")[0]
        if silent and not self._ever_known(head) and not nearest(head, self.facts.flags):
            return FlagFit(name=own)
        return fit_flag(self.facts, name, listed=self.listed, version=self.version)

    def _ever_known(self, name: str) -> bool:
        facts = self.facts
        return name in facts.flags or name in facts.removed or name in facts.opposites

    def fit_space(self, space: SearchSpace) -> tuple[SearchSpace, list[str]]:
        """The space as this engine has it, and a note for each knob that is not as written."""
        knobs: list[Knob] = []
        notes: list[str] = []
        for knob in space.knobs:
            if knob.env is not None or knob.name == MODEL or not knob.exists_in(self.version):
                knobs.append(knob)
                continue
            fitted, note = self._fit_knob(knob)
            knobs += [fitted] if fitted is not None else []
            notes += [note] if note else []
        return replace(space, knobs=tuple(knobs)), notes

    def _fit_knob(self, knob: Knob) -> tuple[Knob | None, str | None]:
        flag = knob.flag or knob.name
        found = self.fit(flag)
        if found.name is None or found.inverted:
            why = f" ({found.note})" if found.note else ""
            return None, f"knob {knob.name} is left out: {self.title} has no flag `--{flag}`{why}"
        if self.listed is None:
            return self._named(
                knob, found
            ), f"knob {knob.name}: {found.note}" if found.note else None
        problems = {
            index: problem
            for index, value in enumerate(knob.grid())
            if (problem := self._value_problem(found.name, value)) is not None
        }
        if not problems:
            note = f"knob {knob.name}: {found.note}" if found.note else None
            return self._named(knob, found), note
        left = [v for i, v in enumerate(knob.grid()) if i not in problems]
        why = f"in {self.title} `--{found.name}` {next(iter(problems.values()))}"
        if knob.kind == "switch" or not [value for value in left if value is not None]:
            return None, f"knob {knob.name} is left out: {why}"
        rest = replace(
            knob, values=tuple(left), low=None, high=None, step=None, log=False, multiply=False
        )
        return self._named(rest, found), f"knob {knob.name} has fewer values: {why}"

    def _value_problem(self, name: str, value: Json) -> str | None:
        listed, absent = self.listed, self.facts.off_by_absence
        return None if listed is None else value_problem(listed, name, value, off_by_absence=absent)

    @staticmethod
    def _named(knob: Knob, found: FlagFit) -> Knob:
        return replace(knob, flag=found.name) if found.note else knob

    def fit_fixed(
        self, flags: Mapping[str, Json], locate: Locate
    ) -> tuple[dict[str, Json], list[str]]:
        """Flags that every trial has, under their names here, and notes on those renamed.

        Raises InputError naming all flags that this engine lacks or that cannot have their value.
        """
        fitted: dict[str, Json] = {}
        notes: list[str] = []
        problems: list[Problem] = []
        known: list[str] = []
        for written, value in flags.items():
            found = self.fit(written)
            problem = None
            if found.name is None:
                problem = f"{self.title} has no flag `--{written}`"
                known.append(found.note)
            elif self.listed is not None and not found.inverted:
                bad = self._value_problem(found.name, value)
                problem = f"`--{written}` of {self.title} {bad}" if bad else None
            if problem is not None:
                problems.append(Problem(message=problem, place=locate(written)))
                continue
            name = found.name if found.name is not None and found.note else written
            switch = as_switch(value)
            fitted[name] = not switch if found.inverted and switch is not None else value
            notes += [found.note] if found.note else []
        if problems:
            raise self._refusal(problems, [note for note in known if note])
        return fitted, notes

    def _refusal(self, problems: list[Problem], known: list[str]) -> InputError:
        message = f"{problems[0].message}; every trial would fail"
        if len(problems) > 1:
            message = f"{len(problems)} flags do not fit {self.title}; every trial would fail"
        seen = [
            f"read from {self.where}"
            if self.where
            else "known from the versions' own argument files"
        ]
        return InputError(
            message=message,
            problems=[
                Problem(message=message, place=p.place) if len(problems) == 1 else p
                for p in problems
            ],
            seen="\n".join([*seen, *known]),
            so="nothing was launched",
            hint="remove or rename it; `autotune space check` tells what fits"
            if len(problems) == 1
            else "remove or rename them",
        )

    def fit_study(
        self, spec: StudySpec, space: SearchSpace, locate: Locator
    ) -> tuple[StudySpec, SearchSpace, list[str]]:
        """The study as this engine has it: knobs, fixed flags, the flags of a baseline that are no
        knobs; and notes. Raises InputError for a flag that every trial would have in vain.
        """
        fitted, notes = self.fit_space(space)
        args, renamed = self.fit_fixed(
            spec.engine.args,
            lambda name: locate(("engine", "args", name), key=True, label=FIXED),
        )
        changes: dict[str, Json] = {"engine": spec.engine.model_copy(update={"args": args})}
        if isinstance(spec.baseline, dict):
            knobs = {name: v for name, v in spec.baseline.items() if fitted.knob(name) is not None}
            others = {
                name: value
                for name, value in spec.baseline.items()
                # What neither the space nor the facts know is told as an unknown knob
                if name not in knobs
                and (space.knob(name) is not None or is_known_flag(self.engine, name))
            }
            unknown = {n: v for n, v in spec.baseline.items() if n not in knobs and n not in others}
            here, more = self.fit_fixed(
                others, lambda name: locate(("baseline", name), key=True, label=TODAY)
            )
            changes["baseline"] = {**knobs, **here, **unknown}
            renamed += more
        return spec.model_copy(update=changes), fitted, [*self.notes, *notes, *renamed]

    def fit_command(self, baseline: Baseline, fixed: Mapping[str, Json]) -> Baseline:
        """A baseline taken from a pasted command, its flags beside `fixed` checked as well."""
        pasted = {n: v for n, v in baseline.target.args.items() if n not in fixed}
        here, notes = self.fit_fixed(pasted, lambda name: None)
        args = {**{n: v for n, v in baseline.target.args.items() if n in fixed}, **here}
        return replace(
            baseline,
            target=replace(baseline.target, args=args),
            notes=(*baseline.notes, *notes),
        )


def flag_check(kind: str, version: str | None, target: LaunchTarget) -> FlagCheck:
    """Ask the engine of this target for its flags; a simulated one is known without a process."""
    facts = engine_facts(kind)
    reading: HelpReading | None = None
    if target.launcher == "attach":
        pass
    elif is_simulated(kind):
        ours = target.command is None or "autotune.simulator" in target.command
        reading = _simulated_help(facts.engine) if ours else None
    else:
        reading = read_help(target, facts, version)
    return FlagCheck(engine=kind, version=version, facts=facts, reading=reading)


def _simulated_help(dialect: str) -> HelpReading:
    from autotune.engines.help_text import parse_help
    from autotune.simulator.arguments import SERVE, serve_help

    return HelpReading(
        help=parse_help(serve_help(dialect)),
        where=f"`python -m autotune.simulator {SERVE[dialect]} --help`",
    )
