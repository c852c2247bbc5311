"""What a starting engine is doing, read off the end of its log: downloads, loading, compiling take minutes each."""

import re

from runner.engines.vllm.diagnosis import plain

SHOWN = 70
BAR = re.compile(r"^(?P<what>.*?):?\s*(?P<percent>\d{1,3})%(?:\||\s|$)")
STEPS = tuple(
    (re.compile(pattern), step)
    for pattern, step in (
        (r"Starting to load model (\S+?)(?:\.\.\.|$)", "load {0}, downloading what is not there"),
        (r"Time spent downloading weights for (\S+?):", "downloaded {0}"),
        (r"Loading (?:weights|model weights) took", "weights are loaded"),
        (r"(?:Start|Started) compiling|Dynamo bytecode transform|Compiling a graph", "compile"),
        (r"Capturing (?:CUDA|cuda|ACL)\s?[Gg]raph", "capture graphs"),
        (r"GPU KV cache size: ([\d,]+) tokens", "KV cache of {0} tokens"),
        (r"Application startup complete|Starting vLLM API server", "API server"),
    )
)


def startup_step(log: str) -> tuple[str, int | None] | None:
    """The last step that `log` tells of, and how many percent are done where a bar says so; None: it tells none."""
    for line in reversed(re.split(r"[\r\n]+", log)):
        text = plain(line)
        bar = BAR.match(text)
        if bar and int(bar["percent"]) <= 100:
            return (bar["what"].strip(" :|") or "at work")[:SHOWN], int(bar["percent"])
        for pattern, step in STEPS:
            if found := pattern.search(text):
                return step.format(*found.groups())[:SHOWN], None
    return None
