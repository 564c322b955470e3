from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen2Config

from turnmill.environments import create
from turnmill.training.warm_start.tokenizer import build_tokenizer, split_words

ANSWER = "THINK: the red ball is 2 steps left\nACTION: turn left"
MESSAGES = [
    {"role": "system", "content": "goal: go to the red ball"},
    {"role": "user", "content": "a wall 3 steps forward\na red ball 2 steps left"},
    {"role": "assistant", "content": ANSWER},
    {"role": "user", "content": ""},
]
PROMPT = (
    "<sys>goal: go to the red ball<|im_end|><usr>a wall 3 steps forward\na red ball 2 steps left<|im_end|>"
    f"<ast>{ANSWER}<|im_end|><usr><|im_end|><ast>"
)


@pytest.fixture
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer(message["content"] for message in MESSAGES)


def test_split_words_join_to_the_original_text():
    text = " a  red\n\nball \n "

    assert "".join(split_words(text)) == text


def test_the_chat_template_renders_the_whole_conversation(tokenizer: PreTrainedTokenizerFast):
    assert tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False) == PROMPT


def test_every_word_is_one_token(tokenizer: PreTrainedTokenizerFast):
    ids = tokenizer.apply_chat_template(MESSAGES[:1], add_generation_prompt=True, tokenize=True, return_dict=False)

    expected = ["<sys>", "goal:", " go", " to", " the", " red", " ball", "<|im_end|>", "<ast>"]
    assert tokenizer.convert_ids_to_tokens(ids) == expected


def test_a_response_is_unchanged_by_encoding_and_decoding(tokenizer: PreTrainedTokenizerFast):
    ids = tokenizer(ANSWER, add_special_tokens=False)["input_ids"]
    text = tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True)

    assert text == ANSWER
    assert tokenizer(text, add_special_tokens=False)["input_ids"] == ids


def test_the_environment_parses_the_action_of_a_decoded_response(tokenizer: PreTrainedTokenizerFast):
    ids = tokenizer(ANSWER, add_special_tokens=False)["input_ids"]

    assert create("babyai", "GoToObj", 16).parse_action(tokenizer.decode(ids)) == "turn left"


def test_a_tokenizer_saved_in_a_qwen2_folder_loads_unchanged(tokenizer: PreTrainedTokenizerFast, tmp_path: Path):
    Qwen2Config(vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)

    assert loaded(PROMPT)["input_ids"] == tokenizer(PROMPT)["input_ids"]
    assert loaded.decode(loaded(PROMPT)["input_ids"]) == PROMPT
    assert (len(loaded), loaded.pad_token_id, loaded.eos_token_id) == (len(tokenizer), 0, 1)
    assert loaded.chat_template == tokenizer.chat_template
