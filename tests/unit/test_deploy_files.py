from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from autotune.deploy.facts import DeployFacts, MetricFact
from autotune.deploy.files import write_hand_over
from autotune.deploy.formats import FORMATS
from autotune.deploy.quoting import kubernetes_name, yaml_string
from autotune.deploy.timing import grace_s, startup_limit_s
from autotune.engines.plan import HOST, PORT, LaunchPlan, Mount
from autotune.errors import InputError

ODD = (
    '{"method": "ngram", "n": 4}',
    "it's-tuned",
    "a b",
    "$HOME $(id) `id`",
    "l1\nl2",
    "",
    "é 🙂 %h",
)
FACTS = DeployFacts(
    study="night <run>\nrm -rf /",
    trial=7,
    verdict="ttft_p95 is 32 % lower than the baseline's",
    metrics=(
        MetricFact(
            name="ttft_p95", unit="s", value=0.4123, interval=(0.398, None), baseline=0.61,
            baseline_interval=(0.59, 0.64),
        ),
        MetricFact(name="tpot_p95", unit="s", value=None),
    ),
    engine="vllm",
    engine_version="0.26.0",
    model="acme/tiny 14b",
    date="2026-11-29",
    tool_version="0.1.0",
    startup_seconds=88.0,
    e2e_p99_s=43.0,
    changed={"max-num-seqs": (None, 64)},
    flag_notes={"max-num-seqs": "64: guards\nTPOT"},
)  # fmt: skip
PROCESS = LaunchPlan(
    engine="vllm",
    launcher="process",
    argv=("vllm", "serve", "acme/tiny 14b", "--host", HOST, "--port", PORT,
          "--max-num-seqs", "64", *ODD),
    model="acme/tiny 14b",
    env={"PLAIN": "a $b", "MY_API_KEY": "CASE-KEY"},
    secrets={"HF_TOKEN": "OUR_TOKEN"},
)  # fmt: skip
DOCKER = replace(
    PROCESS,
    launcher="docker",
    image="registry.example:5000/vllm/vllm-openai:v0.26.0",
    gpus=("0", "1"),
    shm_size="16g",
    mounts=(
        Mount(source="hf-cache", target="/root/.cache", read_only=False),
        Mount(source="/srv/models", target="/models"),
    ),
)
DIGEST = "sha256:" + "ab" * 32


def write(folder: Path, plan: LaunchPlan, facts: DeployFacts = FACTS) -> list[str]:
    baseline = replace(facts, trial=0, role="baseline")
    return [path.name for path in write_hand_over(folder, plan, plan, facts, baseline)]


