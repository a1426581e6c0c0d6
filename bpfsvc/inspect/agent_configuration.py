"""How the running agent of this node is configured, as it says itself.

A command that is run beside an agent, in its pod for example, does not know the agent's flags.
"""

from __future__ import annotations

from pathlib import Path

from bpfsvc.base.address import address_and_port
from bpfsvc.base.local_socket import pin_roots
from bpfsvc.config.bpfsvc_v1alpha1 import DEFAULT_PIN_ROOT
from bpfsvc.inspect.agent_questions import ask_agent
from bpfsvc.model.answers import AgentConfiguration

_HEALTHZ = "healthzBindAddress"


def usual_pin_root() -> Path:
    """Return the pin root of the agent that runs here: the default one, unless another runs."""
    try:
        roots = pin_roots()
    except OSError:
        return DEFAULT_PIN_ROOT
    return roots[0] if len(roots) == 1 else DEFAULT_PIN_ROOT


def ask_configuration(pin_root: Path) -> AgentConfiguration | None:
    """Return the configuration of an agent; None if none answers, or an agent of before."""
    return ask_agent(pin_root, "/configuration", AgentConfiguration)


def healthz_of(agent: AgentConfiguration) -> tuple[str, int] | None:
    """Return where an agent serves ``/healthz``; None for nowhere."""
    fields = next((fields for fields in agent.documents.values() if _HEALTHZ in fields), {})
    return address_and_port(fields.get(_HEALTHZ) or "")
