"""Keeping secrets out of everything that is written. Every writer of free text passes through here.

A secret is recognised in the spellings in which servers, libraries and logs repeat it. What an engine answers is read
first and redacted when it is stored or shown: a key may be a word that a metrics page has a hundred times.
"""

import base64
import html
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any, Literal, get_origin
from urllib.parse import quote, quote_plus, unquote, urlsplit

from contract.errors import ScenarioError

MASK = "***"
API_KEY_VARIABLE = "OPENAI_API_KEY"
SECRET_VARIABLES = (API_KEY_VARIABLE,)

SHORTEST_PLAIN = 8
"""Characters. A shorter secret ("1", "token") is an ordinary word nearly everywhere: it is masked only where it stands as
the value of a header or of a URL."""

_HEADERS = frozenset({"authorization", "proxy-authorization", "api-key", "x-api-key", "api_key", "cookie"})
# A value is short where it stands: up to a quote, a blank, or what separates it from the next.
_BEFORE_SHORT = (
    r"(?i:\b(?:bearer|basic)\s+"
    r"|\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?"
    r"|\b(?:x-)?api[-_]?key[\"']?\s*[:=]\s*[\"']?"
    r"|\bcookie[\"']?\s*:\s*[\"']?"
    r"|[?&][^\s=&?#]+="
    r"|://[^\s/?#@:]*:)"
)
_AFTER_SHORT = r"(?![\w.~+/=%-])"
_LOGIN = re.compile(r"(?<=://)[^\s/?#\"<>\\]*@")
"""User and password of an address, the last @ before its path included; whether known or not, it is nobody's business."""

_learned: set[str] = set()


def learn(*secrets: str) -> None:
    """From now on every new Redactor of this process knows these: an error may be shown far from where a key was read."""
    _learned.update(secret for secret in secrets if secret)


def _known() -> set[str]:
    return {*_learned, *(os.environ.get(name, "") for name in SECRET_VARIABLES)}


def redacted(text: str) -> str:
    """`text` without any secret that this process knows now."""
    return _redactor(frozenset(_known()))(text)


@lru_cache(maxsize=4)
def _redactor(known: frozenset[str]) -> "Redactor":
    return Redactor(*known)


def service_api_key(configured: str) -> str:
    """The key to send: the scenario's, else OPENAI_API_KEY, else "" (none).

    Raises ScenarioError, without the key: it cannot be sent in a header.
    """
    key = checked_api_key(configured, "service.api_key")
    key = key or checked_api_key(os.environ.get(API_KEY_VARIABLE, ""), API_KEY_VARIABLE)
    learn(key)
    return key


def api_key_configured(configured: str) -> bool:
    """Whether there is a key to send, good or not."""
    return bool(configured.strip() or os.environ.get(API_KEY_VARIABLE, "").strip())


def checked_api_key(key: str, where: str) -> str:
    """`key` without white space around it, which files and shells add. Raises ScenarioError, without the key."""
    stripped = key.strip()
    problem = api_key_problem(stripped)
    if problem:
        learn(key)
        raise ScenarioError(f"{where}: {problem}; give the key as the engine knows it, on one line")
    return stripped


def api_key_problem(key: str) -> str | None:
    """Why a header cannot carry this key; None when it can. The key is not shown."""
    if any(character < " " or character == "\x7f" for character in key):
        return "has a line break or another control character inside"
    if any(character > "\xff" for character in key):
        return "has a character outside Latin-1, which no HTTP header can carry"
    return None


def login_of(url: str) -> tuple[str, str] | None:
    """User and password of an address, decoded; None when it has neither."""
    try:
        parts = urlsplit(url)
        user, password = parts.username, parts.password
    except ValueError:
        return None
    if user is None and password is None:
        return None
    return unquote(user or ""), unquote(password or "")


def masked_login(text: str) -> str:
    """`text` with a mask for every user and password that stands in an address."""
    return _LOGIN.sub(f"{MASK}@", text) if "://" in text else text


def without_login(url: str) -> str:
    """The address as it may be stored and shown: without user and password."""
    return _LOGIN.sub("", url)


def login_secrets(urls: Iterable[str]) -> list[str]:
    """What must not be seen of the logins in these addresses: passwords, and the pair that Basic authentication sends."""
    found = []
    for url in urls:
        login = login_of(url)
        if login is not None:
            user, password = login
            found += [password or user, f"{user}:{password}"]
    return found


