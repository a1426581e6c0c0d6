"""The agent's oom_score_adj: how likely the kernel is to kill it when memory runs out."""

from __future__ import annotations

from pathlib import Path

SCORE = Path("/proc/self/oom_score_adj")


def protect(score: int | None, path: Path = SCORE) -> str:
    """Set the score, -1000 (never) to 1000 (first); return why it could not be set, or "".

    Best effort, as in kube-proxy: a lower one takes CAP_SYS_RESOURCE, and the agent works without.
    """
    if score is None:
        return ""
    try:
        if int(path.read_text()) != score:
            path.write_text(f"{score}\n")
    except OSError as error:
        return f"oomScoreAdj stays as it was: {error.strerror}"
    return ""
