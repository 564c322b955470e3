"""Drawing of a BabaIsAI map."""

import numpy as np
from PIL import Image, ImageDraw

from turnmill.environments.babaisai.engine import Thing, World

_CELL_PIXELS = 40
_COLOURS = {
    "red": (220, 60, 60),
    "blue": (70, 110, 220),
    "green": (70, 170, 90),
    "grey": (120, 120, 120),
    "white": (240, 240, 240),
}
_BACKGROUND, _BORDER, _TEXT = (20, 20, 26), (80, 80, 90), (230, 190, 120)


def draw(world: World) -> np.ndarray:
    """Draw a square per cell: objects as coloured discs with their name, text as framed words."""
    picture = Image.new("RGB", (world.width * _CELL_PIXELS, world.height * _CELL_PIXELS), _BACKGROUND)
    canvas = ImageDraw.Draw(picture)
    for index, cell in enumerate(world.cells):
        if cell:
            row, column = divmod(index, world.width)
            _draw_thing(canvas, cell[-1], column * _CELL_PIXELS, row * _CELL_PIXELS)
    return np.asarray(picture)


def _draw_thing(canvas: ImageDraw.ImageDraw, thing: Thing, left: int, top: int) -> None:
    square = (left + 1, top + 1, left + _CELL_PIXELS - 2, top + _CELL_PIXELS - 2)
    middle = (left + _CELL_PIXELS / 2, top + _CELL_PIXELS / 2)
    if thing.kind == "border":
        canvas.rectangle(square, fill=_BORDER)
    elif thing.is_text:
        canvas.rectangle(square, outline=_TEXT)
        canvas.text(middle, thing.name.upper(), fill=_TEXT, anchor="mm")
    else:
        canvas.ellipse(square, fill=_COLOURS[thing.colour])
        canvas.text(middle, thing.name, fill=_BACKGROUND, anchor="mm")
