import codecs
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from turnmill.observability.run_folder import RunFolder
from turnmill.testing.policies import character_tokenizer
from turnmill.training.vocabulary import Piece, save_vocabulary, token_pieces

TEXT = "over the hills and far away, 丘の向こう 🙂 "


@pytest.fixture
def byte_level() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.fixture
def llama_style() -> PreTrainedTokenizerFast:
    """A tokenizer like Llama's, which drops the space at the beginning of a text."""
    words = {"▁a": 0, "▁hill": 1, "s": 2, "<0xE4>": 3}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="▁a")


def join(pieces: list[Piece]) -> str:
    decoder = codecs.getincrementaldecoder("utf-8")()
    return "".join(decoder.decode(piece.encode() if isinstance(piece, str) else bytes(piece)) for piece in pieces)


def test_the_pieces_of_a_text_join_to_the_text(byte_level: Any):
    pieces = token_pieces(byte_level)

    assert join([pieces[token] for token in byte_level.encode(TEXT + "ö")]) == TEXT + "ö"
    assert any(isinstance(piece, list) for piece in pieces)


def test_a_space_before_a_word_is_kept(llama_style: Any):
    assert token_pieces(llama_style) == [" a", " hill", "s", [0xE4]]


def test_the_vocabulary_is_written_once(tmp_path: Path):
    folder, tokenizer = RunFolder(tmp_path), character_tokenizer()

    save_vocabulary(tokenizer, folder)
    pieces = json.loads(folder.vocabulary.read_text())
    folder.vocabulary.write_text("[]")
    save_vocabulary(tokenizer, folder)

    assert len(pieces) == len(tokenizer)
    assert folder.vocabulary.read_text() == "[]"
