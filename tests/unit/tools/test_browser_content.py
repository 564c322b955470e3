import gzip
import tracemalloc
import zlib

import pytest

from turnmill.tools.browser.content import BoundedDecoder, UnreadableContentError

MIB = 1024**2


def decode(encoding: str, body: bytes, *, max_bytes: int = MIB, piece: int = 1000) -> BoundedDecoder:
    decoder = BoundedDecoder(encoding, max_bytes=max_bytes)
    for start in range(0, len(body), piece):
        decoder.feed(body[start : start + piece])
    return decoder


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("", b"a page" * 1000),
        ("identity", b"a page" * 1000),
        ("gzip", gzip.compress(b"a page" * 1000)),
        (" X-GZIP ", gzip.compress(b"a page" * 1000)),
        ("deflate", zlib.compress(b"a page" * 1000)),
    ],
    ids=["none", "identity", "gzip", "x-gzip", "deflate"],
)
def test_one_layer_of_encoding_is_undone(encoding: str, body: bytes):
    decoder = decode(encoding, body)

    assert decoder.content == b"a page" * 1000
    assert not decoder.is_cut


@pytest.mark.parametrize("encoding", ["gzip, gzip", "gzip,deflate", "br", "zstd", "none"])
def test_stacked_and_unknown_encodings_are_refused(encoding: str):
    with pytest.raises(UnreadableContentError, match="is not read here"):
        BoundedDecoder(encoding, max_bytes=MIB)


def test_a_compressed_body_is_never_inflated_beyond_its_limit():
    bomb = gzip.compress(bytes(100 * MIB))
    tracemalloc.start()
    try:
        decoder = decode("gzip", bomb, piece=len(bomb))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert decoder.is_cut
    assert decoder.content == bytes(MIB)
    assert peak < 8 * MIB


def test_a_compressed_body_that_yields_nothing_counts_as_sent():
    compressor = zlib.compressobj(wbits=31)
    empty_blocks = compressor.compress(b"") + compressor.flush(zlib.Z_FULL_FLUSH)

    decoder = decode("gzip", empty_blocks + b"\0\0\0\xff\xff" * 1000, max_bytes=1024)

    assert (decoder.content, decoder.is_cut) == (b"", True)


def test_a_broken_compressed_body_is_reported():
    with pytest.raises(UnreadableContentError, match="broken"):
        decode("gzip", b"not compressed")
