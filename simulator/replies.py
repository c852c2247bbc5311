"""The bodies of completion and chat answers, whole or in chunks, key for key as vLLM 0.32 writes them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from cachemodel.block_hashes import ExtraKeys
from simulator.bodies import ChatBody, CompletionBody
from simulator.engine import Emission
from simulator.images import Span


@dataclass(frozen=True, slots=True)
class Frame:
    """What every answer of a server has in common."""

    model_name: str
    fingerprint: str
    block_size: int
    prompt_tokens_details: bool
    text: Callable[[int], str]


@dataclass(frozen=True, slots=True)
class Call:
    """One completion or chat call, with everything checked that can be checked before the engine sees it.

    Attributes:
        prompts: token ids of each prompt.
        max_tokens: answer length for each prompt.
        extra_keys: what salts the hashes of the prompts.
        rank: asked for by the header; None leaves the choice to the balancer.
        spans: images of the prompt; only conversations have any.
    """

    body: CompletionBody | ChatBody
    request_id: str
    created: int
    prompts: list[list[int]]
    max_tokens: list[int]
    extra_keys: ExtraKeys
    rank: int | None
    spans: tuple[Span, ...] = ()

    @property
    def image_tokens(self) -> int:
        return sum(span.image.tokens for span in self.spans)

    @property
    def sequences(self) -> int:
        return len(self.prompts) * self.body.n


class _Reply:
    """State of one streamed answer: counts for usage, and which sequence has begun."""

    prefix: str
    object_name: str

    def __init__(self, frame: Frame, call: Call) -> None:
        self._frame = frame
        self._call = call
        options = call.body.stream_options
        self._usage = bool(call.body.stream and options and options.include_usage)
        self._continuous = bool(self._usage and options and options.continuous_usage_stats)
        self._generated = [0] * call.sequences
        self._cached: int | None = None
        self._head = orjson.dumps(
            {
                "id": call.request_id,
                "object": self.object_name,
                "created": call.created,
                "model": frame.model_name,
            }
        )[:-1]
        self._fingerprint = b',"system_fingerprint":' + orjson.dumps(frame.fingerprint)

    def usage_chunk(self) -> bytes:
        """The last chunk, with the usage of the whole call; nothing when it was not asked for."""
        if not self._usage:
            return b""
        call = self._call
        prompt = sum(map(len, call.prompts))
        usage: dict[str, Any] = _counts(prompt, sum(self._generated))
        if self._frame.prompt_tokens_details:
            usage["prompt_tokens_details"] = self._details(self._cached or 0)
        body = b',"choices":[],"usage":' + orjson.dumps(usage) + self._fingerprint
        return b"data: " + self._head + body + b"}\n\n"

    def _count(self, token: Emission) -> int:
        if self._cached is None:
            self._cached = token.cached_tokens
        self._generated[token.index] += 1
        return self._generated[token.index]

    def _details(self, cached: int) -> dict[str, Any]:
        return {"cached_tokens": cached}


def _counts(prompt: int, completion: int) -> dict[str, Any]:
    return {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion}


def _usage(frame: Frame, call: Call, answers: list[list[int]], details: dict[str, Any]) -> dict[str, Any]:
    usage = _counts(sum(map(len, call.prompts)), sum(map(len, answers)))
    by_kind = {"image": call.image_tokens} if call.spans else None
    shown = {**details, "multimodal_tokens": by_kind} if frame.prompt_tokens_details else None
    return {**usage, "prompt_tokens_details": shown, "completion_tokens_details": None}


def _created_tokens(frame: Frame, call: Call, cached: int) -> int:
    size = frame.block_size
    return len(call.prompts[0]) // size * size - cached


class CompletionReply(_Reply):
    prefix = "cmpl"
    object_name = "text_completion"

    def chunk(self, token: Emission) -> bytes:
        frame, call = self._frame, self._call
        number = self._count(token)
        ids = call.prompts[token.index // call.body.n]
        prompt_ids = token_ids = b"null"
        if call.body.return_token_ids:
            token_ids = b"[%d]" % token.token_id
            if number == 1:
                prompt_ids = orjson.dumps(ids)
        parts = [
            b"data: ",
            self._head,
            b',"choices":[{"index":%d,"text":' % token.index,
            orjson.dumps(frame.text(token.token_id)),
            b',"logprobs":null,"finish_reason":',
            b'"length"' if token.last else b"null",
            b',"stop_reason":null,"prompt_token_ids":',
            prompt_ids,
            b',"token_ids":',
            token_ids,
            b"}]",
        ]
        if self._continuous:
            parts += [b',"usage":', orjson.dumps(_counts(len(ids), number))]
        elif token.last and not self._usage:
            parts.append(self._fingerprint)
        parts.append(b"}\n\n")
        return b"".join(parts)

    @staticmethod
    def whole(frame: Frame, call: Call, answers: list[list[int]], cached: int) -> dict[str, Any]:
        shown = call.body.return_token_ids
        choices = [
            {
                "index": index,
                "text": "".join(map(frame.text, answer)),
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": answer if shown else None,
                "prompt_logprobs": None,
                "prompt_token_ids": call.prompts[index // call.body.n] if shown else None,
                "routed_experts": None,
            }
            for index, answer in enumerate(answers)
        ]
        details = {"cached_tokens": cached, "created_cache_tokens": None}
        return {
            "id": call.request_id,
            "object": "text_completion",
            "created": call.created,
            "model": frame.model_name,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": frame.fingerprint,
            "usage": _usage(frame, call, answers, details),
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }


class ChatReply(_Reply):
    prefix = "chatcmpl"
    object_name = "chat.completion.chunk"

    def chunk(self, token: Emission) -> bytes:
        opening = self._opening() if self._cached is None else b""
        number = self._count(token)
        parts = [
            opening,
            b"data: ",
            self._head,
            b',"choices":[{"index":%d,"delta":{"content":' % token.index,
            orjson.dumps(self._frame.text(token.token_id)),
            b'},"logprobs":null,"finish_reason":',
            b'"length","stop_reason":null' if token.last else b"null",
            b',"token_ids":',
            b"[%d]" % token.token_id if self._call.body.return_token_ids else b"null",
            b"}]",
        ]
        if self._continuous:
            parts += [b',"usage":', self._so_far(number)]
        elif token.last and not self._usage:
            parts.append(self._fingerprint)
        parts.append(b"}\n\n")
        return b"".join(parts)

    def _opening(self) -> bytes:
        """The chunks that give the role, one for each choice, before the first token of the call."""
        ids = self._call.prompts[0]
        shown = orjson.dumps(ids) if self._call.body.return_token_ids else b"null"
        usage = b',"usage":' + self._so_far(0) if self._continuous else b""
        return b"".join(
            b"data: "
            + self._head
            + b',"choices":[{"index":%d,"delta":{"role":"assistant","content":""},' % index
            + b'"logprobs":null,"finish_reason":null}]'
            + usage
            + b',"prompt_token_ids":'
            + shown
            + b',"prompt_text":null}\n\n'
            for index in range(self._call.body.n)
        )

    def _so_far(self, number: int) -> bytes:
        counts = _counts(len(self._call.prompts[0]), number)
        return orjson.dumps({**counts, "completion_tokens_details": None})

    def _details(self, cached: int) -> dict[str, Any]:
        created = _created_tokens(self._frame, self._call, cached)
        images = {"multimodal_tokens": {"image": self._call.image_tokens}} if self._call.spans else {}
        return {"cached_tokens": cached, "created_cache_tokens": created, **images}

    @staticmethod
    def whole(frame: Frame, call: Call, answers: list[list[int]], cached: int) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "message": {
                    "role": "assistant",
                    "content": "".join(map(frame.text, answer)),
                    "refusal": None,
                    "annotations": None,
                    "audio": None,
                    "function_call": None,
                    "reasoning": None,
                },
                "logprobs": None,
                "finish_reason": "length",
                "stop_reason": None,
                "token_ids": answer if call.body.return_token_ids else None,
                "routed_experts": None,
            }
            for index, answer in enumerate(answers)
        ]
        created = _created_tokens(frame, call, cached)
        details = {"cached_tokens": cached, "created_cache_tokens": created}
        return {
            "id": call.request_id,
            "object": "chat.completion",
            "created": call.created,
            "model": frame.model_name,
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": frame.fingerprint,
            "usage": _usage(frame, call, answers, details),
            "prompt_logprobs": None,
            "prompt_token_ids": call.prompts[0] if call.body.return_token_ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }
