"""Emptying the caches that keep an image: blocks of its placeholders, its processed pixels, its encoding.

The proof of the prefix-cache reset sends the image once more, so that cache is emptied a second time behind it.
"""

import threading
from dataclasses import dataclass

from contract.errors import ServiceError
from contract.measurement import Finding
from runner.control import ControlClient, refusal
from runner.reset import reset_problem

ROUTES = ("/reset_mm_cache", "/reset_encoder_cache")
"""Behind the server's address; vLLM mounts both beside /reset_prefix_cache and answers 200 without a body."""


@dataclass(frozen=True)
class ImageReset:
    """`prefix`: the prefix cache is empty. `images`: so are the caches of processed images and encodings."""

    prefix: bool
    images: bool
    findings: tuple[Finding, ...]


def reset_image_caches(client: ControlClient, stop: threading.Event, *, emptied: bool) -> ImageReset:
    """Empty all three. `emptied`: the prefix cache has been reset, and no probe found anything there.

    Raises ServiceError: a reset that worked a moment ago does not any more.
    """
    if emptied:
        problem = reset_problem(client, stop)
        if problem is not None:
            raise ServiceError(problem)
    problems = [problem for route in ROUTES if (problem := _problem(client, route)) is not None]
    if not problems:
        return ImageReset(emptied, True, ())
    message = (
        f"{'; '.join(problems)}: the image may be cached when the load begins, so its first request is faster and the "
        "multimodal counters show a hit more"
    )
    return ImageReset(emptied, False, (Finding(code="IMAGE_CACHE_NOT_RESET", message=message),))


def _problem(client: ControlClient, route: str) -> str | None:
    reset_url = client.engine.reset_url
    if reset_url is None:
        return f"{route}: service.reset_url is not configured"
    url = f"{reset_url.rpartition('/')[0]}{route}"
    try:
        answer = client.call("POST", url, login_of=reset_url)
    except ServiceError as error:
        return str(error)
    return None if answer.status == 200 else f"{url}: {refusal(answer)}"
