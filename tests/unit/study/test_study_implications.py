"""What a failure implies: what is refused after it without a launch, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.diagnosis import diagnose_log
from autotune.engines.engine import ExitInfo, LaunchTarget
from autotune.engines.facts import engine_facts
from autotune.space.candidate import Candidate
from autotune.study.implications import Implications, at_least, dead_ends
from autotune.study.record import TrialRecord
from autotune.study.target import all_settings

FRACTION = "gpu-memory-utilization"
LOWER, RAISE = {"memory_direction": "lower"}, {"memory_direction": "raise"}


def failed(number: int, facts: dict[str, Any], **params: Any) -> TrialRecord:
    return TrialRecord(
        number=number, role="search", state="infeasible", params=named(params), fault="candidate",
        reason="some_reason", message="memory ran out", facts=facts, evidence=("the line",),
    )  # fmt: skip


def served(number: int, **params: Any) -> TrialRecord:
    return TrialRecord(number=number, role="search", state="measured", params=named(params))


def named(params: dict[str, Any]) -> dict[str, Any]:
    short = {"f": FRACTION, "seqs": "max-num-seqs", "tp": "tensor-parallel-size"}
    return {short.get(key, key.replace("_", "-")): value for key, value in params.items()}


def after(*records: TrialRecord, engine: str = "vllm", **target: Any) -> Any:
    """A judge that knows these trials, to be asked with short names."""
    where = LaunchTarget(model="m", launcher="process", **target)
    implied = Implications(
        engine_facts(engine), lambda candidate: all_settings(candidate, engine, where)
    )
    for record in records:
        implied.learn(record)
    return lambda **params: implied.refusal(Candidate(named(params)))


def test_out_of_memory_is_not_launched_again_at_the_same_fraction_or_above() -> None:
    judge = after(failed(3, LOWER, f=0.92, seqs=128))
    assert judge(f=0.92, seqs=128)
    assert judge(f=0.95, seqs=128)
    assert judge(f=0.95, seqs=256)
    assert judge(f=0.91, seqs=256) is None
    assert judge(f=0.95, seqs=64) is None


def test_no_room_for_the_cache_implies_smaller_fractions() -> None:
    judge = after(failed(3, RAISE, f=0.5, seqs=128))
    assert judge(f=0.45, seqs=128)
    assert judge(f=0.5, seqs=256)
    assert judge(f=0.6, seqs=256) is None
    assert judge(f=0.45, seqs=64) is None


@pytest.mark.parametrize("facts", [LOWER, RAISE])
@pytest.mark.parametrize(
    "other", [{"tp": 2}, {"kv_cache_dtype": "fp8"}, {"quantization": "fp8"}, {"block_size": 32}]
)
def test_nothing_follows_when_another_setting_that_may_matter_differs(
    facts: dict[str, Any], other: dict[str, Any]
) -> None:
    judge = after(failed(1, facts, f=0.9, seqs=64))
    assert judge(f=0.9, seqs=64)
    assert judge(f=0.9, seqs=64, **other) is None


def test_a_setting_left_to_the_engine_is_not_comparable_with_a_number() -> None:
    judge = after(failed(1, LOWER, f=0.9))
    assert judge(f=0.95)
    assert judge(f=0.95, seqs=4096) is None
    assert judge(seqs=64) is None


def test_what_does_not_bear_on_memory_does_not_save_a_candidate() -> None:
    judge = after(failed(1, LOWER, f=0.9, enable_prefix_caching=True))
    assert judge(f=0.9, enable_prefix_caching=False)


def test_other_names_of_a_flag_and_the_environment_are_seen_through() -> None:
    judge = after(
        failed(1, LOWER, util=0.9, mode="a"),
        knob_flags={"util": FRACTION},
        knob_env={"mode": "ENGINE_MODE"},
    )
    assert judge(util=0.95, mode="a")
    assert judge(util=0.95, mode="b") is None


def test_a_trial_that_served_takes_back_what_it_contradicts() -> None:
    for order in (1, -1):
        trials = [failed(1, LOWER, f=0.9, seqs=64), served(2, f=0.95, seqs=64)][::order]
        assert after(*trials)(f=0.97, seqs=64) is None
    judge = after(failed(1, LOWER, f=0.9, seqs=64), served(2, f=0.85, seqs=64))
    assert judge(f=0.97, seqs=64)


def test_the_refusal_names_the_trial_it_follows_from() -> None:
    found = after(failed(7, LOWER, f=0.9))(f=0.95)
    assert "as trial 7, which failed: memory ran out" in found.message
    assert found.fault == "candidate"
    assert found.facts == {"trial": 7, "reason": "some_reason"}
    assert found.evidence == ("the line",)


@pytest.mark.parametrize("state", ["unmeasurable", "interrupted"])
def test_a_trial_without_a_verdict_implies_nothing(state: Any) -> None:
    record = TrialRecord(
        number=1, role="search", state=state, params={FRACTION: 0.9}, fault="environment",
        facts=LOWER,
    )  # fmt: skip
    assert after(record)(f=0.9) is None


def diagnosed(line: str, code: int = 1, **params: Any) -> TrialRecord:
    """A failed trial whose log ended in this line."""
    found = diagnose_log([line], ExitInfo(code=code), None, "vllm")
    return TrialRecord(
        number=1, role="search", state="infeasible", params=named(params), fault=found.fault,
        reason=found.reason, message=found.message, facts=dict(found.facts),
    )  # fmt: skip


def test_a_tensor_parallel_size_that_does_not_divide_is_refused_in_all_settings() -> None:
    judge = after(
        diagnosed(
            "ValueError: Total number of attention heads (28) must be divisible by tensor "
            "parallel size (8).",
            tp=8,
            seqs=64,
        )
    )
    assert "tensor-parallel-size 8" in judge(tp=8, seqs=512, f=0.5).message
    assert judge(tp=4, seqs=64) is None
    assert judge(tp=16, seqs=64) is None


def test_more_gpus_than_there_are_stay_too_many() -> None:
    line = "ValueError: World size (4) is larger than the number of available GPUs (2) in this node"
    judge = after(diagnosed(line, tp=4, pipeline_parallel_size=1))
    assert judge(tp=8, pipeline_parallel_size=1)
    assert judge(tp=4, pipeline_parallel_size=2)
    assert judge(tp=2, pipeline_parallel_size=1) is None


@pytest.mark.parametrize(
    ("line", "name", "value", "other"),
    [
        ("vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp4' (choose from auto)",
         "kv-cache-dtype", "fp4", "fp8"),
        ("ValueError: Unsupported kv cache dtype: int3", "kv-cache-dtype", "int3", "auto"),
        ("ValueError: Cannot find the config file for awq", "quantization", "awq", "fp8"),
        ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
         "dtype", "bfloat16", "half"),
        ("vllm serve: error: unrecognized arguments: --no-enable-dbo", "enable-dbo", False, True),
    ],
)  # fmt: skip
def test_a_value_refused_on_its_own_account_is_refused_in_all_settings(
    line: str, name: str, value: Any, other: Any
) -> None:
    judge = after(diagnosed(line, 2 if "error: " in line else 1, **{name: value}, seqs=8))
    assert judge(**{name: value}, seqs=99)
    assert judge(**{name: other}, seqs=8) is None
    assert judge(seqs=8) is None


def test_a_combination_that_was_refused_implies_nothing_about_its_parts() -> None:
    line = (
        "  Value error, max_num_batched_tokens (2048) is smaller than max_model_len (40960). "
        "This effectively limits the maximum sequence length"
    )
    record = diagnosed(line, max_num_batched_tokens=2048, enable_chunked_prefill=False)
    assert record.fault == "candidate"
    judge = after(record)
    assert judge(max_num_batched_tokens=2048, enable_chunked_prefill=True) is None


numbers = st.one_of(st.none(), st.integers(-2, 4096), st.sampled_from(["auto", "32k"]))


@given(numbers, numbers, numbers)
def test_at_least_is_an_order(a: Any, b: Any, c: Any) -> None:
    assert at_least(a, a)
    if at_least(a, b) and at_least(b, a):
        assert a == b
    if at_least(a, b) and at_least(b, c):
        assert at_least(a, c)


def test_lists_of_graph_sizes_are_compared_by_what_they_hold() -> None:
    assert at_least([1, 2, 4, 8], [2, 4])
    assert not at_least([1, 2, 16], [4])


def test_unlimited_and_textual_values_are_only_equal_to_themselves() -> None:
    assert not at_least(-1, -2)
    assert not at_least(4096, -1)
    assert not at_least("32k", 16)
    assert not at_least(True, False)


FRACTIONS = {FRACTION: (0.8, 0.84, 0.85, 0.9)}


class TestDeadEnds:
    def test_neighbours_that_fail_in_opposite_directions_leave_no_value(self) -> None:
        (end,) = dead_ends(
            [failed(4, RAISE, f=0.84, seqs=8), failed(6, LOWER, f=0.85, seqs=8)], FRACTIONS
        )
        assert end.sentence == (
            "no value of gpu-memory-utilization works with these other settings: 0.84 is too "
            "little (trial 4), 0.85 too much (trial 6)"
        )

    @pytest.mark.parametrize(
        "high",
        [
            failed(6, LOWER, f=0.9, seqs=8),  # 0.85 lies between
            failed(6, LOWER, f=0.85, seqs=16),  # other settings
            failed(6, LOWER, f=0.8, seqs=8),  # the wrong way round
            failed(6, RAISE, f=0.85, seqs=8),
            served(6, f=0.85, seqs=8),
        ],
    )
    def test_anything_else_is_none(self, high: TrialRecord) -> None:
        assert dead_ends([failed(4, RAISE, f=0.84, seqs=8), high], FRACTIONS) == []


# ---- in a study


def by_width(make: Any) -> Any:
    """Sixteen sequences or more run out of memory."""

    def script(task: Any) -> Any:
        if task.candidate.params["max-num-seqs"] >= 16:
            return make.diagnosis("candidate", "oom_startup", memory_direction="lower")
        return make.served(0.1)

    return script


def test_what_a_trial_implies_is_refused_kept_and_told(lab: Any, make: Any) -> None:
    lab.script = by_width(make)
    end = lab.prepare().runs(*[make.candidate(n) for n in (32, 64, 16)])
    assert [t.candidate.params["max-num-seqs"] for t in lab.tasks] == [8, 32, 16]
    assert end.error is None
    (line,) = (lab.directory.path / "refused.jsonl").read_text().splitlines()
    assert json.loads(line)["params"] == {"max-num-seqs": 64}
    assert json.loads(line)["reason"] == "implied_by_failure"
    assert "trial 1" in json.loads(line)["message"]
    told = {c.params["max-num-seqs"]: type(o).__name__ for c, o in lab.proposer.told}
    assert told == {32: "Infeasible", 64: "Infeasible", 16: "Infeasible"}


def test_it_is_known_again_after_a_resume(lab: Any, make: Any) -> None:
    lab.script = by_width(make)
    lab.prepare(budget={"trials": 2}).runs(make.candidate(32))
    lab.runs()
    before = len(lab.tasks)
    lab.study = lab.study.__class__(
        **{
            **{name: getattr(lab.study, name) for name in lab.study.__slots__},
            "spec": lab.study.spec.model_copy(
                update={"budget": lab.study.spec.budget.model_copy(update={"trials": 9})}
            ),
        }
    )
    lab.runs(make.candidate(64), make.candidate(4))
    assert [t.candidate.params["max-num-seqs"] for t in lab.tasks[before:]] == [4]


def test_a_space_of_which_all_is_refused_ends_the_search(
    lab: Any, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.study.search_act.REFUSED_IN_A_ROW", 3)
    lab.script = by_width(make)
    end = lab.prepare(budget={"trials": 40}).runs(*[make.candidate(n) for n in range(16, 40)])
    assert len(lab.tasks) == 2
    assert "3 settings in a row were refused before launch" in end.stopped_because
