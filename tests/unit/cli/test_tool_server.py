import inspect
from pathlib import Path
from typing import Any

import pytest

from turnmill.cli import tool_server as command
from turnmill.cli.main import main
from turnmill.core.errors import SettingsError
from turnmill.jobs.tool_server import RunToolServer
from turnmill.tool_server.settings import ServerSettings


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[ServerSettings]:
    """The settings of the servers that would have been started."""
    started: list[ServerSettings] = []
    monkeypatch.setattr("turnmill.tool_server.serve.run_server", started.append)
    return started


def settings(started: list[ServerSettings], *arguments: str) -> ServerSettings:
    assert main(["tool-server", *arguments]) == 0
    return started[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tool_type", "python_code,bash_terminal", "--max_concurrent_requests", "64"],
        ["--tool-type=python_code,bash_terminal", "--max-concurrent-requests=64"],
        ["--tool_type", "('python_code', 'bash_terminal')", "--max_concurrent-requests=64"],
    ],
)
def test_flags_accept_dashes_or_underscores_and_an_optional_equals_sign(started: Any, arguments: list[str]):
    chosen = settings(started, *arguments)

    assert chosen.tool_type == ("python_code", "bash_terminal")
    assert chosen.max_concurrent_requests == 64


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], False),
        (["--done_if_invalid"], True),
        (["--done_if_invalid", "True"], True),
        (["--done_if_invalid=true"], True),
        (["--done-if-invalid", "False"], False),
        (["--no-done-if-invalid"], False),
        (["--done_if_invalid", "--port", "1"], True),
    ],
)
def test_switches_take_an_optional_value(started: Any, arguments: list[str], expected: bool):
    assert settings(started, *arguments).done_if_invalid is expected


def test_every_flag_of_verl_tool_is_accepted(started: Any):
    words = (
        "--tool_type=base --host=127.0.0.1 --port=1 --workers_per_tool=4 --max_concurrent_requests=8 "
        "--request_timeout=None --thread_pool_size None --use_tqdm False --log_level=info --done_if_invalid=False "
        "--use_ray=True --enable_hashing True --log_interval=30 --uvi_workers=2 --router_workers=3 --log_directory=x"
    )

    assert settings(started, *words.split()).workers_per_tool == 4


def test_defaults_are_those_of_the_settings(started: Any):
    assert settings(started) == ServerSettings()
    parameters = inspect.signature(command.tool_server).parameters
    assert ServerSettings.model_fields.keys() - parameters.keys() == {"tool_settings"}


def test_settings_of_tools_are_set_by_name(started: Any):
    chosen = settings(started, "--set", "RETRIEVER_URL=http://a/?b=c", "--set", "RETRIEVER_TOPK=5")

    assert chosen.tool_settings == {"RETRIEVER_URL": "http://a/?b=c", "RETRIEVER_TOPK": "5"}


def test_settings_of_tools_are_read_from_the_files_of_a_mounted_secret(started: Any, tmp_path: Path):
    # As Kubernetes mounts it: files are links into a folder that it replaces as a whole.
    data = tmp_path / "..2026_11_24"
    data.mkdir()
    (data / "SERPER_API_KEY").write_text("a secret\n")
    (data / "RETRIEVER_TOPK").write_text("5")
    (tmp_path / "..data").symlink_to(data.name)
    for name in ("SERPER_API_KEY", "RETRIEVER_TOPK"):
        (tmp_path / name).symlink_to(f"..data/{name}")

    chosen = settings(started, "--settings-dir", str(tmp_path), "--set", "RETRIEVER_TOPK=7")

    assert chosen.tool_settings == {"SERPER_API_KEY": "a secret", "RETRIEVER_TOPK": "7"}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("api.key", b"x", "api.key is no name of a setting"),
        ("API_KEY", b"\xff", "cannot be read"),
        ("API_KEY/inner", b"", "cannot be read"),
        (None, b"", "cannot be read"),
    ],
)
def test_a_folder_that_has_no_settings_is_refused(tmp_path: Path, name: str | None, content: bytes, message: str):
    folder = tmp_path / "settings"
    if name is not None:
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(content)

    with pytest.raises(SettingsError, match=message):
        command.settings_in(folder)


def test_stop_tokens_are_listed_or_read_from_a_file(started: Any, tmp_path: Any):
    file = tmp_path / "tokens"
    file.write_text("</python>,</bash>\n")

    assert settings(started, "--action_stop_tokens", "</python>, </bash>").action_stop_tokens == (
        "</python>",
        "</bash>",
    )
    assert settings(started, "--action_stop_tokens", str(file)).action_stop_tokens == ("</python>", "</bash>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--port", "70000"], "--port (70000)"),
        (["--log_level", "loud"], "--log-level ('loud')"),
        (["--tool_type", ","], "names no tool"),
        (["--set", "RETRIEVER_URL"], "write it as NAME=VALUE"),
        (["--workers_per_tool", "0"], "--workers-per-tool (0)"),
    ],
)
def test_an_invalid_value_is_refused_with_the_name_of_its_flag(
    started: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
):
    assert main(["tool-server", *arguments]) == 2

    assert message in " ".join(capsys.readouterr().err.split())
    assert started == []


@pytest.mark.parametrize(("requests", "uvi_workers", "workers"), [(1, 1, 1), (256, 1, 1), (300, 1, 2), (300, 5, 5)])
def test_there_is_one_worker_per_256_concurrent_requests(requests: int, uvi_workers: int, workers: int):
    assert ServerSettings(max_concurrent_requests=requests, uvi_workers=uvi_workers).num_workers == workers


@pytest.mark.feature("verl-tool", "flags of the server")
def test_the_server_of_a_run_can_have_every_flag_but_those_that_the_run_sets(started: Any):
    arguments = RunToolServer().arguments()

    assert settings(started, *arguments).max_concurrent_requests == 256
    others = ServerSettings.model_fields.keys() - {argument[2:].partition("=")[0] for argument in arguments}
    unset = {"request_timeout", "thread_pool_size", "sandbox_memory_mib"}
    of_the_run = {"tool_type", "host", "port", "listener", "redis", "run_name", "tool_settings", "store_bytes"}
    for_other_clients = {"allow_host", "token_file", "tls_cert_file", "tls_key_file", "metrics_port", "enable_hashing"}
    of_completions = {"model", "model_url", "model_api_key", "model_timeout", "max_turns", "action_stop_tokens"}
    of_completions |= {"max_obs_characters", "max_obs_length", "truncate_obs_side", "min_turns"}
    of_completions |= {"enable_mtrl", "mtrl_role", "mtrl_sep", "turn_end_token"}
    assert others == unset | of_the_run | for_other_clients | of_completions
