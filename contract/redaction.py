"""Keeping secrets out of everything that is written. Every writer of free text passes through here."""

import os
from typing import Any

MASK = "***"
SECRET_VARIABLES = ("OPENAI_API_KEY",)


def service_api_key(configured: str) -> str:
    """The key to send: the scenario's, else OPENAI_API_KEY, else "" (none)."""
    return configured or os.environ.get("OPENAI_API_KEY", "")


class Redactor:
    """Replaces known secrets in texts, and in every text inside a JSON document."""

    def __init__(self, *secrets: str) -> None:
        known = {*secrets, *(os.environ.get(name, "") for name in SECRET_VARIABLES)}
        self._secrets = sorted((secret for secret in known if secret), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def document(self, value: Any) -> Any:
        """`value` (dicts, lists and scalars) with every string redacted, keys included."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {self.document(key): self.document(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.document(item) for item in value]
        return value
