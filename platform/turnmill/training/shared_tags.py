"""Tags of a batch's rows, which the batches made from it share."""

from collections.abc import Iterable
from typing import Any, SupportsIndex, overload

Tag = dict[str, Any]


class SharedTags(list[Tag]):
    """Tags of rows, of which a deep copy is a new list of the same dictionaries.

    verl's batches copy their tags deeply whenever one is made of another, which takes seconds for 100,000 rows.
    """

    def __deepcopy__(self, memo: object) -> "SharedTags":
        return SharedTags(self)

    @overload
    def __getitem__(self, place: SupportsIndex) -> Tag: ...

    @overload
    def __getitem__(self, place: slice) -> "SharedTags": ...

    def __getitem__(self, place: SupportsIndex | slice) -> "Tag | SharedTags":
        found: Any = super().__getitem__(place)
        return SharedTags(found) if isinstance(place, slice) else found


def without(tags: Iterable[Tag], name: str) -> SharedTags:
    """Return copies of tags without one of them."""
    copies = SharedTags(map(dict, tags))
    for tag in copies:
        tag.pop(name, None)
    return copies
