"""Charts are drawn in a process of their own, which waits for the next page until its starter ends.

The renderer does not raise where it has not enough memory to its liking (`ulimit -v`): it ends its whole process. A page
without pictures is then a page without pictures, and the command that writes it goes on.
"""

import atexit
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Spec = dict[str, Any]

LONGEST_SECONDS = 600
"""For all charts of a page; a few seconds are usual."""


# Our folder is appended, as in the environment of the tiers, whose interpreter does not know it.
_START = f"import sys; sys.path.append(sys.argv.pop(1)); from {__name__} import serve; serve()"
_COMMAND = (sys.executable, "-P", "-c", _START, str(Path(__file__).resolve().parents[1]))


class NotDrawnError(Exception):
    """The renderer has drawn nothing. Says why."""


class Renderer:
    """Starts its process when it is first needed, and another one when that has ended."""

    def __init__(self, command: Sequence[str] = _COMMAND) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def draw(self, charts: Sequence[Spec]) -> list[str]:
        """The text of an SVG document for each Vega-Lite chart, whose data must be in it. Raises NotDrawnError."""
        with self._lock:
            try:
                process = self._process or self._start()
            except OSError as error:
                raise NotDrawnError(f"the renderer cannot be started ({error.strerror})") from error
            limit = threading.Timer(LONGEST_SECONDS, process.kill)
            limit.start()
            try:
                answer = _ask(process, charts)
            except (OSError, ValueError) as error:
                self.close()
                raise NotDrawnError(f"the renderer {_ending(process.returncode)}") from error
            finally:
                limit.cancel()
        if isinstance(answer, str):
            raise NotDrawnError(answer)
        return answer

    def _start(self) -> "subprocess.Popen[str]":
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a stack trace of the renderer's, which says nothing to a user
            encoding="utf-8",
            start_new_session=True,  # a Ctrl-C is for the command, which ends this with itself
        )
        return self._process

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()


def _ask(process: "subprocess.Popen[str]", charts: Sequence[Spec]) -> list[str] | str:
    """The pictures, or why there are none. Raises OSError or ValueError: there is no answer."""
    assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
    process.stdin.write(json.dumps(list(charts)) + "\n")
    process.stdin.flush()
    answer: dict[str, Any] = json.loads(process.stdout.readline())
    found: list[str] | str = answer["error"] if "error" in answer else answer["pictures"]
    return found


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    return f"was ended by {signal.Signals(-code).name}; it needs more memory (ulimit -v)"


RENDERER = Renderer()
atexit.register(RENDERER.close)


def serve() -> None:
    """One line of charts in, one line of pictures out, until nobody asks any more."""
    import vl_convert  # in this process alone

    for line in sys.stdin:
        try:
            pictures = [vl_convert.vegalite_to_svg(spec, allowed_base_urls=[]) for spec in json.loads(line)]
            answer: dict[str, Any] = {"pictures": pictures}
        except Exception as error:  # noqa: BLE001 - the binding raises bare Exception
            answer = {"error": f"the renderer refused a chart ({' '.join(str(error).split())[:200]})"}
        print(json.dumps(answer), flush=True)
