"""What the store returns: plain values, one state of one task."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StoredExample:
    """An example; its thumbnail is at `/v1/tasks/{task}/examples/{id}/thumbnail`."""

    id: str
    sha256: str


@dataclass(frozen=True)
class StoredClass:
    """A class and its examples, in the order in which they were added."""

    id: str
    name: str
    examples: tuple[StoredExample, ...] = ()


@dataclass(frozen=True)
class StoredTask:
    """A task as it was at one revision."""

    id: str
    name: str
    asked_network: str | None
    network: str | None
    network_sha256: str | None
    method: str | None
    projection_dim: int | None
    revision: int
    created: float
    updated: float
    classes: tuple[StoredClass, ...] = ()
    can_undo: bool = False
    can_redo: bool = False

    @property
    def examples(self) -> int:
        """The number of examples."""
        return sum(len(each.examples) for each in self.classes)


@dataclass(frozen=True)
class NewExample:
    """An image that was read and embedded, ready to be stored."""

    sha256: str
    features: bytes = field(repr=False)
    thumbnail: bytes = field(repr=False)


@dataclass(frozen=True)
class Summary:
    """A task in a list."""

    id: str
    name: str
    classes: int
    examples: int
    revision: int
    created: float
    updated: float
