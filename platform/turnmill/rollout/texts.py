"""Texts of tokens and tokens of texts, by a tokenizer of transformers without what it does around each call."""

from collections.abc import Callable

from transformers import TokenizersBackend

from turnmill.rollout.verl_types import Tokenizer

Decode = Callable[..., str]
"""`decode(token_ids, skip_special_tokens=False)`."""


Encode = Callable[[str], list[int]]
"""`encode(text, add_special_tokens=False)`."""

_OVERRIDABLE = ("decode", "_decode", "encode", "_encode_plus")
"""Methods of transformers' class whose work is left out here."""


def text_decoder(tokenizer: Tokenizer) -> Decode:
    """Return a tokenizer's `decode` for sequences of integers, of which transformers looks at each before."""
    backend = _plain(tokenizer)
    if backend is None or backend.clean_up_tokenization_spaces:
        return tokenizer.decode
    decode: Decode = backend.backend_tokenizer.decode

    def text_of(token_ids: object, *, skip_special_tokens: bool = False) -> str:
        # tokenizers' own default is to skip them.
        return decode(token_ids, skip_special_tokens=skip_special_tokens)

    return text_of


def text_encoder(tokenizer: Tokenizer) -> Encode:
    """Return a tokenizer's `encode` without special tokens, for single texts: transformers makes a batch of each."""
    plain = _plain(tokenizer)

    def ids_of(text: str) -> list[int]:
        backend = plain.backend_tokenizer if plain else None
        if backend is None or backend.truncation or backend.padding or backend.encode_special_tokens:
            return tokenizer.encode(text, add_special_tokens=False)
        ids: list[int] = backend.encode(text, add_special_tokens=False).ids
        return ids

    return ids_of


def _plain(tokenizer: object) -> TokenizersBackend | None:
    """Return a tokenizer that is one of the library tokenizers, and whose class changes nothing."""
    if isinstance(tokenizer, TokenizersBackend) and all(
        getattr(type(tokenizer), name) is getattr(TokenizersBackend, name) for name in _OVERRIDABLE
    ):
        return tokenizer
    return None
