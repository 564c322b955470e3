import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnmill.tools.sandboxed.packing import pack, unpack

PARTS = st.dictionaries(st.text(max_size=20), st.binary(max_size=50), max_size=5)


@given(PARTS)
def test_unpack_inverts_pack(parts):
    assert unpack(pack(parts)) == parts


def test_names_need_not_be_utf_8():
    parts = {b"file/\xff".decode("utf-8", "surrogateescape"): b"x"}

    assert unpack(pack(parts)) == parts


@given(PARTS.filter(bool), st.data())
def test_truncated_data_is_refused(parts, data):
    packed = pack(parts)
    whole = {len(pack(dict(list(parts.items())[:count]))) for count in range(len(parts) + 1)}
    length = data.draw(st.integers(1, len(packed)).filter(lambda length: length not in whole))

    with pytest.raises(ValueError, match="truncated"):
        unpack(packed[:length])


@given(st.binary(max_size=100))
def test_arbitrary_bytes_are_unpacked_or_refused_with_a_value_error(data):
    try:
        unpack(data)
    except ValueError:
        return
