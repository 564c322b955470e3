"""Texts of all tokens, written to the run folder, so that readers of token ids need no tokenizer."""

import json

from transformers.convert_slow_tokenizer import bytes_to_unicode

from turnmill.observability import atomic_files
from turnmill.observability.run_folder import RunFolder
from turnmill.training.verl.types import Tokenizer

REPLACEMENT = "\ufffd"

Piece = str | list[int]
"""Text of a token, or its bytes if they are no whole characters."""


def save_vocabulary(tokenizer: Tokenizer, folder: RunFolder) -> None:
    """Write `vocabulary.json`, unless it exists."""
    if not folder.vocabulary.exists():
        text = json.dumps(token_pieces(tokenizer), ensure_ascii=False, separators=(",", ":"))
        atomic_files.write_bytes(folder.vocabulary, text.encode("utf-8", errors="replace"))


def token_pieces(tokenizer: Tokenizer) -> list[Piece]:
    """Return the text that each token adds to the text before it, in the order of token ids."""
    # Some tokenizers drop a leading blank, so each token is decoded after another one.
    (before,) = tokenizer.encode("a", add_special_tokens=False)[:1] or (tokenizer.eos_token_id,)
    start = len(tokenizer.decode([before]))
    texts = tokenizer.batch_decode([[before, token] for token in range(len(tokenizer))])
    names = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return [_piece(text[start:], name) for text, name in zip(texts, names, strict=True)]


_BYTES = {character: byte for byte, character in bytes_to_unicode().items()}


def _piece(text: str, name: str | None) -> Piece:
    if REPLACEMENT not in text or name is None:
        return text
    return _bytes_of(name) or text


def _bytes_of(name: str) -> list[int] | None:
    """Return the bytes in a token's name, in the alphabet of byte-level tokenizers or as `<0xE4>`."""
    if name.startswith("<0x") and name.endswith(">"):
        return [int(name[3:-1], 16)]
    return [_BYTES[character] for character in name] if all(character in _BYTES for character in name) else None
