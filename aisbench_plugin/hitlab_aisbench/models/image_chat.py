"""The chat endpoint as an AISBench model that puts the same images in front of every text."""

from pathlib import Path
from typing import Any

from ais_bench.benchmark.models.output import Output

from hitlab_aisbench.models.completions import PrefixCacheCompletions


class ImageChat(PrefixCacheCompletions):
    """`image_file` holds a data URL. It is read once, and goes into a body only when that is sent."""

    def __init__(self, image_file: str, images_per_request: int, **options: Any) -> None:
        super().__init__(**options)
        image = {"type": "image_url", "image_url": {"url": Path(image_file).read_text(encoding="ascii")}}
        self._images = [image] * images_per_request

    async def get_request_body(
        self, input_data: str, max_out_len: int, output: Output, **more: Any
    ) -> dict[str, Any]:
        body: dict[str, Any] = await super().get_request_body(input_data, max_out_len, output, **more)
        text = {"type": "text", "text": body.pop("prompt")}
        return {**body, "messages": [{"role": "user", "content": [*self._images, text]}]}
