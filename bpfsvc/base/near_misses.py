"""The known name that is nearest to a mistyped name."""

from __future__ import annotations

from collections.abc import Iterable

_ALIKE = 0.7


def meant_text(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean web?`` for the nearest of the known names, "" if none is near.

    Of ``namespace/name``, names in the same namespace are compared first; then the same name may be
    in another namespace.
    """
    import difflib  # only after a mistake: the agent needs it for nothing else

    names = sorted(known)
    namespace, slash, own = name.rpartition("/")
    here = {word.rpartition("/")[2]: word for word in names if word.rpartition("/")[0] == namespace}
    if near := difflib.get_close_matches(own, here, n=1, cutoff=_ALIKE):
        return f"; did you mean {here[near[0]]}?"
    elsewhere = [word for word in names if slash and word.endswith(f"/{own}")]
    if near := difflib.get_close_matches(name, elsewhere, n=1, cutoff=0.0):
        return f"; did you mean {near[0]}?"
    return ""
