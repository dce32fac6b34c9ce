"""What every kind of engine keeps to."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.engines.catalog import KINDS, engine_for
from autotune.engines.engine import Engine, ExitInfo, LaunchTarget
from autotune.engines.facts import SPEAKS, engine_facts
from autotune.engines.flag_table import read_table, table_versions
from autotune.engines.plan import HOST, PORT, LaunchPlan
from autotune.errors import InputError
from autotune.space.candidate import Candidate

SERVER = (sys.executable, "server.py")


@dataclass(frozen=True)
class Names:
    """What an engine calls the number of sequences, the seed, and a flag that takes JSON."""

    sequences: str = "max-num-seqs"
    seed: str = "seed"
    json: str = "speculative-config"


SGLANG = Names("max-running-requests", "random-seed", "json-model-override-args")
NAMES = {"sglang": SGLANG, "simulated-sglang": SGLANG}


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> Engine:
    return engine_for(request.param)


@pytest.fixture
def names(engine: Engine) -> Names:
    return NAMES.get(engine.kind, Names())


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

    def test_address_words_stand_alone(self, engine: Engine, names: Names) -> None:
        plan = engine.plan(Candidate({names.sequences: 8}), self.target())
        assert plan.argv.count(HOST) == 1
        assert plan.argv.count(PORT) == 1
        filled = plan.argv_for("127.0.0.1", 8123)
        assert filled[filled.index("--host") + 1] == "127.0.0.1"
        assert filled[filled.index("--port") + 1] == "8123"

    def test_equal_candidates_give_equal_plans(self, engine: Engine, names: Names) -> None:
        one = engine.plan(Candidate({names.seed: 1, names.sequences: 8}), self.target())
        other = engine.plan(Candidate({names.sequences: 8, names.seed: 1}), self.target())
        assert one == other

    def test_each_flag_and_each_value_is_a_word(self, engine: Engine, names: Names) -> None:
        plan = engine.plan(Candidate({names.sequences: 8}), self.target(args={names.seed: 3}))
        words = plan.argv
        assert words[words.index(f"--{names.sequences}") + 1] == "8"
        assert words[words.index(f"--{names.seed}") + 1] == "3"

    def test_a_knob_overrides_a_fixed_flag(self, engine: Engine, names: Names) -> None:
        flag = f"--{names.sequences}"
        target = self.target(args={names.sequences.replace("-", "_"): 256})
        plan = engine.plan(Candidate({names.sequences: 8}), target)
        assert plan.argv.count(flag) == 1
        assert plan.argv[plan.argv.index(flag) + 1] == "8"

    def test_null_leaves_the_engines_default(self, engine: Engine, names: Names) -> None:
        target = self.target(args={names.sequences: 256})
        plan = engine.plan(Candidate({names.sequences: None}), target)
        assert f"--{names.sequences}" not in plan.argv

    def test_a_json_value_is_one_word_of_json(self, engine: Engine, names: Names) -> None:
        value = {"method": "ngram", "num_speculative_tokens": 4}
        plan = engine.plan(Candidate({names.json: value}), self.target())
        word = plan.argv[plan.argv.index(f"--{names.json}") + 1]
        assert json.loads(word) == value

    def test_what_it_plans_its_own_parser_takes(self, engine: Engine, names: Names) -> None:
        """For the engines whose parsers are known, in every version that there is a table of."""
        plan = engine.plan(
            Candidate({names.sequences: 8, names.json: {}}), self.target(args={names.seed: 3})
        )
        family = SPEAKS.get(engine.kind, engine.kind)
        words = plan.argv_for("127.0.0.1", 8000)[len(SERVER) :]
        for version in table_versions(family):
            assert read_table(family, version).check(words) == ()

    def test_a_knob_may_be_an_environment_variable(self, engine: Engine) -> None:
        target = self.target(env={"A": "1"}, knob_env={"backend": "ATTENTION", "fast": "FAST"})
        plan = engine.plan(Candidate({"backend": "flash", "fast": True}), target)
        assert dict(plan.env) == {"A": "1", "ATTENTION": "flash", "FAST": "1"}
        assert "flash" not in plan.argv

    def test_a_knob_may_have_another_name_than_its_flag(self, engine: Engine, names: Names) -> None:
        target = self.target(knob_flags={"sequences": names.sequences})
        plan = engine.plan(Candidate({"sequences": 4}), target)
        assert plan.argv[-2:] == (f"--{names.sequences}", "4")

    def test_secrets_stay_off_the_command_line(self, engine: Engine) -> None:
        with pytest.raises(InputError) as caught:
            engine.plan(Candidate({}), self.target(args={"api-key": "sk-MADEUP"}))
        assert "from_env" in str(caught.value.hint)
        assert "sk-MADEUP" not in f"{caught.value} {caught.value.seen} {caught.value.hint}"

    def test_secrets_travel_by_name(self, engine: Engine) -> None:
        plan = engine.plan(Candidate({}), self.target(secrets={"HF_TOKEN": "MY_TOKEN"}))
        assert dict(plan.secrets) == {"HF_TOKEN": "MY_TOKEN"}

    def test_a_plan_survives_its_json(self, engine: Engine, names: Names) -> None:
        plan = engine.plan(Candidate({names.seed: 2}), self.target(health="/up"))
        assert plan.health == "/up"
        assert LaunchPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan

    def test_a_container_plan_names_its_image_and_keeps_the_users_mounts(
        self, engine: Engine
    ) -> None:
        target = self.target(launcher="docker", image="acme/engine:v1.2.3", shm_size="2g")
        plan = engine.plan(Candidate({}), target)
        assert (plan.image, plan.shm_size) == ("acme/engine:v1.2.3", "2g")
        with pytest.raises(InputError):
            engine.plan(Candidate({}), self.target(launcher="docker"))

    def test_a_running_server_is_attached_to_but_never_changed(
        self, engine: Engine, names: Names
    ) -> None:
        target = self.target(launcher="attach", url="http://127.0.0.1:9")
        assert engine.plan(Candidate({}), target).url == "http://127.0.0.1:9"
        with pytest.raises(InputError):
            engine.plan(Candidate({names.seed: 1}), target)

    def test_a_planned_command_can_be_read_back(self, engine: Engine, names: Names) -> None:
        target = self.target(command=SERVER if engine.kind == "generic" else None)
        params = {names.sequences: 8, names.seed: 2}
        plan = engine.plan(Candidate(params), target)
        parsed = engine.parse_command(shlex.join(plan.argv_for("127.0.0.1", 1)))
        always = engine_facts(engine.kind).always
        assert dict(parsed.params) == {**always, **params}
        assert parsed.model in (target.model, None if engine.kind == "generic" else target.model)

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


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="unknown engine kind: llama"):
        engine_for("llama")
