"""Images in a conversation: what each costs in tokens, and what tells one from another.

A vision model puts a run of placeholder tokens where an image stands. How many is the model's own rule; here it is a
fixed number, or one for each square patch of the image. vLLM names a block by its tokens and by the images in it, so the
same placeholders of another image are another block.
"""

import base64
import binascii
import io
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import numpy.typing as npt

from simulator.bodies import RefusedError

_KEPT = 64
"""Images whose cost is remembered, so that a load with one image decodes it once."""


@dataclass(frozen=True, slots=True)
class SeenImage:
    """`identity`: SHA-256 of the image file. `tokens`: placeholders it costs."""

    identity: bytes
    tokens: int


@dataclass(frozen=True, slots=True)
class Span:
    """Where an image lies in a prompt: its first placeholder, and the image."""

    offset: int
    image: SeenImage


class ImageReader:
    """Reads data URLs.

    Args:
        tokens_per_image: placeholders of every image; None: one per started patch of `patch_pixels` squared.
    """

    def __init__(self, tokens_per_image: int | None, patch_pixels: int) -> None:
        self._fixed = tokens_per_image
        self._patch = patch_pixels
        self._known: OrderedDict[bytes, SeenImage] = OrderedDict()

    def read(self, url: str) -> SeenImage:
        """The image behind a data URL. Raises RefusedError as vLLM does when there is none."""
        name = sha256(url.encode()).digest()
        seen = self._known.get(name)
        if seen is None:
            content = _content(url)
            seen = SeenImage(sha256(content).digest(), self._cost(content))
            self._known[name] = seen
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return seen

    def _cost(self, content: bytes) -> int:
        if self._fixed is not None:
            return self._fixed
        from PIL import Image  # here: texts take no Pillow

        try:
            with Image.open(io.BytesIO(content)) as image:
                width, height = int(image.width), int(image.height)
        except (OSError, ValueError, SyntaxError) as error:
            raise RefusedError(
                "Failed to load image: cannot identify image file <_io.BytesIO object>"
            ) from error
        return -(-width // self._patch) * -(-height // self._patch)


def _content(url: str) -> bytes:
    head, comma, encoded = url.partition(",")
    if not (head.startswith("data:") and comma):
        raise RefusedError("The simulator reads images from data URLs only.")
    if not head.endswith(";base64"):
        raise RefusedError("Only base64 data URLs are supported for now.")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError(f"Failed to load image: {error}") from error


def name_images(token_ids: npt.NDArray[np.int32], spans: tuple[Span, ...]) -> npt.NDArray[np.int32]:
    """The ids by which blocks are told apart: placeholders become numbers that belong to their image alone.

    They are negative, so no token is meant by mistake; eight words of the identity in turn, so that the same image in
    another place of a block gives another block, as in vLLM.
    """
    if not spans:
        return token_ids
    named = token_ids.copy()
    for span in spans:
        words = np.frombuffer(span.image.identity, dtype="<i4") & np.int32(0x7FFFFFFF)
        named[span.offset : span.offset + span.image.tokens] = -1 - np.resize(words, span.image.tokens)
    return named
