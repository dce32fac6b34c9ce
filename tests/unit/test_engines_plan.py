"""vLLM plans: flags by version, containers, what may not be set."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autotune.engines import catalog
from autotune.engines.engine import LaunchTarget
from autotune.engines.facts import engine_facts, signatures
from autotune.engines.flags import flag_problem
from autotune.engines.launch_params import image_version
from autotune.engines.plan import Mount
from autotune.engines.simulated import SimulatedEngine
from autotune.engines.versions import applies
from autotune.engines.vllm import VllmEngine
from autotune.errors import InputError
from autotune.space.candidate import Candidate


def target(**fields: object) -> LaunchTarget:
    values: dict[str, object] = {"model": "acme/tiny", "launcher": "process"}
    return LaunchTarget(**(values | fields))  # type: ignore[arg-type]


def test_a_removed_flag_of_a_known_version_names_its_successor() -> None:
    candidate = Candidate({"swap-space": 4})
    with pytest.raises(InputError, match=r"gone from vllm since 0\.18; instead: kv-offloading"):
        VllmEngine("0.26.0").plan(candidate, target())
    assert VllmEngine("0.11.0").plan(candidate, target()).argv[-2:] == ("--swap-space", "4")
    assert VllmEngine().plan(candidate, target()).argv[-2:] == ("--swap-space", "4")


def test_the_version_of_an_image_counts() -> None:
    image = "vllm/vllm-openai:v0.26.0"
    with pytest.raises(InputError, match="swap-space"):
        VllmEngine().plan(Candidate({"swap-space": 4}), target(launcher="docker", image=image))
    assert image_version(image) == "0.26.0"
    assert image_version("vllm/vllm-openai:latest") is None
    assert image_version(None) is None


def test_a_flag_of_another_engine_is_refused_in_any_version() -> None:
    with pytest.raises(InputError, match="not a flag of vllm"):
        VllmEngine().plan(Candidate({"enable-cuda-graph": True}), target())


def test_an_unknown_flag_is_passed_through() -> None:
    plan = VllmEngine("0.40.0").plan(Candidate({"brand-new": 3, "shiny": False}), target())
    assert plan.argv[-3:] == ("--brand-new", "3", "--no-shiny")


def test_a_disable_spelling_becomes_the_form_that_works_everywhere() -> None:
    plan = VllmEngine().plan(Candidate({"disable-chunked-prefill": True}), target())
    assert plan.argv[-1] == "--no-enable-chunked-prefill"


def test_short_names_and_nested_names_are_understood() -> None:
    plan = VllmEngine().plan(
        Candidate({"tp": 2, "compilation_config.cudagraph_mode": "FULL"}), target()
    )
    assert plan.argv[-4:] == (
        "--compilation-config.cudagraph_mode", "FULL", "--tensor-parallel-size", "2",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["host", "port", "model", "config"])
def test_what_the_launcher_sets_cannot_be_a_flag(name: str) -> None:
    with pytest.raises(InputError, match=f"`{name}` cannot be set as a flag"):
        VllmEngine().plan(Candidate({}), target(args={name: "x"}))


@pytest.mark.parametrize("name", ["api-key", "hf_token", "admin-password"])
def test_a_secret_cannot_be_a_flag(name: str) -> None:
    with pytest.raises(InputError, match="is a secret"):
        VllmEngine().plan(Candidate({}), target(args={name: "x"}))


def test_batched_tokens_are_no_secret() -> None:
    plan = VllmEngine().plan(Candidate({"max-num-batched-tokens": 512}), target())
    assert plan.argv[-1] == "512"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gpu-memory-utilization", float("nan"), "finite"),
        ("max-num-seqs", 1.5, "whole number"),
    ],
)
def test_a_number_of_the_wrong_kind_is_refused(name: str, value: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        VllmEngine().plan(Candidate({}), target(args={name: value}))


def test_a_value_that_looks_like_a_flag_is_tied_to_its_own() -> None:
    plan = VllmEngine().plan(Candidate({"max-model-len": -1, "chat-template": "--x"}), target())
    assert plan.argv[-3:] == ("--chat-template=--x", "--max-model-len", "-1")


def test_a_model_folder_is_mounted_read_only_where_it_is(tmp_path: Path) -> None:
    plan = VllmEngine().plan(
        Candidate({}),
        target(model=str(tmp_path), launcher="docker", image="vllm/vllm-openai:v0.26.0"),
    )
    assert Mount(source=str(tmp_path), target=str(tmp_path)) in plan.mounts
    assert plan.argv[2] == plan.model == str(tmp_path)
    assert not any(mount.target.endswith("huggingface") for mount in plan.mounts)
    compiled = [mount for mount in plan.mounts if mount.target == "/root/.cache/vllm"]
    assert [mount.source for mount in compiled] == ["autotune-vllm-0.26.0"]
    kept = {mount.target for mount in plan.mounts if mount.source.endswith("-0.26.0")}
    assert kept == {
        "/root/.cache/vllm", "/root/.triton", "/root/.cache/flashinfer", "/root/.nv/ComputeCache",
    }  # fmt: skip


def test_a_hub_snapshot_is_mounted_with_the_files_it_links_to(tmp_path: Path) -> None:
    snapshot = tmp_path / "models--acme--tiny" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    plan = VllmEngine().plan(
        Candidate({}), target(model=str(snapshot), launcher="docker", image="engine:v1")
    )
    assert plan.mounts[0].source == str(tmp_path / "models--acme--tiny")
    assert plan.argv[2] == str(snapshot)


def test_a_hub_model_keeps_its_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    asked = target(launcher="docker", image="engine:v1")
    hub = "/root/.cache/huggingface"
    volume = Mount(source="autotune-huggingface", target=hub, read_only=False)
    assert volume in VllmEngine().plan(Candidate({}), asked).mounts
    (tmp_path / ".cache" / "huggingface").mkdir(parents=True)
    folder = Mount(source=str(tmp_path / ".cache" / "huggingface"), target=hub, read_only=False)
    assert folder in VllmEngine().plan(Candidate({}), asked).mounts
    own = Mount(source="/data/hf", target=hub)
    mounts = (
        VllmEngine()
        .plan(Candidate({}), target(launcher="docker", image="engine:v1", mounts=(own,)))
        .mounts
    )
    assert [mount for mount in mounts if mount.target == hub] == [own]


def test_shared_memory_grows_with_parallelism() -> None:
    asked = target(launcher="docker", image="engine:v1")
    assert VllmEngine().plan(Candidate({}), asked).shm_size == "1g"
    assert VllmEngine().plan(Candidate({"tensor-parallel-size": 2}), asked).shm_size == "16g"
    host = target(launcher="docker", image="engine:v1", ipc_host=True)
    assert VllmEngine().plan(Candidate({}), host).shm_size is None


def test_the_simulated_engine_runs_in_our_own_interpreter() -> None:
    plan = SimulatedEngine().plan(Candidate({"max-num-seqs": 4}), target(model="any text"))
    assert plan.argv[:5] == (sys.executable, "-m", "autotune.simulator", "serve", "any text")
    assert plan.engine == "simulated"
    with pytest.raises(InputError, match="needs a command"):
        SimulatedEngine().plan(Candidate({}), target(launcher="docker", image="x:v1"))


def test_generic_commands_may_place_the_model_themselves() -> None:
    engine = catalog.engine_for("generic")
    command = ("llama-server", "-m", "{model}", "--host", "{host}", "--port", "{port}")
    plan = engine.plan(Candidate({"ctx-size": 4096}), target(command=command))
    assert plan.argv == (
        "llama-server", "-m", "acme/tiny", "--host", "{host}", "--port", "{port}",
        "--ctx-size", "4096",
    )  # fmt: skip
    with pytest.raises(InputError, match="needs a command"):
        engine.plan(Candidate({}), target())


def test_versions_are_compared_as_far_as_they_are_written() -> None:
    assert applies("0.17.3", until="0.17")
    assert not applies("0.18.0", until="0.17")
    assert applies("v0.26.0+cpu", since="0.26")
    assert not applies("0.9.2", since="0.11")
    assert applies(None, since="99")
    assert applies("nightly", since="99")


def test_flags_that_a_version_lacks_are_told() -> None:
    facts = engine_facts("vllm")
    names = ["performance-mode", "max_num_seqs", "task", "brand-new"]

    def missing(version: str | None) -> set[str]:
        return {name for name in names if flag_problem(facts, name, version) is not None}

    assert missing("0.11.0") == {"performance-mode"}
    assert missing("0.26.0") == {"task"}
    assert missing(None) == set()
    assert catalog.is_known_flag("simulated", "max_num_seqs")
    assert not catalog.is_known_flag("vllm", "brand-new")
    assert catalog.canonical_flag("vllm", "-tp") == "tensor-parallel-size"


def test_the_facts_are_consistent() -> None:
    facts = engine_facts("vllm")
    assert set(facts.aliases.values()) - set(facts.managed) <= set(facts.flags)
    assert set(facts.opposites.values()) <= set(facts.flags)
    assert len(facts.flags) > 300
    stages = {stage.stage for kind in ("vllm", "sglang") for stage in engine_facts(kind).stages}
    for signature in signatures():
        assert set(signature.stages) <= stages
        assert signature.cleared_by is None or signature.cleared_by in stages
        assert signature.fault in ("candidate", "study", "environment", "tool", "unknown")
        assert signature.phase in ("arguments", "startup", "load", "stop", "run")


def test_a_version_is_probed_without_starting_a_server(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\necho 'INFO some talk' >&2\necho 'vllm 0.31.2+cpu'\n")
    program.chmod(0o755)
    assert catalog.probe_version(target(command=(str(program), "serve"))) == "0.31.2+cpu"
    program.write_text("#!/bin/sh\nexit 3\n")
    assert catalog.probe_version(target(command=(str(program), "serve"))) is None
    assert catalog.probe_version(target(command=(str(tmp_path / "none"), "serve"))) is None
    assert catalog.probe_version(target(launcher="docker", image="a/b:v0.12.0")) == "0.12.0"
    assert catalog.probe_version(target(launcher="attach", url="http://x")) is None


def test_the_start_up_stages_of_a_real_log_come_in_order() -> None:
    from autotune.engines.diagnosis import startup_phase

    log = Path(__file__).parents[1] / "cases" / "engine_logs" / "real" / "engine-core-killed.log"
    seen = [startup_phase(line, "vllm") for line in log.read_text().splitlines()]
    stages = list(dict.fromkeys(stage for stage in seen if stage is not None))
    order = [stage.stage for stage in engine_facts("vllm").stages]
    assert stages == [stage for stage in order if stage in stages]
    assert {"weights", "kv_cache", "http", "serving"} <= set(stages)
