"""Run a command for as long as somebody holds our standard input open; then end it and all it started.

An engine is several processes, and the test run that started it may be killed at any moment. The kernel closes the
pipe of a dead parent, however it died; so no engine outlives its test run.

    python guard.py COMMAND ...      prints the command's process id, ends with the command's exit code
"""

import os
import select
import signal
import subprocess
import sys

POLL_SECONDS = 0.2
TERMINATE_SECONDS = 20


def main(command: list[str]) -> int:
    # A session of its own: one process group for the engine and its children, out of reach of Ctrl-C.
    # Its output goes where our stderr goes: our stdout is a pipe that nobody reads on, and would block it when full.
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    print(process.pid, flush=True)
    while process.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], POLL_SECONDS)
        if readable and not os.read(sys.stdin.fileno(), 1024):
            break
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            print(f"no end {TERMINATE_SECONDS} s after SIGTERM, killing", file=sys.stderr, flush=True)
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return process.wait()  # the group ended on its own
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
