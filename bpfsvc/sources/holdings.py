"""Which file holds which object, and what a change of files means for objects.

Two files may define the same object: by mistake, or for a moment while a file is being renamed. The
first file in the order of names wins, and the first place within it; the others are conflicts. That
is decided in one way only, by going through all files in order. Without conflicts, which is nearly
always, the changed files alone tell the difference, and that way is taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bpfsvc.model import ModelObject, ObjectKey
from bpfsvc.sources.files import NOTHING, Contents


class Conflict(NamedTuple):
    """An object that ``loser`` defines in document ``number`` though ``winner`` has defined it."""

    key: ObjectKey
    winner: str
    loser: str
    number: int


class Difference(NamedTuple):
    """Objects with new values, and objects that are no more."""

    puts: tuple[ModelObject, ...]
    gone: tuple[ObjectKey, ...]


class Holdings:
    """All good files and their contents."""

    def __init__(self) -> None:
        self.conflicts: tuple[Conflict, ...] = ()
        self._files: dict[str, Contents] = {}
        # Hashes do where keys would take twice the room: one that meets another by chance only
        # makes a difference be found the long way.
        self._held: set[int] = set()

    def get(self, name: str) -> Contents:
        """Give what a file holds."""
        return self._files.get(name, NOTHING)

    def everything(self) -> tuple[ModelObject, ...]:
        """Give every object, each once."""
        return tuple(self._resolve().values())

    def apply(self, changes: Mapping[str, Contents]) -> Difference:
        """Let files have new contents (``NOTHING`` for none); say what that changes."""
        removed: dict[ObjectKey, ModelObject] = {}
        added: dict[ObjectKey, ModelObject] = {}
        count = 0
        for name, contents in changes.items():
            before = {id(one): one for one in self.get(name).objects()}
            for one in contents.objects():
                if before.pop(id(one), None) is None:
                    added[one.key] = one
                    count += 1
            removed.update((one.key, one) for one in before.values())
        if (
            self.conflicts
            or len(added) < count
            or any(key not in removed and hash(key) in self._held for key in added)
        ):
            return self._apply_slowly(changes)
        self._store(changes)
        self._held.difference_update(hash(key) for key in removed.keys() - added.keys())
        self._held.update(map(hash, added))
        return _difference(removed, added)

    def _apply_slowly(self, changes: Mapping[str, Contents]) -> Difference:
        before = self._resolve()
        self._store(changes)
        after = self._resolve()
        self._held = set(map(hash, after))
        return _difference(before, after)

    def _store(self, changes: Mapping[str, Contents]) -> None:
        for name, contents in changes.items():
            if contents is NOTHING:
                self._files.pop(name, None)
            else:
                self._files[name] = contents

    def _resolve(self) -> dict[ObjectKey, ModelObject]:
        """Go through all files in order; the first definition of an object counts."""
        winners: dict[ObjectKey, str] = {}
        objects: dict[ObjectKey, ModelObject] = {}
        conflicts = []
        for name in sorted(self._files):
            for number, one in self._files[name].places():
                key = one.key
                if key in objects:
                    conflicts.append(Conflict(key, winners[key], name, number))
                else:
                    objects[key] = one
                    winners[key] = name
        self.conflicts = tuple(conflicts)
        return objects


def _difference(
    before: Mapping[ObjectKey, ModelObject], after: Mapping[ObjectKey, ModelObject]
) -> Difference:
    return Difference(
        puts=tuple(one for key, one in after.items() if before.get(key) != one),
        gone=tuple(key for key in before if key not in after),
    )
