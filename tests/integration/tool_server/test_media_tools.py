"""Tools for pictures, sounds, pages and code services, on two servers that share a store."""

import base64
import io
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from support.server_process import NewServer, ServerProcess


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "index.html").write_text("<h1>First</h1><a href='next.html'>on</a>")
    (folder / "next.html").write_text("<h1>Second</h1>")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture
def pair(new_server: NewServer, redis_url: str) -> list[ServerProcess]:
    tools = "pixel_reasoner,audio_crop,text_browser,piston,sandbox_fusion"
    settings = (
        "BROWSER_PRIVATE_ADDRESSES=allow",
        "PISTON_URL=http://127.0.0.1:9",
        "SANDBOX_FUSION_URL=http://127.0.0.1:9",
    )
    flags = [flag for setting in settings for flag in ("--set", setting)]
    return [new_server("--tool_type", tools, "--redis", redis_url, *flags) for _ in range(2)]


def call_of(name: str, **arguments: object) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.feature("verl-tool", "crops of images, frames and sound")
def test_any_server_serves_the_next_turn(pair: list[ServerProcess], pages: str):
    first, second = pair
    Image.new("RGB", (300, 300)).save(image := io.BytesIO(), format="PNG")
    soundfile.write(sound := io.BytesIO(), np.zeros(32000), 8000, format="WAV")
    urls = [f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}" for file in (image, sound)]
    crop = partial(call_of, "crop_image", bbox_2d=[0.1, 0.1, 0.9, 0.9])

    assert first.observe(crop(target_image=1), images=urls[:1])["image"].startswith("data:image/jpeg;base64,")
    assert "cropped image" in second.observe(crop(target_image=2))["obs"]
    cut = partial(call_of, "audio_crop", time_window=[1, 3])
    assert first.observe(cut(target_audio=1), audio=urls[1:])["audio"].startswith("data:audio/wav;base64,")
    assert second.observe(call_of("audio_crop", time_window=[0, 1], target_audio=2))["audio"]
    assert "First" in first.observe("", url=pages)
    assert "Second" in second.observe("<think>on</think>\n```click [1]```", url=pages)
    assert "First" in first.observe("<think>back</think>\n```go_back```")


@pytest.mark.parametrize(
    "action", ["<piston><language>python</language><file>1</file></piston>", "<python>print(1)</python>"]
)
def test_an_unreachable_service_fails_the_call_and_nothing_is_recorded(pair: list[ServerProcess], action: str):
    answers = [server.post(["t"], [action], extra_fields=[{"call_id": "1"}]) for server in pair]

    assert [answer.status_code for answer in answers] == [503, 503]
    assert "9) failed: All connection attempts failed" in answers[0].text
