"""The log file of a command: `log/<id>.<command>.log`, appended, free of secrets."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract.redaction import Redactor

LOGGER = logging.getLogger("hitlab")


class _RedactingFormatter(logging.Formatter):
    def __init__(self, redact: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s")
        self._redact = redact

    def format(self, record: logging.LogRecord) -> str:
        return self._redact(super().format(record))


@contextmanager
def command_log(path: Path, redact: Redactor) -> Iterator[logging.Logger]:
    """Everything that HitLab logs inside the block goes to `path`; an exception that passes, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(_RedactingFormatter(redact))
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    LOGGER.addHandler(handler)
    try:
        yield LOGGER
    except BaseException:
        LOGGER.exception("ended by an exception")
        raise
    finally:
        LOGGER.removeHandler(handler)
        handler.close()
