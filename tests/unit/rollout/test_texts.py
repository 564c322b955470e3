import random
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from support.gateway import bpe_tokenizer, merged_bytes
from turnmill.rollout.texts import text_decoder, text_encoder
from turnmill.testing.policies import character_tokenizer

TEXTS = ("", "a text", "<|im_end|>\n<|im_start|>user\n", " é漢\U0001f600 ", "line\n\n  two\t.", "<|im_end|>")


@pytest.mark.parametrize("tokenizer", [bpe_tokenizer(), character_tokenizer()], ids=["merged", "characters"])
def test_texts_and_tokens_are_those_of_the_tokenizer(tokenizer: PreTrainedTokenizerFast) -> None:
    decode, encode = text_decoder(tokenizer), text_encoder(tokenizer)
    drawn = random.Random(0)
    for text in TEXTS:
        assert encode(text) == tokenizer.encode(text, add_special_tokens=False)
    for _ in range(200):
        ids = [drawn.randrange(len(tokenizer)) for _ in range(drawn.randint(0, 30))]
        for skip in (False, True):
            assert decode(ids, skip_special_tokens=skip) == tokenizer.decode(ids, skip_special_tokens=skip)
            assert decode(tuple(ids), skip_special_tokens=skip) == tokenizer.decode(ids, skip_special_tokens=skip)
        assert decode(ids) == tokenizer.decode(ids)


def test_a_tokenizer_whose_class_decodes_otherwise_is_asked() -> None:
    class Shouting(PreTrainedTokenizerFast):
        def _decode(self, *args: object, **kwargs: object) -> str:
            return super()._decode(*args, **kwargs).upper()

    tokenizer = Shouting(tokenizer_object=bpe_tokenizer().backend_tokenizer, eos_token="<|im_end|>")
    ids = tokenizer.encode("quiet", add_special_tokens=False)

    assert text_decoder(tokenizer)(ids) == "QUIET"


@pytest.mark.parametrize(
    "asked",
    [
        {"truncation": True, "max_length": 2},
        {"padding": "max_length", "max_length": 30},
        {"split_special_tokens": True},
    ],
)
def test_what_a_tokenizer_was_last_asked_for_changes_no_observation(asked: dict[str, Any]) -> None:
    # transformers leaves the settings of its last call in the tokenizer.
    tokenizer = merged_bytes(("a text",), vocabulary=300)
    tokenizer.pad_token = tokenizer.eos_token
    text = "a long text<|im_end|>"
    expected, encode = tokenizer.encode(text, add_special_tokens=False), text_encoder(tokenizer)
    changed = tokenizer(text, **asked).input_ids

    assert encode(text) == expected
    assert len(expected) > 2
    assert changed != expected


def test_a_tokenizer_that_cleans_texts_up_is_asked() -> None:
    tokenizer = merged_bytes(("a text",), vocabulary=300)
    ids = tokenizer.encode("a text .", add_special_tokens=False)
    plain = text_decoder(tokenizer)(ids)
    tokenizer.clean_up_tokenization_spaces = True
    tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True

    assert (plain, text_decoder(tokenizer)(ids)) == ("a text .", "a text.")
