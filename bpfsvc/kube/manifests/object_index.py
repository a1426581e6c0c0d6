"""Which file of a directory of manifests holds which object, and what a change of files changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bpfsvc.kube.manifests.contents import NOTHING, Contents
from bpfsvc.model import ModelObject, ObjectKey


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


class ObjectIndex:
    """Which file holds which object.

    Two files may define the same object, by mistake or while a file is being renamed. The first
    file in the order of names counts, and the first place in it. Only then are all files compared;
    without conflicts the changed files alone show the difference.
    """

    def __init__(self) -> None:
        self.conflicts: tuple[Conflict, ...] = ()
        self.objects: dict[ObjectKey, ModelObject] = {}
        self._files: dict[str, Contents] = {}

    def file(self, name: str) -> Contents:
        """Return what a file holds."""
        return self._files.get(name, NOTHING)

    def apply(self, changes: Mapping[str, Contents]) -> Difference:
        """Replace the contents of files (``NOTHING`` removes one); return what that changes."""
        removed: dict[ObjectKey, ModelObject] = {}
        added: dict[ObjectKey, ModelObject] = {}
        count = 0
        for name, contents in changes.items():
            before = {id(one): one for one in self.file(name).objects()}
            new = [one for one in contents.objects() if before.pop(id(one), None) is None]
            count += len(new)
            added.update((one.key, one) for one in new)
            removed.update((one.key, one) for one in before.values())
            self._files[name] = contents
            if contents is NOTHING:
                del self._files[name]
        defined_twice = len(added) < count or any(
            key in self.objects and key not in removed for key in added
        )
        if defined_twice or self.conflicts:
            removed, added = self.objects, self._resolve()
            self.objects = added
        else:
            for key in removed.keys() - added.keys():
                del self.objects[key]
            self.objects.update(added)
        return Difference(
            puts=tuple(one for key, one in added.items() if removed.get(key) != one),
            gone=tuple(key for key in removed if key not in added),
        )

    def _resolve(self) -> dict[ObjectKey, ModelObject]:
        """Go through all files in order; the first definition of an object counts."""
        winners: dict[ObjectKey, str] = {}
        objects: dict[ObjectKey, ModelObject] = {}
        conflicts = []
        for name in sorted(self._files):
            for number, document in enumerate(self._files[name].documents):
                for one in document:
                    key = one.key
                    if key in objects:
                        conflicts.append(Conflict(key, winners[key], name, number))
                    else:
                        objects[key], winners[key] = one, name
        self.conflicts = tuple(conflicts)
        return objects
