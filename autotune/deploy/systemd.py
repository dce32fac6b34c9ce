"""`autotune.service`: the measured launch as a systemd unit."""

from __future__ import annotations

import json

from autotune.deploy import argv
from autotune.deploy.facts import DeployFacts
from autotune.deploy.quoting import systemd_word
from autotune.deploy.sentences import commented, header
from autotune.deploy.timing import grace_explained, grace_s, startup_limit_s
from autotune.deploy.words import is_container, process_environment, secrets_of
from autotune.engines.plan import LaunchPlan

_BURST = 5
_DIFFERS = "listens on 127.0.0.1:8000; the program is found by /usr/bin/env along PATH"


def render(plan: LaunchPlan, facts: DeployFacts) -> str:
    """A unit that restarts the server when it ends. Raises InputError for an attached server."""
    words: list[str] = json.loads(argv.render(plan, facts))
    command = words if words[0].startswith("/") else ["/usr/bin/env", *words]
    execution = " \\\n  ".join(systemd_word(word) for word in command)
    env = {} if is_container(plan) else process_environment(plan)
    settings = [systemd_word(f"{k}={v}", command=False) for k, v in env.items()]
    # The limit must be longer than five failing starts take, or it would never bite.
    interval = max(900, _BURST * startup_limit_s(facts))
    secrets = (
        f"# Secrets, one NAME=value a line, mode 600: {', '.join(secrets_of(plan))}\n"
        "EnvironmentFile=/etc/autotune/%N.env\n"
        if secrets_of(plan)
        else ""
    )
    return (
        commented(header(plan, facts, _DIFFERS))
        + "\n[Unit]\n"
        + f"Description=LLM server ({systemd_word(facts.engine, command=False)}), tuned\n"
        + "Wants=network-online.target\nAfter=network-online.target\n"
        + f"StartLimitIntervalSec={interval}\nStartLimitBurst={_BURST}\n"
        + "\n[Service]\nType=exec\n"
        + "# Name the account that runs the server; the unit fails until it exists.\n"
        + "User=set-a-user\nGroup=set-a-group\n"
        + "".join(f"Environment={setting}\n" for setting in settings)
        + secrets
        + f"ExecStart={execution}\n"
        + "# always: an engine may end with exit code 0 after its worker died\n"
        + "Restart=always\nRestartSec=10\n"
        + f"# {grace_explained(facts)}\n"
        + f"KillMode=mixed\nKillSignal=SIGTERM\nTimeoutStopSec={grace_s(facts)}\n"
        + "LimitNOFILE=65536\nLimitMEMLOCK=infinity\n"
        + "NoNewPrivileges=yes\nProtectSystem=full\nUMask=0077\n"
        + "# Known to break GPU servers: PrivateDevices, DevicePolicy=closed, ProtectClock,\n"
        + "# RestrictAddressFamilies without AF_UNIX and AF_NETLINK, IPAddressDeny=any,\n"
        + "# MemoryDenyWriteExecute.\n"
        + "\n[Install]\nWantedBy=multi-user.target\n"
    )
