"""What every kind of engine keeps to."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from autotune.engines.catalog import KINDS, engine_for
from autotune.engines.engine import Engine, ExitInfo, LaunchTarget
from autotune.engines.plan import HOST, PORT, LaunchPlan
from autotune.errors import InputError
from autotune.space.candidate import Candidate

SERVER = (sys.executable, "server.py")


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> Engine:
    return engine_for(request.param)


class TestEngineContract:
    """Every engine passes these as it is; nothing here starts a server."""

    def target(self, **fields: object) -> LaunchTarget:
        values: dict[str, object] = {"model": "acme/tiny", "launcher": "process", "command": SERVER}
        return LaunchTarget(**(values | fields))  # type: ignore[arg-type]

    def test_the_plan_is_for_this_kind_and_starts_the_command(self, engine: Engine) -> None:
        plan = engine.plan(Candidate({}), self.target())
        assert plan.engine == engine.kind
        assert plan.launcher == "process"
        assert plan.argv[: len(SERVER)] == SERVER

    def test_address_words_stand_alone(self, engine: Engine) -> None:
        plan = engine.plan(Candidate({"max-num-seqs": 8}), self.target())
        assert plan.argv.count(HOST) == 1
        assert plan.argv.count(PORT) == 1
        filled = plan.argv_for("127.0.0.1", 8123)
        assert filled[filled.index("--host") + 1] == "127.0.0.1"
        assert filled[filled.index("--port") + 1] == "8123"

    def test_equal_candidates_give_equal_plans(self, engine: Engine) -> None:
        one = engine.plan(Candidate({"seed": 1, "max-num-seqs": 8}), self.target())
        other = engine.plan(Candidate({"max-num-seqs": 8, "seed": 1}), self.target())
        assert one == other

    def test_each_flag_and_each_value_is_a_word(self, engine: Engine) -> None:
        plan = engine.plan(Candidate({"max-num-seqs": 8}), self.target(args={"seed": 3}))
        words = plan.argv
        assert words[words.index("--max-num-seqs") + 1] == "8"
        assert words[words.index("--seed") + 1] == "3"

    def test_a_knob_overrides_a_fixed_flag(self, engine: Engine) -> None:
        target = self.target(args={"max_num_seqs": 256})
        plan = engine.plan(Candidate({"max-num-seqs": 8}), target)
        assert plan.argv.count("--max-num-seqs") == 1
        assert plan.argv[plan.argv.index("--max-num-seqs") + 1] == "8"

    def test_null_leaves_the_engines_default(self, engine: Engine) -> None:
        target = self.target(args={"max-num-seqs": 256})
        plan = engine.plan(Candidate({"max-num-seqs": None}), target)
        assert "--max-num-seqs" not in plan.argv

    def test_a_json_value_is_one_word_of_json(self, engine: Engine) -> None:
        value = {"method": "ngram", "num_speculative_tokens": 4}
        plan = engine.plan(Candidate({"speculative-config": value}), self.target())
        word = plan.argv[plan.argv.index("--speculative-config") + 1]
        assert json.loads(word) == value

    def test_a_knob_may_be_an_environment_variable(self, engine: Engine) -> None:
        target = self.target(env={"A": "1"}, knob_env={"backend": "ATTENTION", "fast": "FAST"})
        plan = engine.plan(Candidate({"backend": "flash", "fast": True}), target)
        assert dict(plan.env) == {"A": "1", "ATTENTION": "flash", "FAST": "1"}
        assert "flash" not in plan.argv

    def test_a_knob_may_have_another_name_than_its_flag(self, engine: Engine) -> None:
        target = self.target(knob_flags={"sequences": "max-num-seqs"})
        plan = engine.plan(Candidate({"sequences": 4}), target)
        assert plan.argv[-2:] == ("--max-num-seqs", "4")

    def test_secrets_stay_off_the_command_line(self, engine: Engine) -> None:
        with pytest.raises(InputError) as caught:
            engine.plan(Candidate({}), self.target(args={"api-key": "sk-MADEUP"}))
        assert "from_env" in str(caught.value.hint)
        assert "sk-MADEUP" not in f"{caught.value} {caught.value.seen} {caught.value.hint}"

    def test_secrets_travel_by_name(self, engine: Engine) -> None:
        plan = engine.plan(Candidate({}), self.target(secrets={"HF_TOKEN": "MY_TOKEN"}))
        assert dict(plan.secrets) == {"HF_TOKEN": "MY_TOKEN"}

    def test_a_plan_survives_its_json(self, engine: Engine) -> None:
        plan = engine.plan(Candidate({"seed": 2}), self.target())
        assert LaunchPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan

    def test_a_container_plan_names_its_image_and_keeps_the_users_mounts(
        self, engine: Engine
    ) -> None:
        target = self.target(launcher="docker", image="acme/engine:v1.2.3", shm_size="2g")
        plan = engine.plan(Candidate({}), target)
        assert (plan.image, plan.shm_size) == ("acme/engine:v1.2.3", "2g")
        with pytest.raises(InputError):
            engine.plan(Candidate({}), self.target(launcher="docker"))

    def test_a_running_server_is_attached_to_but_never_changed(self, engine: Engine) -> None:
        target = self.target(launcher="attach", url="http://127.0.0.1:9")
        assert engine.plan(Candidate({}), target).url == "http://127.0.0.1:9"
        with pytest.raises(InputError):
            engine.plan(Candidate({"seed": 1}), target)

    def test_a_planned_command_can_be_read_back(self, engine: Engine) -> None:
        import shlex

        target = self.target(command=None if engine.kind == "vllm" else SERVER)
        if engine.kind == "simulated":
            target = self.target(command=None)
        params = {"max-num-seqs": 8, "seed": 2}
        plan = engine.plan(Candidate(params), target)
        parsed = engine.parse_command(shlex.join(plan.argv_for("127.0.0.1", 1)))
        assert dict(parsed.params) == params

    def test_text_without_a_command_is_refused(self, engine: Engine) -> None:
        with pytest.raises(InputError):
            engine.parse_command("  \n# nothing here\n")

    def test_any_log_gets_a_diagnosis_of_the_contract(self, engine: Engine) -> None:
        found = engine.diagnose(["Segmentation fault"], ExitInfo(code=-11), None).to_json()
        assert set(found) >= {"fault", "phase", "reason", "remedy", "evidence", "message"}
        assert engine.diagnose([], None, None).fault == "unknown"

    def test_metric_names_are_prometheus_names(self, engine: Engine) -> None:
        assert all(" " not in name for name in engine.metric_names().values())


def test_metric_names_of_vllm_hold_for_a_real_server() -> None:
    """The fixture is the list of names that vLLM 0.32 (CPU build) exposes."""
    exposed = (Path(__file__).parent / "vllm-0.32-metric-names.txt").read_text().split()
    names = engine_for("vllm").metric_names()
    required = {"kv_usage", "preemptions", "prefix_hits", "prefix_queries", "running", "waiting"}
    required |= {"prompt_tokens", "generation_tokens", "queue_time"}
    assert required <= names.keys()
    assert set(names.values()) <= set(exposed)


def test_an_unknown_kind_and_sglang_are_refused() -> None:
    with pytest.raises(InputError, match="sglang is not supported in this version"):
        engine_for("sglang")
    with pytest.raises(InputError, match="unknown engine kind: llama"):
        engine_for("llama")
