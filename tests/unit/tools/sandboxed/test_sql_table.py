import pandas
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnmill.tools.sandboxed.sql_table import render

INTEGERS = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(categories=["L", "N", "P", "Zs"], max_codepoint=0x24F), min_size=1, max_size=12)
COLUMNS = st.sampled_from([INTEGERS, TEXTS, st.floats(-1e5, 1e5).map(lambda number: round(number, 3))])


@st.composite
def tables(draw):
    kinds = draw(st.lists(COLUMNS, min_size=1, max_size=13))
    return draw(st.lists(st.tuples(*kinds), min_size=1, max_size=5))


@settings(deadline=None)  # the first call imports
@given(tables())
def test_rows_look_as_pandas_shows_them(rows):
    assert render(rows) == pandas.DataFrame(rows).to_string(index=False)


@pytest.mark.parametrize(
    "rows",
    [
        [(None,), (3,)],
        [(None, 1.25), (2, None)],
        [(1, "a"), ("b", 2.5)],
        [(123456789.123,)],
        [(1e-9,), (1.0,)],
        [(1e20,)],
        [(float("inf"),), (1.0,)],
        [("two\nlines\tand a tab",)],
        [(b"bytes",)],
        [],
    ],
)
def test_unusual_rows_look_as_pandas_shows_them(rows):
    assert render(rows) == pandas.DataFrame(rows).to_string(index=False)


def test_null_in_a_column_of_texts_is_shown_as_none():
    assert render([("a",), (None,)]) == "   0\n   a\nNone"