class Redactor:
    """Replaces known secrets in texts, and in every text inside a JSON document.

    Known are those given, OPENAI_API_KEY, and what `learn` was told before. Logins in addresses are masked in any case.
    """

    def __init__(self, *secrets: str) -> None:
        known = _known() | set(secrets)
        known |= {secret.strip() for secret in known}
        known.discard("")
        spellings = {s for secret in known for s in _spellings(secret) if len(s) >= SHORTEST_PLAIN}
        self._spellings = sorted(spellings, key=len, reverse=True)
        short = sorted((s for s in known if len(s) < SHORTEST_PLAIN), key=len, reverse=True)
        self._short = frozenset(short)
        words = "|".join(re.escape(word) for secret in short for word in _escapes(secret))
        self._short_value = re.compile(f"({_BEFORE_SHORT})(?:{words}){_AFTER_SHORT}") if short else None

        deep = [_however_deep(s) for s in known if len(s) >= SHORTEST_PLAIN and not s.isalnum()]
        self._deep = re.compile("|".join(deep)) if deep else None

    def __call__(self, text: str) -> str:
        if self._deep is not None and "\\" in text:
            text = self._deep.sub(MASK, text)
        for spelling in self._spellings:
            text = text.replace(spelling, MASK)
        if self._short_value is not None:
            text = self._short_value.sub(rf"\1{MASK}", text)
        return masked_login(text)

    def document(self, value: Any) -> Any:
        """`value` (dicts, lists and scalars) with every string redacted, keys included."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return {self.document(key): self._item(key, item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.document(item) for item in value]
        return value

    def own(self, value: Any, annotation: Any = None) -> Any:
        """A document of ours, or a model of one: names of fields, and words that a field may have, are no secrets."""
        fields = getattr(type(value), "model_fields", None)  # pydantic's, which every start would pay for
        if fields is not None:
            return {name: self.own(getattr(value, name), field.annotation) for name, field in fields.items()}
        if isinstance(value, dict):
            return {name: self.own(item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.own(item) for item in value]
        return self(value) if isinstance(value, str) and get_origin(annotation) is not Literal else value

    def _item(self, name: Any, value: Any) -> Any:
        """A short secret as the whole value of a header that holds one."""
        if isinstance(value, str) and value in self._short and str(name).lower() in _HEADERS:
            return MASK
        return self.document(value)

    def exposition(self, text: str) -> str:
        """A metrics page with the values of its labels and its comments redacted. Names and numbers stay: they are read
        again, and a key of digits stands in many numbers."""
        return text if self(text) == text else "\n".join(map(self._line, text.split("\n")))

    def _line(self, line: str) -> str:
        if line.lstrip().startswith("#"):
            return self(line)
        return _LABEL_VALUE.sub(lambda found: self(found[0]), line) if '"' in line else line


_LABEL_VALUE = re.compile(r'"(?:[^"\\]|\\.)*"')


def _spellings(secret: str) -> Iterator[str]:
    """The texts in which a secret is masked wherever they stand. Nothing for a short one."""
    for part in {secret, *secret.splitlines()}:
        if len(part) < SHORTEST_PLAIN:
            continue
        yield from _escapes(part)
        for raw in _encoded(part):
            yield from _in_base64(raw)


def _encoded(secret: str) -> Iterator[bytes]:
    for encoding in ("utf-8", "latin-1"):
        with suppress(UnicodeEncodeError):
            yield secret.encode(encoding)


def _escapes(secret: str) -> Iterator[str]:
    """A secret as it is, and as source code, JSON, HTML and URLs write it."""
    yield secret
    yield " ".join(secret.split())
    yield repr(secret)[1:-1]
    yield secret.encode("unicode_escape").decode("ascii")
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield html.escape(secret)
    for raw in _encoded(secret):
        for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
            yield quoted
            yield re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), quoted)


def _however_deep(secret: str) -> str:
    """A pattern of `secret` behind any number of escapes: JSON in JSON in the label of a metrics page."""
    return "".join(map(_any_escape, secret))


def _any_escape(character: str) -> str:
    if character == "\\":
        return r"\\+"
    if character in "\"'/":
        return rf"\\*{character}"
    if character.isprintable() and character.isascii():
        return re.escape(character)
    named = {character.encode("unicode_escape").decode("ascii"), json.dumps(character)[1:-1]}
    return "(?:" + "|".join([re.escape(character), *(rf"\\+{name.lstrip(chr(92))}" for name in named)]) + ")"


def _in_base64(secret: bytes) -> Iterator[str]:
    """The characters that `secret` alone decides, for each of the three ways it may lie in what is encoded."""
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + secret + bytes(2))
        first = -(-8 * before // 6)
        last = 8 * (before + len(secret)) // 6
        fragment = encoded[first:last].decode("ascii")
        yield fragment
        yield fragment.replace("+", "-").replace("/", "_")
    whole = base64.b64encode(secret).decode("ascii")
    yield whole
    yield base64.urlsafe_b64encode(secret).decode("ascii")
