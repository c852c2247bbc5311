"""Request bodies, checked as vLLM checks them: same accepted types, same error text.

pydantic writes the messages on both sides; what is ours is the fields and the frame around the messages.
"""

import json
from typing import Annotated, Any, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError

_MOST_ERRORS = 10
_MOST_INPUT = 200
_TYPE_NAMES = frozenset({"str", "int", "float", "bool", "bytes", "list", "tuple", "dict", "set", "none"})

TokenId = Annotated[int, Field(ge=0)]


class RefusedError(Exception):
    """A request that is answered with vLLM's error object."""

    def __init__(
        self, message: str, *, param: str | None = None, status: int = 400, kind: str = "BadRequestError"
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.kind = kind

    def body(self) -> dict[str, Any]:
        return {
            "error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.status}
        }


def refused_value(message: str, param: str, value: object = None) -> RefusedError:
    """A refusal that names its parameter, and its value when there is one, behind the message."""
    shown = f"(parameter={param})" if value is None else f"(parameter={param}, value={value})"
    return RefusedError(f"{message} {shown}", param=param)


class StreamOptions(BaseModel):
    include_usage: bool | None = True
    continuous_usage_stats: bool | None = False


class _Generation(BaseModel):
    """What completions and chat have in common. Unknown fields are accepted and ignored, as vLLM does."""

    model_config = ConfigDict(extra="ignore")

    model: str | None = None
    n: int = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    add_special_tokens: bool = True
    return_token_ids: bool | None = None
    request_id: str | None = None
    cache_salt: str | None = None


def _sixteen_for_null(value: object) -> object:
    return 16 if value is None else value


class CompletionBody(_Generation):
    prompt: list[TokenId] | list[list[TokenId]] | str | list[str] | None = None
    max_tokens: Annotated[int, BeforeValidator(_sixteen_for_null)] = 16


class ImageUrl(BaseModel):
    url: str


class ContentPart(BaseModel):
    type: str
    text: str | None = None
    image_url: ImageUrl | None = None


class Message(BaseModel):
    role: str
    content: str | list[ContentPart] | None = None


class ChatBody(_Generation):
    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = False


class TokenizeBody(BaseModel):
    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatBody(BaseModel):
    model: str | None = None
    messages: list[Message]
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    return_token_strs: bool | None = False


class DetokenizeBody(BaseModel):
    model: str | None = None
    tokens: list[TokenId]


_EITHER_TOKENIZE: TypeAdapter[TokenizeBody | TokenizeChatBody] = TypeAdapter(TokenizeBody | TokenizeChatBody)
_BRANCHES = frozenset({"tokenizebody", "tokenizechatbody"}) | _TYPE_NAMES

# Fields that would need logits, or another decoding, to mean anything.
_NOT_SIMULATED: tuple[str, ...] = (
    "logprobs",
    "top_logprobs",
    "prompt_logprobs",
    "echo",
    "suffix",
    "prompt_embeds",
)
_NOT_SIMULATED += ("use_beam_search", "truncate_prompt_tokens", "structured_outputs", "tools", "tool_choice")

Body = TypeVar("Body", bound=BaseModel)


def read_json(raw: bytes, content_type: str) -> Any:
    """The JSON value of a body.

    Raises:
        RefusedError: another content type, no body, or no JSON.
    """
    if content_type.split(";")[0].strip().lower() != "application/json":
        raise _invalid([], "  Unsupported Media Type: Only 'application/json' is allowed")
    if not raw:
        raise _invalid([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return _read_with_position(raw)


def _read_with_position(raw: bytes) -> Any:
    # Error text and position are the standard library's, as in FastAPI; it also reads NaN.
    try:
        value = json.loads(raw)
        # Half a character passes for JSON, and is no text that a tokenizer takes.
        json.dumps(value, ensure_ascii=False).encode()
        return value
    except UnicodeEncodeError as error:
        raise RefusedError(str(error)) from error
    except json.JSONDecodeError as error:
        raise _invalid(
            [
                {
                    "type": "json_invalid",
                    "loc": ("body", error.pos),
                    "msg": "JSON decode error",
                    "input": {},
                    "ctx": {"error": error.msg},
                }
            ]
        ) from error
    except (ValueError, RecursionError) as error:  # no UTF-8, thousands of digits, thousands of levels
        raise RefusedError("There was an error parsing the body") from error


def read_generation(kind: type[Body], data: Any) -> Body:
    """A completion or chat body, with the checks vLLM makes before the types'."""
    if isinstance(data, dict):
        if kind is CompletionBody and data.get("prompt") in (None, ""):
            raise refused_value("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        if data.get("stream_options") and not data.get("stream"):
            raise refused_value("Stream options can only be defined when `stream=True`.", "stream_options")
        salt = data.get("cache_salt")
        if salt is not None and not (isinstance(salt, str) and salt):
            raise refused_value(
                "Parameter 'cache_salt' must be a non-empty string if provided.", "cache_salt"
            )
        for name in _NOT_SIMULATED:
            if data.get(name):
                raise refused_value(f"The simulator does not simulate `{name}`: leave it out.", name)
    return read_body(kind, data)


def read_body(kind: type[Body], data: Any) -> Body:
    """`data` as a body of this kind.

    Raises:
        RefusedError: with pydantic's errors in vLLM's frame.
    """
    try:
        return kind.model_validate(data, from_attributes=True)
    except ValidationError as error:
        raise validation_error(error, "body") from error


def read_tokenize(data: Any) -> TokenizeBody | TokenizeChatBody:
    """A text or a conversation to tokenize; a refusal lists what either of them lacks."""
    try:
        return _EITHER_TOKENIZE.validate_python(data, from_attributes=True)
    except ValidationError as error:
        raise validation_error(error, "body") from error


def validation_error(error: ValidationError, where: str) -> RefusedError:
    """pydantic's errors in vLLM's frame, their locations starting at `where`."""
    errors: list[dict[str, Any]] = [
        {**entry, "loc": (where, *entry["loc"])} for entry in error.errors(include_url=False)
    ]
    return _invalid(errors)


def _invalid(errors: list[dict[str, Any]], instead: str = "") -> RefusedError:
    count = max(1, len(errors))
    label = "error" if count == 1 else "errors"
    lines = [f"{count} validation {label}:"]
    lines += [f"  {_shown(entry)}" for entry in errors[:_MOST_ERRORS]] or [instead]
    if count > _MOST_ERRORS:
        lines.append(f"  ...and {count - _MOST_ERRORS} more {label}")
    param = _location(errors[0]["loc"]) if errors else None
    return RefusedError("\n".join(lines), param=param, kind="Bad Request")


def _shown(entry: dict[str, Any]) -> str:
    return str({**entry, "loc": _location(entry["loc"]), "input": _summary(entry["input"])})


def _location(path: tuple[Any, ...]) -> str:
    """Dotted path without the names that pydantic gives to the branches of a union."""
    parts = [str(part) for part in path]
    return ".".join(part for part in parts if "[" not in part and part.lower() not in _BRANCHES)


def _summary(value: object) -> str:
    if isinstance(value, list | tuple | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    text = str(value)
    return text if len(text) <= _MOST_INPUT else text[:_MOST_INPUT] + "...[truncated]"
