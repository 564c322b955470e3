"""Images of observations: read from data URLs, and as tokens of a model with a processor for images."""

import base64
import binascii
import io

from PIL import Image
from verl.utils.tokenizer import build_multimodal_processor_inputs

from turnmill.core.errors import AgentLoopError, ToolRaisedError
from turnmill.rollout.verl_types import Processor

MARK = "<image>"
"""Text of an observation in whose place the policy reads the next image."""

_BEFORE, _AFTER = "3c1f-before", "3c1f-after"


def image_file(url: object) -> bytes:
    """Return the file in a data URL. Raises ToolRaisedError for anything else, such as a path."""
    head, comma, data = str(url).partition(",")
    if not (head.startswith("data:image/") and head.endswith(";base64") and comma):
        raise ToolRaisedError(f"A tool returned an image that is no data URL: {str(url)[:60]!r}")
    try:
        return base64.b64decode(data, validate=True)
    except binascii.Error as error:
        raise ToolRaisedError(f"A tool returned an image whose base64 is broken: {error}") from error


def open_image(file: bytes) -> Image.Image:
    """Return the image in a file. Raises AgentLoopError if it has none."""
    try:
        return Image.open(io.BytesIO(file)).convert("RGB")
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise AgentLoopError(f"a tool returned an image that cannot be read: {error}") from error


def data_url(image: Image.Image) -> str:
    """Return an image as a data URL of a PNG file."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


class ImageTokenizer:
    """Returns the tokens of images: placeholders between the marks of the model's chat template."""

    def __init__(self, processor: Processor | None) -> None:
        self._processor = processor
        self._markup: str | None = None

    def tokens_of(self, image: Image.Image) -> tuple[int, ...]:
        """Return the tokens of an image. Raises AgentLoopError for a model without images."""
        if self._processor is None:
            raise AgentLoopError(
                "a tool returned an image, but the model accepts only text: use a multi-modal model, or other tools"
            )
        if self._markup is None:
            self._markup = _read_markup(self._processor)
        inputs = build_multimodal_processor_inputs(self._processor, text=[self._markup], images=[image])
        return tuple(inputs["input_ids"][0].tolist())


def _read_markup(processor: Processor) -> str:
    """Return the chat template's text for one image in a message."""
    parts = [{"type": "text", "text": _BEFORE}, {"type": "image"}, {"type": "text", "text": _AFTER}]
    text = processor.apply_chat_template([{"role": "user", "content": parts}], tokenize=False)
    markup = text.partition(_BEFORE)[2].partition(_AFTER)[0]
    if not markup.strip():
        raise AgentLoopError("the model's chat template has no place for images in a message: give it another one")
    return markup
