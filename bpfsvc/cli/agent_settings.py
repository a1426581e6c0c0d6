"""Settings of a command beside a running agent: those of the agent, beneath the command's flags."""

from __future__ import annotations

import dataclasses

from bpfsvc.cli.server_release import ask_release
from bpfsvc.config.documents import of_agent
from bpfsvc.config.loading import CommandLine, Documents, load
from bpfsvc.model.answers import AgentConfiguration


def load_as_agent(given: CommandLine, agent: AgentConfiguration | None) -> Documents:
    """Return both documents. Without an agent, only what is given counts."""
    if agent is None:
        return load(given, ask_release=ask_release)
    given = dataclasses.replace(given, master=given.master or agent.master)
    return load(given, ask_release=ask_release, beneath=of_agent(agent.documents))
