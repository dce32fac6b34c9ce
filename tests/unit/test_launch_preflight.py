"""What is looked at before a launch: secrets, folders, ports; and how launchers are found."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from autotune.clock import StopSignal, SystemClock
from autotune.engines.plan import LaunchPlan, Mount
from autotune.errors import InputError
from autotune.launch import ports, preflight
from autotune.launch.catalog import KINDS, launcher_for


def plan(*argv: str, **fields: object) -> LaunchPlan:
    return LaunchPlan(
        engine="vllm", launcher="process", argv=argv or ("vllm",), **{"model": "m", **fields}
    )


def test_all_missing_secrets_are_named_at_once() -> None:
    made = plan(secrets={"A": "FIRST", "B": "SECOND", "C": "SET"})
    with pytest.raises(InputError, match="FIRST, SECOND is not set") as caught:
        preflight.resolve_secrets(made, {"SET": "x", "SECOND": ""})
    assert caught.value.seen == "the launch hands it to the server as A, B"


def test_secrets_are_resolved_by_name() -> None:
    made = plan(secrets={"HF_TOKEN": "MY_TOKEN"})
    assert preflight.resolve_secrets(made, {"MY_TOKEN": "v"}) == {"HF_TOKEN": "v"}


def test_plain_and_inherited_secrets_are_masked_too_but_no_ordinary_value() -> None:
    made = plan(env={"VLLM_API_KEY": "plain-key", "OMP_NUM_THREADS": "16"})
    environ = {"WANDB_API_KEY": "inherited-key", "TOKENIZERS_PARALLELISM": "false-value"}
    assert preflight.secret_values(made, environ, inherited=True) == {"plain-key", "inherited-key"}
    assert preflight.secret_values(made, environ, inherited=False) == {"plain-key"}


@pytest.mark.parametrize("form", ["positional", "flag", "equals", "name"])
def test_a_model_folder_that_is_not_there_is_named(tmp_path: Path, form: str) -> None:
    absent = str(tmp_path / "absent")
    made = {
        "positional": plan("vllm", "serve", absent, model="alias"),
        "flag": plan("x", "--model-path", absent, model="alias"),
        "equals": plan("x", f"--model={absent}", model="alias"),
        "name": plan("x", model=absent),
    }[form]
    with pytest.raises(InputError, match="model folder not found"):
        preflight.check_folders(made)


def test_a_hub_name_and_a_folder_that_is_there_pass(tmp_path: Path) -> None:
    preflight.check_folders(plan("vllm", "serve", "org/model"))
    preflight.check_folders(plan("vllm", "serve", str(tmp_path)))


def test_a_model_in_a_mounted_folder_is_looked_for_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    mounts = (Mount(source=str(tmp_path), target="/models"),)
    preflight.check_folders(plan("v", "serve", "/models/there", image="i", mounts=mounts))
    preflight.check_folders(plan("v", "serve", "/inside/the/image", image="i", mounts=mounts))
    with pytest.raises(InputError, match=str(tmp_path / "absent")):
        preflight.check_folders(plan("v", "serve", "/models/absent", image="i", mounts=mounts))


def test_a_mount_whose_source_is_missing_is_named(tmp_path: Path) -> None:
    mounts = (Mount(source=str(tmp_path / "gone"), target="/m"), Mount(source="vol", target="/v"))
    with pytest.raises(InputError, match="mounted folder not found"):
        preflight.check_folders(plan("v", image="i", mounts=mounts))


def test_a_listener_is_seen_on_any_address_and_a_chosen_port_is_free() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        assert not ports.is_free(port)
        assert ports.listening_inodes(port)
    assert ports.is_free(port)
    assert ports.is_free(ports.choose_port())


def test_launchers_are_found_by_name_and_an_unknown_one_is_refused() -> None:
    for kind in KINDS:
        assert launcher_for(kind, clock=SystemClock(), stop=StopSignal()).kind == kind
    with pytest.raises(InputError, match="unknown launcher: ssh"):
        launcher_for("ssh", clock=SystemClock(), stop=StopSignal())
