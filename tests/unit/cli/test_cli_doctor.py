"""Each check of `doctor`: its state, and that whatever is not ok says what to type."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from docker.errors import DockerException

from autotune.cli import doctor_engines, doctor_machine, doctoring
from autotune.cli.doctor_machine import Finding
from autotune.errors import InputError
from autotune.launch.gpus import Gpu
from autotune.launch.leftovers import Leftover

GIB = 2**30


def daemon(**info: Any) -> Any:
    return SimpleNamespace(
        version=lambda: {"Version": "29.1"}, info=lambda: info, close=lambda: None
    )


def gpu(used_gib: float) -> Gpu:
    return Gpu(
        index=0, uuid="GPU-1", name="NVIDIA H200", memory_total=150_754_820_096,
        memory_used=int(used_gib * GIB), driver="580.159.04", compute_capability=9.0,
        memory_reserved=644_939_776,
    )  # fmt: skip


def one(findings: list[Finding]) -> Finding:
    (found,) = findings
    return found


def test_a_daemon_that_answers() -> None:
    found = one(doctor_engines.docker_daemon(has_gpu=False, connect=daemon))
    assert (found.state, found.text) == ("ok", "engine 29.1")


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (DockerException("('Connection aborted.', PermissionError(13, 'Permission denied'))"),
         "usermod -aG docker"),
        (DockerException("Connection refused"), "systemctl start docker"),
        (OSError("no route"), "systemctl start docker"),
    ],
)  # fmt: skip
def test_a_daemon_that_does_not_answer_is_a_note_with_the_way_out(
    error: Exception, hint: str
) -> None:
    def connect() -> Any:
        raise error

    found = one(doctor_engines.docker_daemon(has_gpu=True, connect=connect))
    assert found.state == "note"
    assert hint in (found.hint or "")


@pytest.mark.parametrize(
    ("info", "state"),
    [
        ({"Runtimes": {"runc": {}, "nvidia": {}}}, "ok"),
        ({"Runtimes": {"runc": {}}, "DiscoveredDevices": [{"ID": "nvidia.com/gpu=0"}]}, "ok"),
        ({"Runtimes": {"runc": {}}}, "note"),
    ],
)
def test_whether_containers_get_gpus_matters_only_with_gpus(info: Any, state: str) -> None:
    _, runtime = doctor_engines.docker_daemon(has_gpu=True, connect=lambda: daemon(**info))
    assert runtime.state == state
    assert (runtime.hint is None) == (state == "ok")
    one(doctor_engines.docker_daemon(has_gpu=False, connect=lambda: daemon(**info)))


def test_an_idle_gpu_is_shown_with_the_memory_that_programs_can_have() -> None:
    found = one(doctor_engines.graphics([gpu(0)]))
    assert (found.state, found.text) == ("ok", ("NVIDIA H200, 140 GiB (0.0 in use), "
                                         "driver 580.159.04"))  # fmt: skip


def test_a_busy_gpu_names_who_holds_it() -> None:
    found = one(doctor_engines.graphics([gpu(40)], lambda uuid: [f"pid 77 on {uuid}"]))
    assert found.state == "note"
    assert "pid 77 on GPU-1" in found.text
    assert "nvidia-smi" in (found.hint or "")


@pytest.mark.parametrize(("driver", "state"), [(None, "note"), ("/usr/bin/nvidia-smi", "bad")])
def test_no_gpu_is_a_note_but_a_driver_that_fails_is_bad(
    monkeypatch: pytest.MonkeyPatch, driver: str | None, state: str
) -> None:
    monkeypatch.setattr(doctor_engines, "nvml_problem", lambda: "Driver/library version mismatch")
    monkeypatch.setattr(doctor_engines, "which", lambda name: driver)
    monkeypatch.setattr(Path, "exists", lambda self: False)
    found = one(doctor_engines.graphics([]))
    assert found.state == state
    assert "version mismatch" in found.text


def test_the_engine_is_looked_for_and_its_version_told(tmp_path: Path) -> None:
    program = tmp_path / "engine"
    program.write_text("#!/bin/sh\necho engine 0.31.2\n")
    program.chmod(0o755)
    found = doctor_engines.engine("vllm", [str(program), "serve"])
    assert (found.state, found.text) == ("ok", f"vllm 0.31.2, {program}")
    missing = doctor_engines.engine("vllm", [str(tmp_path / "none")])
    assert missing.state == "bad"
    assert "--command" in (missing.hint or "")
    assert doctor_engines.engine("simulated", None).state == "ok"
    assert doctor_engines.engine("generic", None).state == "note"
    with pytest.raises(InputError, match="unknown engine kind"):
        doctor_engines.engine("vlm", None)


def test_leftovers_come_with_the_command_that_ends_them() -> None:
    process = Leftover(name="311", what="vllm serve, study a")
    container = Leftover(name="autotune-a-3", what="running, study a")
    ended, removed = doctor_engines.leftovers([process], [container])
    assert "`kill 311`" in (ended.hint or "")
    assert "`docker rm -f autotune-a-3`" in (removed.hint or "")
    assert {ended.state, removed.state} == {"note"}
    assert one(doctor_engines.leftovers([], [])).state == "ok"


def test_a_full_or_forbidden_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=100 * GIB, used=95 * GIB, free=5 * GIB)
    monkeypatch.setattr(doctor_machine.shutil, "disk_usage", lambda path: usage)
    assert doctor_machine.disk(tmp_path).state == "note"
    monkeypatch.setattr(doctor_machine.os, "access", lambda path, mode: False)
    assert doctor_machine.disk(tmp_path).state == "bad"


def test_caches_are_measured_where_the_environment_puts_them(tmp_path: Path) -> None:
    blobs = tmp_path / "hf" / "hub" / "models--a--b" / "blobs"
    blobs.mkdir(parents=True)
    with (blobs / "weights").open("wb") as file:
        file.truncate(3 * GIB)
    hub, own = doctor_machine.caches(
        {"HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": "/"}
    )
    assert hub.text == f"1 model, 3.0 GiB in {tmp_path}/hf/hub"
    assert own.text == f"{tmp_path}/xdg/autotune"
    assert {hub.state, own.state} == {"ok"}


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_machine.os, "access", lambda path, mode: False)
    found = doctor_machine.caches({"HOME": str(tmp_path)})
    assert {f.state for f in found} == {"note"}
    assert all("chown" in (f.hint or "") for f in found)


def test_limits_that_are_too_low(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_machine.resource, "getrlimit", lambda which: (1024, 4096))
    assert "ulimit -n" in (doctor_machine.files().hint or "")
    ports = tmp_path / "range"
    ports.write_text("32768\t33768\n")
    assert "sysctl" in (doctor_machine.local_ports(ports).hint or "")
    assert doctor_machine.local_ports(tmp_path / "none").state == "note"
    clock = tmp_path / "governor"
    clock.write_text("powersave\n")
    assert "cpupower" in (doctor_machine.governor(clock).hint or "")
    assert doctor_machine.governor(tmp_path / "none").state == "ok"
    small = SimpleNamespace(total=64 * 2**20)
    monkeypatch.setattr(doctor_machine.shutil, "disk_usage", lambda path: small)
    assert "remount" in (doctor_machine.shared_memory().hint or "")
    assert doctor_machine.usual_port("pid 5 (nginx)").state == "note"
    assert doctor_machine.usual_port(None).state == "ok"
    busy = doctor_machine.cores(load=lambda: (1000.0, 0.0, 0.0))
    assert busy.state == "note"


def test_all_findings_print_and_only_a_bad_one_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [
        Finding(name="disk", state="ok", text="69 GiB free"),
        Finding(name="files", state="note", text="limit 1024", hint="`ulimit -n 4096`"),
    ]
    monkeypatch.setattr(doctoring, "examine", lambda engine, command: found)
    assert doctoring.doctor(as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].strip() == "`ulimit -n 4096`"
    found.append(Finding(name="gpu", state="bad", text="no answer", hint="`nvidia-smi`"))
    assert doctoring.doctor(as_json=True) == 4
    data = json.loads(capsys.readouterr().out)
    assert [entry["state"] for entry in data["findings"]] == ["ok", "note", "bad"]


def test_this_machine_gets_a_finding_for_everything_and_a_hint_for_all_that_is_not_ok() -> None:
    found = doctoring.examine("simulated", None)
    names = {finding.name for finding in found}
    assert {"engine", "docker", "cores", "disk", "hub cache", "own cache", "files", "shm", "ports",
            "port 8000", "cpu clock", "leftovers"} <= names  # fmt: skip
    assert [f.name for f in found if f.state != "ok" and not f.hint] == []
