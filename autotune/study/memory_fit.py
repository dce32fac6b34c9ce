"""Which candidates cannot fit into GPU memory, told before their launch, and corrected by each."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from autotune.canonical import Json
from autotune.engines import sglang_memory
from autotune.engines.engine import Diagnosis, LaunchTarget
from autotune.engines.facts import engine_facts
from autotune.engines.launch_params import merged_params, with_checkpoint
from autotune.engines.memory import GIB, Calibration, MemoryEstimate, estimate
from autotune.launch.gpus import Gpu, among, list_gpus
from autotune.space.candidate import Candidate
from autotune.study.prepare import PreparedStudy

_ESTIMATES = {"vllm": estimate, "sglang": sglang_memory.estimate}
DOES_NOT_FIT = "does_not_fit"
"""Reason code of a candidate that was refused without a launch."""


class Fits(Protocol):
    """What can be told of candidates' memory before their launch."""

    def estimate(self, candidate: Candidate) -> MemoryEstimate | None:
        """What one GPU would hold; None if it cannot be told."""
        ...

    def learn(self, candidate: Candidate, log: Mapping[str, float]) -> None:
        """Take over the memory numbers of a launch's log."""
        ...

    def refusal(self, candidate: Candidate) -> Diagnosis | None:
        """Why a candidate is not worth a launch, else None."""
        ...


class MemoryFit:
    """Estimates for one model on one kind of GPU; learns from the logs of launches."""

    def __init__(
        self, engine: str, target: LaunchTarget, model_dir: Path, gpu_bytes: float
    ) -> None:
        self._facts = engine_facts(engine)
        self._target = target
        self._model_dir = model_dir
        self._gpu_bytes = gpu_bytes
        self._calibration = Calibration()

    def estimate(self, candidate: Candidate) -> MemoryEstimate | None:
        """What one GPU would hold, with what launches taught so far; None if it cannot be told."""
        guess = self._guess(candidate)
        return None if guess is None else self._calibration.corrected(guess)

    def learn(self, candidate: Candidate, log: Mapping[str, float]) -> None:
        """Take over the memory numbers of a launch's log (`memory_log.read_memory`)."""
        guess = self._guess(candidate)
        if guess is not None:
            self._calibration = self._calibration.after(guess, log)

    def refusal(self, candidate: Candidate) -> Diagnosis | None:
        """Why a candidate is not worth a launch: beyond any doubt it does not fit. Else None."""
        found = self.estimate(candidate)
        if found is None or not found.cannot_fit or not self._calibration.believable:
            return None
        after = self._calibration.launches
        basis = f"corrected by {after} launches" if after else "estimated"
        doubt = found.margin * found.budget_bytes / GIB
        missing = f"{found.deficit_bytes / GIB:.1f} GiB are missing for one request of full length"
        return Diagnosis(
            fault="candidate",
            phase="startup",
            reason=DOES_NOT_FIT,
            remedy="raise_memory",
            message=f"it does not fit: {memory_words(found)}",
            evidence=(f"{missing} ({basis}; doubt {doubt:.1f} GiB)",),
            facts={"missing_gib": round(found.deficit_bytes / GIB, 2)},
        )

    def _guess(self, candidate: Candidate) -> MemoryEstimate | None:
        params, _ = merged_params(self._facts, candidate, self._target)
        target = with_checkpoint(candidate, self._target)
        folder = self._model_dir
        if target is not self._target:
            found = model_folder(target, os.environ)
            if found is None:
                return None
            folder = found
        try:
            return _ESTIMATES[self._facts.engine](folder, params, self._gpu_bytes)
        except (TypeError, ValueError):  # a value that is no number: the engine will say so
            return None


def memory_fit(study: PreparedStudy, gpus: Sequence[Gpu] | None = None) -> MemoryFit | None:
    """The estimates for a study; None without a known GPU, or a model whose files are not here.
    `gpus`: those of this machine, if they are known already.
    """
    target = study.target
    if study.engine.kind not in _ESTIMATES or target.launcher == "attach" or target.gpus == ():
        return None
    wanted = among(list_gpus() if gpus is None else gpus, target.gpus)
    folder = model_folder(target, os.environ)
    if not wanted or folder is None:
        return None
    return MemoryFit(study.engine.kind, target, folder, min(gpu.memory_usable for gpu in wanted))


def model_folder(target: LaunchTarget, environ: Mapping[str, str]) -> Path | None:
    """The folder on this host with the model's files: the model itself, the source of the mount
    that holds it, or its snapshot in the hub's cache. None where there is none.
    """
    model = target.model
    candidates = [Path(model).expanduser()] if model.startswith(("/", "./", "../", "~/")) else []
    for mount in target.mounts:
        inner = mount.target.rstrip("/")
        if mount.source.startswith("/") and (model == inner or model.startswith(f"{inner}/")):
            candidates.append(Path(mount.source + model[len(inner) :]))
    if not candidates:
        home = environ.get("HF_HOME") or str(Path("~/.cache/huggingface").expanduser())
        repo = Path(home) / "hub" / f"models--{model.replace('/', '--')}"
        try:
            revision = (repo / "refs" / "main").read_text(encoding="utf-8").strip()
        except OSError:
            return None
        candidates = [repo / "snapshots" / revision]
    return next((path for path in candidates if (path / "config.json").is_file()), None)


def memory_words(found: MemoryEstimate) -> str:
    """An estimate as a phrase: what is taken of one GPU, and what is left for the KV cache."""
    taken = (
        f"weights {found.weights_bytes / GIB:.1f} GiB and overheads "
        f"{found.overhead_bytes / GIB:.1f} GiB of {found.budget_bytes / GIB:.1f} GiB"
    )
    if found.kv_bytes <= 0:
        return f"{taken} leave nothing for the KV cache"
    asked = f", one request may need {found.asked_tokens:,}" if found.asked_tokens else ""
    return f"{taken} leave {found.kv_bytes / GIB:.1f} GiB: {found.kv_tokens:,} tokens{asked}"


def memory_block(found: MemoryEstimate | None, log: Mapping[str, float]) -> dict[str, Json]:
    """The `memory` block of a trial: the estimate beside what its log said."""
    block: dict[str, Json] = {}
    if found is not None:
        block["estimate"] = found.to_json()
    if log:
        block["log"] = dict(log)
    return block
