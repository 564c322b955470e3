import pytest

from turnmill.core.errors import SettingsError
from turnmill.jobs.tool_agent import ToolAgent
from turnmill.rollout.tool_agent.stop_tokens import load_stop_tokens, parse_stop_tokens


@pytest.mark.feature("verl-tool", "stop tokens from a file")
@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ("```output", ("```output",)),
        ("</python>,</bash>", ("</python>", "</bash>")),
        ("</search>", ("</search>",)),
        ("<|im_end|>", ("<|im_end|>",)),
        ("Observation:", ("Observation:",)),
        ("output", ("output",)),
        ("", ()),
        (" ", ()),
    ],
)
def test_stop_tokens_may_be_written_out(given: str, tokens: tuple[str, ...]):
    assert parse_stop_tokens(given) == tokens


@pytest.mark.feature("verl-tool", "stop tokens from a file")
def test_stop_tokens_may_be_in_a_file_of_any_name(tmp_path, monkeypatch):
    (tmp_path / "tokens").write_text("```output, </python>\n")
    monkeypatch.chdir(tmp_path)

    assert parse_stop_tokens("tokens") == ("```output", "</python>")
    assert parse_stop_tokens(str(tmp_path / "tokens")) == ("```output", "</python>")


def test_a_job_lists_its_stop_tokens_or_names_a_file_of_them(tmp_path):
    (tmp_path / "tokens.txt").write_text("</b>,</c>")

    assert load_stop_tokens(ToolAgent(stop_tokens=("</a>",))) == ("</a>",)
    assert load_stop_tokens(ToolAgent(action_stop_tokens=str(tmp_path / "tokens.txt"))) == ("</b>", "</c>")


@pytest.mark.parametrize("path", ["/tmp/no-such", "tokens.txt", "./tokens", "~/tokens", "conf/tokens", "../tokens.csv"])
def test_a_text_that_can_only_be_a_path_is_no_stop_token(path: str):
    with pytest.raises(SettingsError, match="cannot be read"):
        parse_stop_tokens(path)
