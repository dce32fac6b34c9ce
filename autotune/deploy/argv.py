"""The bare words of the launch as one JSON list, for other programs."""

from __future__ import annotations

import json

from autotune.deploy.facts import DeployFacts
from autotune.deploy.words import DEFAULT_HOST, DEFAULT_PORT, launch_words
from autotune.engines.plan import LaunchPlan


def render(plan: LaunchPlan, facts: DeployFacts) -> str:
    """The command on 127.0.0.1:8000. Environment and secrets are not part of it (see the
    manifest). Raises InputError for an attached server.
    """
    choices = {
        "host": DEFAULT_HOST,
        "port": str(DEFAULT_PORT),
        "publish": f"{DEFAULT_HOST}:{DEFAULT_PORT}:",
    }
    words = []
    for word in launch_words(plan, facts):
        chosen = choices.get(word.kind, word.text)
        words.append(chosen + word.text if word.kind == "publish" else chosen)
    return json.dumps(words, ensure_ascii=False) + "\n"
