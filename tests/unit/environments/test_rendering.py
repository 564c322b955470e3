import numpy as np
import pytest
from PIL import Image

from turnmill.environments.rendering import from_png, to_png, write_gif


def frames(number: int) -> list[np.ndarray]:
    return [np.full((8, 8, 3), 20 * index, dtype=np.uint8) for index in range(number)]


@pytest.mark.feature("Verlog", "animations of episodes")
def test_an_animation_has_every_frame(tmp_path):
    write_gif(frames(5), tmp_path / "episodes" / "0.gif")

    with Image.open(tmp_path / "episodes" / "0.gif") as animation:
        assert animation.n_frames == 5


def test_a_failed_animation_leaves_the_previous_file_unchanged(tmp_path):
    path = tmp_path / "0.gif"
    write_gif(frames(2), path)
    before = path.read_bytes()

    with pytest.raises((TypeError, ValueError)):
        write_gif([*frames(1), np.zeros((8, 8, 7), dtype=np.uint8)], path)

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_an_animation_needs_a_frame(tmp_path):
    with pytest.raises(ValueError, match="at least one frame"):
        write_gif([], tmp_path / "0.gif")


def test_a_frame_survives_png_encoding():
    frame = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)

    assert (from_png(to_png(frame)) == frame).all()
