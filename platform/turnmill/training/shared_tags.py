"""Tags of a batch's rows, which the batches made from it share."""

from collections.abc import Iterable
from typing import Any, SupportsIndex, overload


class SharedTags(list[dict[str, Any]]):
    """Tags of rows, of which a deep copy is a new list of the same dictionaries.

    verl's batches copy their tags deeply whenever one is made of another, which takes seconds for 100,000 rows.
    """

    def __deepcopy__(self, memo: object) -> "SharedTags":
        return SharedTags(self)

    @overload
    def __getitem__(self, place: SupportsIndex) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> "SharedTags": ...

    def __getitem__(self, place: SupportsIndex | slice) -> "dict[str, Any] | SharedTags":
        found: Any = super().__getitem__(place)
        return SharedTags(found) if isinstance(place, slice) else found


def without(tags: Iterable[dict[str, Any]], name: str) -> SharedTags:
    """Return copies of tags without one of them."""
    return SharedTags({key: value for key, value in tag.items() if key != name} for tag in tags)