def test_a_process_plan_gets_the_files_that_apply(tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text("of an earlier study")
    names = write(tmp_path, PROCESS)
    assert names == [
        "launch.sh", "autotune.service", "rollback.sh", "manifest.json", "README.md",
    ]  # fmt: skip
    assert {p.name for p in tmp_path.iterdir()} == set(names)
    assert (tmp_path / "launch.sh").stat().st_mode & 0o777 == 0o755
    readme = (tmp_path / "README.md").read_text()
    assert "`compose.yaml`: the study launched the engine as a process" in readme


def test_a_container_plan_gets_all_files_and_the_same_bytes_again(tmp_path: Path) -> None:
    facts = replace(FACTS, image_digest=DIGEST)
    names = write(tmp_path / "a", DOCKER, facts)
    assert len(names) == 8
    assert write(tmp_path / "b", DOCKER, facts) == names
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_an_attached_server_has_a_record_but_no_script(tmp_path: Path) -> None:
    plan = LaunchPlan(engine="vllm", launcher="attach", argv=(), model="m", url="http://x")
    assert write(tmp_path, plan) == ["manifest.json", "README.md"]
    assert "already running" in (tmp_path / "README.md").read_text()
    for render in FORMATS.values():
        with pytest.raises(InputError):
            render(plan, FACTS)


@pytest.mark.parametrize("name", ["docker", "compose", "k8s"])
def test_container_formats_refuse_a_process_plan(name: str) -> None:
    with pytest.raises(InputError, match="needs a container image"):
        FORMATS[name](PROCESS, FACTS)


@pytest.mark.parametrize("plan", [PROCESS, DOCKER], ids=["process", "docker"])
def test_no_file_holds_a_secret_and_each_says_how_it_was_measured(
    tmp_path: Path, plan: LaunchPlan
) -> None:
    for name in write(tmp_path, plan, replace(FACTS, simulated=True, confirmed=False)):
        text = (tmp_path / name).read_text()
        assert "CASE-KEY" not in text
        assert "0.26.0" in text or name == "README.md"
        if name != "manifest.json":
            assert "SIMULATED" in text
            assert "UNCONFIRMED" in text
            assert "412.3 ms [398 ms, open]" in text


def test_text_from_outside_stays_inside_its_comment_line() -> None:
    script = FORMATS["bash"](PROCESS, FACTS)
    header = script.partition("\nset -euo pipefail")[0].splitlines()[1:]
    assert all(line.startswith("#") or not line for line in header)
    assert "# night <run> rm -rf /, trial 7: best settings" in script
    assert "--max-num-seqs  # 64: guards TPOT\n" in script


def test_scripts_listen_on_loopback_unless_told(tmp_path: Path) -> None:
    assert 'HOST="${HOST:-127.0.0.1}"' in FORMATS["bash"](PROCESS, FACTS)
    docker = FORMATS["docker"](DOCKER, FACTS)
    assert 'HOST="${HOST:-127.0.0.1}"' in docker
    assert '\n  -p\n  "$HOST:$PORT:8000"\n' in docker
    assert json.loads(FORMATS["argv"](DOCKER, FACTS)).count("127.0.0.1:8000:8000") == 1
    assert '"${HOST:-127.0.0.1}:' in FORMATS["compose"](DOCKER, FACTS)
    assert "\n  127.0.0.1 \\\n" in FORMATS["systemd"](PROCESS, FACTS)
    assert "ClusterIP" in FORMATS["k8s"](DOCKER, FACTS)


def test_the_argv_list_is_the_plan_word_for_word() -> None:
    words = json.loads(FORMATS["argv"](PROCESS, FACTS))
    assert tuple(words) == PROCESS.argv_for("127.0.0.1", 8000)


def test_a_digest_names_the_image_where_it_is_known() -> None:
    pinned = json.loads(FORMATS["argv"](DOCKER, replace(FACTS, image_digest=DIGEST)))
    assert f"registry.example:5000/vllm/vllm-openai@{DIGEST}" in pinned
    assert DOCKER.image in json.loads(FORMATS["argv"](DOCKER, FACTS))


def compose_literal(text: str) -> str:
    assert not re.search(r"\$(?!\$)", text.replace("$$", "")), "an unescaped dollar"
    return text.replace("$$", "$")


def test_the_compose_file_is_the_container_word_for_word() -> None:
    service: dict[str, Any] = yaml.safe_load(FORMATS["compose"](DOCKER, FACTS))["services"][
        "engine"
    ]
    words = [*service["entrypoint"], *service["command"]]
    assert tuple(compose_literal(w) for w in words) == DOCKER.argv_for("0.0.0.0", 8000)
    assert service["environment"] == {
        "PLAIN": "a $$b",
        "MY_API_KEY": "${MY_API_KEY:?set MY_API_KEY}",
        "HF_TOKEN": "${OUR_TOKEN:?set OUR_TOKEN}",
    }
    devices = service["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "device_ids": ["0", "1"], "capabilities": ["gpu"]}]
    assert service["shm_size"] == "16g"
    assert [v["read_only"] for v in service["volumes"]] == [False, True]
    assert service["stop_grace_period"] == "65s"


def test_the_kubernetes_file_is_the_container_word_for_word() -> None:
    deployment, service = yaml.safe_load_all(FORMATS["k8s"](DOCKER, FACTS))
    pod = deployment["spec"]["template"]["spec"]
    engine = pod["containers"][0]
    words = [w.replace("$$(", "$(") for w in [*engine["command"], *engine["args"]]]
    assert tuple(words) == DOCKER.argv_for("0.0.0.0", 8000)
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert pod["enableServiceLinks"] is False
    assert pod["terminationGracePeriodSeconds"] == 95
    assert engine["startupProbe"]["failureThreshold"] == 54
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": "2"}
    key = engine["env"][2]["valueFrom"]["secretKeyRef"]
    assert key == {"name": "autotune-night-run-rm-rf", "key": "OUR_TOKEN"}
    assert pod["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert service["spec"]["selector"].items() <= pod_labels(deployment).items()


def pod_labels(deployment: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = deployment["spec"]["template"]["metadata"]["labels"]
    return labels


def test_no_gpu_asked_for_means_none_in_any_file() -> None:
    plan = replace(DOCKER, gpus=(), shm_size=None, ipc_host=True)
    assert "--gpus" not in json.loads(FORMATS["argv"](plan, FACTS))
    assert [w for w in json.loads(FORMATS["argv"](plan, FACTS)) if w in {"--ipc", "host"}] == [
        "--ipc",
        "host",
    ]
    assert "devices" not in FORMATS["compose"](plan, FACTS)
    assert "nvidia.com" not in FORMATS["k8s"](plan, FACTS)


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_manifest_is_strict_json_and_names_the_other_files(tmp_path: Path) -> None:
    write(tmp_path, PROCESS)
    record = strict((tmp_path / "manifest.json").read_text())
    assert record["launch"]["argv"] == list(PROCESS.argv)
    assert record["launch"]["env"] == ["MY_API_KEY", "PLAIN"]
    assert record["metrics"]["ttft_p95"]["interval"] == [0.398, None]
    assert record["metrics"]["tpot_p95"]["value"] is None
    assert record["changed"] == {"max-num-seqs": {"baseline": None, "value": 64}}
    assert set(record["files"]) == {"launch.sh", "autotune.service", "rollback.sh"}


def test_a_number_that_json_does_not_know_is_refused() -> None:
    facts = replace(FACTS, metrics=(MetricFact(name="x", unit="s", value=float("nan")),))
    from autotune.deploy import manifest

    with pytest.raises(ValueError, match="not JSON compliant"):
        manifest.render(PROCESS, facts)


def test_a_variable_name_that_no_shell_can_set_is_refused() -> None:
    with pytest.raises(InputError, match=r"`A\.B`"):
        FORMATS["bash"](replace(PROCESS, env={"A.B": "1"}), FACTS)


def test_time_limits_come_from_measured_times() -> None:
    assert startup_limit_s(FACTS) == 270
    assert startup_limit_s(replace(FACTS, startup_seconds=5.0)) == 120
    assert grace_s(FACTS) == 65
    assert grace_s(replace(FACTS, e2e_p99_s=1.0)) == 30


@given(st.text())
def test_yaml_reads_every_string_back(text: str) -> None:
    clean = text.encode("utf-8", "replace").decode()
    assert yaml.safe_load(yaml_string(clean)) == clean


@given(st.text())
def test_names_for_kubernetes_are_labels(text: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?", kubernetes_name(text))
