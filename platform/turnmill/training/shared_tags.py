"""Tags of a batch's rows, which the batches made from it share."""

from typing import Any

Tag = dict[str, Any]


class SharedTags(list[Tag]):
    """Tags of rows, of which a deep copy is a new list of the same dictionaries.

    verl's batches copy their tags deeply whenever one is made of another, which takes seconds for 100,000 rows.
    """

    def __deepcopy__(self, memo: object) -> "SharedTags":
        return SharedTags(self)
