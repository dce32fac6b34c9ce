"""The simulated server as a program: arguments, refusals, start-up, serving, exit code.

Exit codes as vLLM's: 2 for arguments, 1 for settings or a start that fails, 0 after SIGTERM and
also after the engine died under load. The simulated SGLang ends by signal 9 where a child fails.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TextIO

from autotune.clock import Clock, SystemClock
from autotune.errors import InputError
from autotune.simulator import sglang_start
from autotune.simulator.arguments import SERVE, UNMODELLED, build_parser, non_default
from autotune.simulator.config import EngineConfig, resolve_config
from autotune.simulator.log import ServerLog, SglangLog
from autotune.simulator.memory import fits_max_model_len, plan_memory
from autotune.simulator.profile import Profile, load_profile
from autotune.simulator.startup import log_refusal, run_startup
from autotune.simulator.validation import check_config, check_kv_format, check_start

VERSION = "0.26.0+simulated"


def main(argv: Sequence[str], env: Mapping[str, str] | None = None) -> int:
    """Run the server until it is told to stop. Returns the exit code; argparse may raise
    SystemExit(2).
    """
    env = os.environ if env is None else env
    log = log_for(argv)
    asked = read(argv, log)
    if asked is None:
        return 2
    args, model, profile = asked
    try:
        listener = _bind(args.host, args.port)
    except OSError as error:
        log.plain(f"OSError: [Errno {error.errno}] {error.strerror}")
        return 1
    with listener:
        return _start_and_serve(args, model, profile, listener, env, log)


def log_for(
    argv: Sequence[str], stream: TextIO | None = None, clock: Clock | None = None
) -> ServerLog:
    """The log in the form of the engine that these arguments ask for."""
    kind = SglangLog if SERVE["sglang"] in argv[:1] else ServerLog
    return kind(stream, clock)


def read(argv: Sequence[str], log: ServerLog) -> tuple[argparse.Namespace, str, Profile] | None:
    """The arguments, the model's name and the profile; None if they make no sense, and the log says
    why. argparse may raise SystemExit(2).
    """
    args = build_parser().parse_args(list(argv))
    log.say("api_server.py", "SIMULATED ENGINE: no GPU and no model; times come from a model")
    if isinstance(log, SglangLog):
        return _read_sglang(args, log)
    if args.model_flag and args.model_tag:
        log.fail("serve.py", "the model is given twice: by position and by --model", "APIServer")
        return None
    model = args.model_tag or args.model_flag or "simulated-model"
    profile = _profile(args, log)
    if profile is None:
        return None
    log.say("api_utils.py:327", f"vLLM server version {VERSION}, serving model {model}")
    log.say("api_utils.py:286", f"non-default args: {non_default(args)}")
    return args, model, profile


def _read_sglang(
    args: argparse.Namespace, log: ServerLog
) -> tuple[argparse.Namespace, str, Profile] | None:
    args.host = args.host or "127.0.0.1"
    args.port = args.port or 30000
    profile = _profile(args, log)
    return None if profile is None else (args, args.model_path or "simulated-model", profile)


def _profile(args: argparse.Namespace, log: ServerLog) -> Profile | None:
    try:
        return load_profile(args.sim_profile)
    except InputError as error:
        log.fail("profile.py", f"{error.message}; {error.seen}", "APIServer")
        return None


def _start_and_serve(
    args: argparse.Namespace,
    model: str,
    profile: Profile,
    listener: socket.socket,
    env: Mapping[str, str],
    log: ServerLog,
) -> int:
    config = start(args, model, profile, env, log, SystemClock())
    if config is None:
        if isinstance(log, SglangLog) and log.child_failed:
            os.kill(os.getpid(), signal.SIGKILL)
        return 1
    # imported late: a refused launch should cost as little as possible
    from autotune.simulator.server import ServerOptions, serve

    if isinstance(log, SglangLog):
        from autotune.simulator.sglang_server import serve_sglang

        return serve_sglang(args, model, config, profile, listener, log)
    options = ServerOptions(
        names=tuple(args.served_model_name or [model]),
        root=model,
        version=VERSION,
        api_keys=tuple(args.api_key or ([env["VLLM_API_KEY"]] if env.get("VLLM_API_KEY") else [])),
        dev_mode=env.get("VLLM_SERVER_DEV_MODE") == "1",
        prompt_tokens_details=bool(args.enable_prompt_tokens_details),
        force_usage=bool(args.enable_force_include_usage),
        access_log=not args.disable_uvicorn_access_log,
        stats_interval_s=float(env.get("VLLM_LOG_STATS_INTERVAL", "10")),
        noise=args.sim_noise,
        seed=args.sim_seed,
    )
    return serve(config, profile, options, listener, log)


def start(
    args: argparse.Namespace,
    model: str,
    profile: Profile,
    env: Mapping[str, str],
    log: ServerLog,
    clock: Clock,
    *,
    total_s: float | None = None,
) -> EngineConfig | None:
    """Check the settings and start the engine up. None if it ended there; the log says why.

    `total_s`: seconds that starting takes, where `--sim-startup` does not say; None: the profile's.
    """
    if isinstance(log, SglangLog):
        usual_s = profile.startup_s if total_s is None else total_s
        seconds = usual_s if args.sim_startup is None else args.sim_startup
        return sglang_start.start(args, profile, log, clock, seconds)
    config = _resolved(args, profile)
    refusal = check_config(config, profile, env)
    if refusal is not None:
        log_refusal(log, refusal)
        return None
    _warn(args, config, log)
    failure = check_kv_format(config, profile)
    if failure is not None:
        config = replace(config, kv_cache_dtype="auto")
    plan = plan_memory(config, profile)
    backend_asked = args.attention_backend not in {None, "auto"}
    usual_s = profile.startup_s if total_s is None else total_s
    started = run_startup(
        model=model,
        config=config,
        plan=plan,
        failure=failure or check_start(plan, config, profile, backend_asked=backend_asked),
        profile=profile,
        total_s=usual_s if args.sim_startup is None else args.sim_startup,
        log=log,
        clock=clock,
    )
    return config if started else None


def _resolved(args: argparse.Namespace, profile: Profile) -> EngineConfig:
    """The effective settings; `--max-model-len auto` becomes the longest length that fits."""
    asked = vars(args)
    if asked["max_model_len"] != -1:
        return resolve_config(asked, profile)
    config = resolve_config({**asked, "max_model_len": None}, profile)
    if config.quantization not in profile.weights or config.kv_cache_dtype not in profile.kv_cache:
        return config
    fits = fits_max_model_len(plan_memory(config, profile), config)
    return replace(config, max_model_len=max(1, min(config.max_model_len, fits)))


def _warn(args: argparse.Namespace, config: EngineConfig, log: ServerLog) -> None:
    for name in UNMODELLED:
        if getattr(args, name) is not None:
            flag = name.replace("_", "-")
            log.caution("simulator", f"--{flag} is accepted but not modelled: it has no effect")
    if config.max_num_batched_tokens > config.max_num_seqs * config.max_model_len:
        log.caution(
            "scheduler.py:345",
            f"max_num_batched_tokens ({config.max_num_batched_tokens}) exceeds max_num_seqs * "
            f"max_model_len ({config.max_num_seqs * config.max_model_len}). This may lead to "
            "unexpected behavior.",
        )
    if config.enable_chunked_prefill:
        log.say(
            "scheduler.py:308",
            "Chunked prefill is enabled with max_num_batched_tokens="
            f"{config.max_num_batched_tokens}.",
        )


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket that does not listen yet, so that connections are refused until start-up is
    over. Raises OSError.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError:
        listener.close()
        raise
    return listener
