"""Models are fetched whole, with their checksums, or not at all."""

import fcntl
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from support.model_servers import Requests, file_server, hub, sha256
from turnmill.cli.main import main
from turnmill.model_sources.fetch import RECORD, ModelFetchError
from turnmill.model_sources.fetch import fetch as fetch_model
from turnmill.model_sources.settings import ModelSource

FILES = {"config.json": b'{"model_type": "qwen2"}', "model.safetensors": bytes(range(256)) * 40}
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def archive(files: Mapping[str, bytes], prefix: str = "") -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as content:
        for name, data in files.items():
            member = tarfile.TarInfo(prefix + name)
            member.size = len(data)
            content.addfile(member, io.BytesIO(data))
    return target.getvalue()


@pytest.fixture
def fetch(tmp_path, capsys):
    """Fetch models, and return the exit code and what was said."""

    def run(*models: Mapping[str, object], options: tuple[str, ...] = ()) -> tuple[int, str]:
        file = tmp_path / "models.yaml"
        file.write_text(yaml.safe_dump(list(models)))
        code = main(["fetch-models", str(file), "--folder", str(tmp_path / "models"), *options])
        shown = capsys.readouterr()
        return code, shown.out + shown.err

    return run


def found(tmp_path: Path, name: str = "base") -> dict[str, bytes]:
    """The files of a model, without the record of them."""
    folder = tmp_path / "models" / name
    return {
        place.relative_to(folder).as_posix(): place.read_bytes()
        for place in folder.rglob("*")
        if place.is_file() and place.name != RECORD
    }


@pytest.mark.parametrize("prefix", ["", "policy-v2/"])
def test_an_archive_is_unpacked_and_the_second_time_it_is_there(fetch, tmp_path, prefix):
    packed = archive(FILES, prefix)
    with file_server({"/base.tar.gz": packed}) as server:
        model = {"name": "base", "url": f"{server.url}/base.tar.gz", "sha256": sha256(packed)}
        first, second = fetch(model), fetch(model)

    assert first == (0, "base: fetched, 2 files, 1.03e-05 GB\n")
    assert second == (0, "base: is there, 2 files, 1.03e-05 GB\n")
    assert found(tmp_path) == FILES
    assert len(server.paths) == 1
    assert sorted(place.name for place in (tmp_path / "models").iterdir()) == [".base.lock", "base"]


def test_a_download_that_broke_off_goes_on_where_it_was(fetch, tmp_path):
    packed = archive({**FILES, "weights.bin": os.urandom(100_000)})
    with file_server({"/base.tar.gz": packed}) as server:
        model = {"name": "base", "url": f"{server.url}/base.tar.gz", "sha256": sha256(packed)}
        server.cut_after = 30_000
        code, said = fetch(model)
        assert code == 1
        assert "was not read to its end" in said
        assert not (tmp_path / "models" / "base").exists()
        assert fetch(model)[0] == 0

    assert server.ranges == [None, "bytes=30000-"]
    assert found(tmp_path).keys() == {*FILES, "weights.bin"}


def test_another_archive_under_the_same_address_does_not_continue_the_first(fetch, tmp_path):
    old, new = archive({**FILES, "old": os.urandom(50_000)}), archive({**FILES, "new": os.urandom(50_000)})
    served = {"/base.tar.gz": old}
    with file_server(served) as server:
        model = {"name": "base", "url": f"{server.url}/base.tar.gz", "sha256": sha256(old)}
        server.cut_after = 30_000
        assert fetch(model)[0] == 1
        served["/base.tar.gz"] = new
        assert fetch({**model, "sha256": sha256(new)})[0] == 0

    assert server.ranges == [None, None]
    assert found(tmp_path).keys() == {*FILES, "new"}


@pytest.mark.parametrize(
    ("files", "change", "problem"),
    [
        (FILES, {"sha256": "0" * 64}, "the archive has SHA-256"),
        (FILES, {"checksums": {"config.json": "0" * 64}}, "config.json has SHA-256"),
        (FILES, {"checksums": {"tokenizer.json": "0" * 64}}, "tokenizer.json is missing"),
        ({"weights": b"1", "more": b"2"}, {}, "there is no config.json"),
        ({"../config.json": b"{}"}, {}, "the archive cannot be unpacked"),
        ({"/config.json": b"{}", "../../escaped": b""}, {}, "the archive cannot be unpacked"),
    ],
)
def test_what_is_not_what_it_should_be_is_not_kept(fetch, tmp_path, files, change, problem):
    packed = archive(files)
    with file_server({"/base.tar": packed}) as server:
        code, said = fetch({"name": "base", "url": f"{server.url}/base.tar", "sha256": sha256(packed), **change})

    assert code == 1
    assert problem in said
    assert not (tmp_path / "models" / "base").exists()
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "models" / "config.json").exists()


