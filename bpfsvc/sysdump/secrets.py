"""Texts without what gives access: tokens, passwords, keys and certificates."""

from __future__ import annotations

import re

LEFT_OUT = "[left out]"

_NAMES = (
    r"token|password|passwd|secret|authorization|api[-_]?key|client-key(?:-data)?"
    r"|client-certificate-data|certificate-authority-data|client_secret|id-token|refresh-token"
)
_PATTERNS = (
    # A key or certificate in PEM, also where JSON or YAML has made one line of it.
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.S), LEFT_OUT),
    (re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*"), LEFT_OUT),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/-]{8,}=*"), rf"\1 {LEFT_OUT}"),
    (
        re.compile(rf"""(?i)(["']?\b(?:{_NAMES})["']?\s*[:=]\s*)("[^"\n]+"|'[^'\n]+'|[^\s"',]+)"""),
        rf'\1"{LEFT_OUT}"',
    ),
    (re.compile(rf"(?i)(--(?:{_NAMES})[= ])[^\s\"',]+"), rf"\1{LEFT_OUT}"),
    (re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^/\s@:\"]+:[^/\s@\"]+@"), rf"\1{LEFT_OUT}@"),
)


def without_secrets(text: str) -> str:
    """Return a text with a note in place of each secret."""
    for pattern, instead in _PATTERNS:
        text = pattern.sub(instead, text)
    return text