def test_a_link_out_of_an_archive_is_refused(fetch, tmp_path):
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as content:
        link = tarfile.TarInfo("config.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        content.addfile(link)
    with file_server({"/base.tar": target.getvalue()}) as server:
        code, said = fetch({"name": "base", "url": f"{server.url}/base.tar", "sha256": sha256(target.getvalue())})

    assert (code, "cannot be unpacked" in said) == (1, True)


@pytest.mark.parametrize("kind", ["path", "url"])
def test_a_folder_of_an_image_and_one_of_an_object_store_are_copied(fetch, tmp_path, kind):
    origin = tmp_path / "origin"
    (origin / "original").mkdir(parents=True)
    for name, content in FILES.items():
        (origin / name).write_bytes(content)
    (origin / "original" / "params.json").write_text("{}")

    code, said = fetch({"name": "base", kind: f"{origin}" if kind == "path" else f"file://{origin}"})

    assert (code, said) == (0, "base: fetched, 3 files, 1.03e-05 GB\n")
    assert found(tmp_path) == {**FILES, "original/params.json": b"{}"}


def test_a_model_of_another_source_is_not_replaced(fetch, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(f'"{name}"')
    assert fetch({"name": "base", "path": str(tmp_path / "one")})[0] == 0

    code, said = fetch({"name": "base", "path": str(tmp_path / "two")}, {"name": "more", "path": str(tmp_path / "two")})

    assert code == 2
    assert "is there already" in said
    assert "give the new model another name, or delete it" in said
    assert found(tmp_path) == {"config.json": b'"one"'}
    # The others are fetched all the same.
    assert found(tmp_path, "more") == {"config.json": b'"two"'}


def test_a_folder_that_somebody_else_made_is_left_alone(fetch, tmp_path):
    (tmp_path / "models" / "base").mkdir(parents=True)
    (tmp_path / "one").mkdir()

    code, said = fetch({"name": "base", "path": str(tmp_path / "one")})

    assert code == 2
    assert "was not fetched by this command" in said


def test_damage_is_found(fetch, tmp_path):
    origin = tmp_path / "origin"
    origin.mkdir()
    for name, content in FILES.items():
        (origin / name).write_bytes(content)
    model = {"name": "base", "path": str(origin)}
    assert fetch(model)[0] == 0
    assert fetch(model, options=("--verify",)) == (0, "base: verified, 2 files, 1.03e-05 GB\n")
    weights = tmp_path / "models" / "base" / "model.safetensors"

    weights.write_bytes(b"x" * weights.stat().st_size)
    assert fetch(model)[0] == 0
    code, said = fetch(model, options=("--verify",))
    assert (code, "another SHA-256" in said) == (1, True)

    weights.write_bytes(b"x")
    code, said = fetch(model)
    assert (code, "another size" in said) == (1, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_folder_that_cannot_be_written_is_told_with_the_user(tmp_path):
    (tmp_path / "models").mkdir(mode=0o755)
    os.seteuid(65534)
    try:
        with pytest.raises(ModelFetchError, match=r"base: user 65534 may not use .*Give it the right to write to"):
            fetch_model(ModelSource(name="base", path=str(tmp_path)), tmp_path / "models")
    finally:
        os.seteuid(0)


def test_two_at_once_do_not_mix(fetch, tmp_path):
    (tmp_path / "models").mkdir()
    with (tmp_path / "models" / ".base.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, said = fetch({"name": "base", "path": str(tmp_path)})

    assert code == 1
    assert "Another process fetches it" in said


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ({"name": "base"}, "exactly one of hub, url and path, not none"),
        ({"name": "base", "hub": "a/b", "path": "/x"}, "not hub and path"),
        ({"name": "../base", "path": "/x"}, "name"),
        ({"name": "base", "url": "https://host/base.tar"}, "set sha256 of the archive"),
        ({"name": "base", "url": "https://host/base.zip", "sha256": "0" * 64}, "not of an archive"),
        ({"name": "base", "url": "ftp://host/base.tar"}, "https, http, s3 or gs"),
        ({"name": "base", "path": "/x", "revision": "v1"}, "of a hub"),
        ({"name": "base", "path": "/nowhere"}, "/nowhere is no folder"),
        ({"name": "base", "url": "s3://bucket/base", "sha256": "0" * 64}, "set checksums of files"),
    ],
)
def test_mistakes_are_explained(fetch, model, problem):
    code, said = fetch(model)

    assert code in (1, 2)
    assert problem in said


def test_a_name_stands_once(fetch):
    code, said = fetch({"name": "base", "path": "/a"}, {"name": "base", "path": "/b"})

    assert (code, "listed twice" in said) == (2, True)


# ---- the hub, by its own client ----


def from_hub(server: Requests, tmp_path: Path, **changes: object) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "models.yaml"
    file.write_text(yaml.safe_dump([{"name": "base", "hub": "team/base", **changes}]))
    # The client reads the address when it is imported. Runs that other tests started in this process are offline.
    variables = {"HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_DISABLE_XET": "1"}
    variables["HF_HUB_OFFLINE"] = "0"
    command = [
        sys.executable,
        "-m",
        "turnmill.cli.main",
        "fetch-models",
        str(file),
        "--folder",
        str(tmp_path / "models"),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | variables)


@pytest.mark.parametrize("revision", ["main", COMMIT])
def test_a_repository_of_the_hub_is_fetched_at_its_commit(tmp_path, revision):
    with hub("team/base", COMMIT, FILES) as server:
        done = from_hub(server, tmp_path, revision=revision)

    assert done.stdout == "base: fetched, 2 files, 1.03e-05 GB\n", done.stderr
    assert found(tmp_path) == FILES


def test_only_the_files_that_are_asked_for_come_from_the_hub(tmp_path):
    with hub("team/base", COMMIT, {**FILES, "original/consolidated.pth": b"x" * 5000}) as server:
        done = from_hub(server, tmp_path, files=["*.json", "*.safetensors"])

    assert done.returncode == 0, done.stderr
    assert found(tmp_path) == FILES
    assert not any("consolidated" in path for path in server.paths)


def test_a_repository_that_does_not_exist_is_told_as_such(tmp_path):
    with hub("team/other", COMMIT, FILES) as server:
        done = from_hub(server, tmp_path)

    assert done.returncode == 1
    assert "the hub has not given team/base at main" in done.stderr
    assert "Traceback" not in done.stderr
