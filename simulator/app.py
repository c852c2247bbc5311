"""The routes: what a vLLM server answers, said by the simulated engine."""

import asyncio
import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
import orjson
from pydantic import BaseModel, ValidationError

from prompts.tokenizer import Tokenizer
from simulator.bodies import (
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    Message,
    RefusedError,
    TokenizeBody,
    TokenizeChatBody,
    read_body,
    read_generation,
    read_json,
    read_tokenize,
    refused_value,
    validation_error,
)
from simulator.config import SimulatorConfig
from simulator.engine import Emission, Engine, Prompt, Submission
from simulator.http import Request, Response
from simulator.images import ImageReader, SeenImage, Span
from simulator.replies import Call, ChatReply, CompletionReply, Frame
from simulator.sampling import check_sampling
from simulator.vocabulary import Vocabulary

VLLM_VERSION = "0.32.0"
_EVENT_STREAM = "text/event-stream; charset=utf-8"
_METRICS_TEXT = "text/plain; version=1.0.0; charset=utf-8"
_GUARDED = "/v1"
_DONE = b"data: [DONE]\n\n"

Route = Callable[[Request, Response], Awaitable[None]]


class _ResetQuery(BaseModel):
    reset_running_requests: bool = False
    reset_external: bool = False


class App:
    """Routes of one engine. Call it with a request and a response."""

    def __init__(self, config: SimulatorConfig, tokenizer: Tokenizer) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self.vocabulary = Vocabulary(tokenizer)
        self.engine = Engine(config, self.vocabulary)
        self._vocab_size = config.vocab_size or tokenizer.vocab_size
        self._placeholder = tokenizer.vocab_size - 1
        mark = sha256(config.model_dump_json().encode()).hexdigest()[:8]
        self.images = ImageReader(config.tokens_per_image, config.patch_pixels) if config.multimodal else None
        self.frame = Frame(
            config.model_name,
            f"vllm-{VLLM_VERSION}-dp{config.ranks}-{mark}",
            config.block_size,
            config.prompt_tokens_details,
            self.vocabulary.text,
        )
        self._routes: dict[str, dict[str, Route]] = {
            "/health": {"GET": self._empty},
            "/ping": {"GET": self._empty, "POST": self._empty},
            "/load": {"GET": self._load},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics},
            "/metrics/": {"GET": self._metrics},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/v1/models": {"GET": self._models},
            "/v1/completions": {"POST": self._completions},
            "/v1/chat/completions": {"POST": self._chat},
        }
        if config.dev_mode:
            self._routes |= {
                "/reset_prefix_cache": {"POST": self._reset},
                "/reset_mm_cache": {"POST": self._reset_images},
                "/reset_encoder_cache": {"POST": self._empty},
                "/is_sleeping": {"GET": self._is_sleeping},
                "/server_info": {"GET": self._server_info},
            }

    async def __call__(self, request: Request, response: Response) -> None:
        path = request.path
        if not self._authorized(request, path):
            response.send(401, orjson.dumps({"error": "Unauthorized"}))
            return
        methods = self._routes.get(path)
        if methods is None and path != "/" and path.rstrip("/") in self._routes:
            here = request.headers.get("host", f"{self.config.host}:{self.config.port}")
            target = request.target.replace(path, path.rstrip("/"), 1)
            response.send(307, content_type=None, headers=(("location", f"http://{here}{target}"),))
        elif methods is None:
            response.send(404, orjson.dumps({"detail": "Not Found"}))
        elif request.method not in methods:
            allowed = (("allow", ", ".join(methods)),)
            response.send(405, orjson.dumps({"detail": "Method Not Allowed"}), headers=allowed)
        else:
            try:
                await methods[request.method](request, response)
            except RefusedError as refusal:
                response.send(refusal.status, orjson.dumps(refusal.body()))

    def _authorized(self, request: Request, path: str) -> bool:
        key = self.config.api_key
        if key is None or not path.startswith(_GUARDED) or request.method == "OPTIONS":
            return True
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        expected = key.get_secret_value().encode()
        return scheme.lower() == "bearer" and secrets.compare_digest(token.encode(), expected)

    # plain routes

    async def _empty(self, _: Request, response: Response) -> None:
        response.send(200, content_type=None)

    async def _version(self, _: Request, response: Response) -> None:
        response.send(200, orjson.dumps({"version": VLLM_VERSION}))

    async def _load(self, _: Request, response: Response) -> None:
        load = sum(rank.scheduler.running + rank.scheduler.waiting for rank in self.engine.ranks)
        response.send(200, orjson.dumps({"server_load": load}))

    async def _is_sleeping(self, _: Request, response: Response) -> None:
        response.send(200, orjson.dumps({"is_sleeping": False}))

    async def _server_info(self, _: Request, response: Response) -> None:
        shown = self.config.model_dump(mode="json", exclude={"api_key"})
        response.send(200, orjson.dumps({"simulator": shown}))

    async def _metrics(self, _: Request, response: Response) -> None:
        response.send(200, self.engine.metrics.text(), _METRICS_TEXT)

    async def _models(self, _: Request, response: Response) -> None:
        now = int(time.time())
        permission = {
            "id": f"modelperm-{secrets.token_hex(8)}",
            "object": "model_permission",
            "created": now,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        model = {
            "id": self.config.model_name,
            "object": "model",
            "created": now,
            "owned_by": "vllm",
            "root": self.config.tokenizer,
            "parent": None,
            "max_model_len": self.config.max_model_len,
            "permission": [permission],
        }
        response.send(200, orjson.dumps({"object": "list", "data": [model]}))

    async def _reset(self, request: Request, response: Response) -> None:
        try:
            query = _ResetQuery.model_validate(request.query)
        except ValidationError as error:
            raise validation_error(error, "query") from error
        done = self.engine.reset(reset_running=query.reset_running_requests)
        response.send(200, orjson.dumps({"success": done}))

    async def _reset_images(self, _: Request, response: Response) -> None:
        self.engine.reset_images()
        response.send(200, content_type=None)

    async def _tokenize(self, request: Request, response: Response) -> None:
        body = read_tokenize(self._json(request))
        self._check_model(body.model)
        if isinstance(body, TokenizeBody):
            ids = self._encode(body.prompt, body.add_special_tokens)
        else:
            ids, _ = self._conversation(body)
        strings = [self.tokenizer.decode([token]) for token in ids] if body.return_token_strs else None
        answer = {
            "count": len(ids),
            "max_model_len": self.config.max_model_len,
            "tokens": ids,
            "token_strs": strings,
        }
        response.send(200, orjson.dumps(answer))

    async def _detokenize(self, request: Request, response: Response) -> None:
        body = read_body(DetokenizeBody, self._json(request))
        self._check_model(body.model)
        known = [token for token in body.tokens if token < self.tokenizer.vocab_size]
        response.send(200, orjson.dumps({"prompt": self.tokenizer.decode(known)}))

    # generation

    async def _completions(self, request: Request, response: Response) -> None:
        body = read_generation(CompletionBody, self._json(request))
        self._check_model(body.model)
        self._check_most_output(body.max_tokens)
        if body.prompt == []:
            raise RefusedError("You must pass at least one prompt")
        await self._generate(
            request, response, CompletionReply, body, self._prompt_ids(body), body.max_tokens
        )

    async def _chat(self, request: Request, response: Response) -> None:
        body = read_generation(ChatBody, self._json(request))
        self._check_model(body.model)
        asked = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
        if asked is not None:
            self._check_most_output(asked)
        ids, spans = self._conversation(body)
        self._checked_length(ids[: self.config.max_model_len + 1])
        limit = self.config.max_model_len if asked is None else asked
        await self._generate(request, response, ChatReply, body, [ids], limit, spans)

    async def _generate(
        self,
        request: Request,
        response: Response,
        style: type[CompletionReply] | type[ChatReply],
        body: CompletionBody | ChatBody,
        prompts: list[list[int]],
        most: int,
        spans: tuple[Span, ...] = (),
    ) -> None:
        room = [min(most, self.config.max_model_len - len(ids)) for ids in prompts]
        for max_tokens in room:
            check_sampling(body, max_tokens)
        name = body.request_id or request.headers.get("x-request-id") or secrets.token_hex(8)
        call = Call(
            body,
            f"{style.prefix}-{name}",
            int(time.time()),
            prompts,
            room,
            () if body.cache_salt is None else ("salt", body.cache_salt),
            _rank(request.headers.get("x-data-parallel-rank")),
            spans,
        )
        await (self._stream if body.stream else self._whole)(style, call, response)

    def _submit(self, call: Call, deliver: Callable[[Emission], None]) -> Submission:
        """Hand a call to the engine, after the checks that the engine makes itself."""
        if call.rank is not None and not 0 <= call.rank < self.config.ranks:
            ranks = self.config.ranks
            raise RefusedError(f"data_parallel_rank {call.rank} is out of range [0, {ranks}).")
        for ids in call.prompts:
            if not ids:
                raise RefusedError("The decoder prompt cannot be empty")
            if max(ids) >= self._vocab_size:
                raise RefusedError(f"Token id {max(ids)} is out of vocabulary")
        prompts = [Prompt(np.array(ids, dtype=np.int32), call.extra_keys, call.spans) for ids in call.prompts]
        return self.engine.submit(
            prompts, n=call.body.n, max_tokens=call.max_tokens, rank=call.rank, deliver=deliver
        )

    async def _whole(
        self, style: type[CompletionReply] | type[ChatReply], call: Call, response: Response
    ) -> None:
        arrivals: asyncio.Queue[Emission] = asyncio.Queue()
        answers: list[list[int]] = [[] for _ in range(call.sequences)]
        submission = self._submit(call, arrivals.put_nowait)
        left, cached = call.sequences, 0
        try:
            while left:
                token = await arrivals.get()
                answers[token.index].append(token.token_id)
                if token.last:
                    left -= 1
                    # vLLM reports the hits of the last prompt alone.
                    if token.index >= call.sequences - call.body.n:
                        cached = token.cached_tokens
        finally:
            submission.abort()
        response.send(200, orjson.dumps(style.whole(self.frame, call, answers, cached)))

    async def _stream(
        self, style: type[CompletionReply] | type[ChatReply], call: Call, response: Response
    ) -> None:
        response.start_stream(_EVENT_STREAM)
        arrivals: asyncio.Queue[Emission] = asyncio.Queue()
        try:
            submission = self._submit(call, arrivals.put_nowait)
        except RefusedError as refusal:
            # The status line is out already, so vLLM sends the error as an event, and with spaces.
            error = json.dumps(refusal.body()).encode()
            await response.write(b"data: " + error + b"\n\n" + _DONE)
            response.finish()
            return
        reply = style(self.frame, call)
        left = call.sequences
        try:
            while left:
                tokens = [await arrivals.get()]
                while not arrivals.empty():
                    tokens.append(arrivals.get_nowait())
                left -= sum(token.last for token in tokens)
                pieces = [reply.chunk(token) for token in tokens]
                if not left:
                    pieces += [reply.usage_chunk(), _DONE]
                await response.write(b"".join(pieces))
        finally:
            submission.abort()
        response.finish()

    # checks and tokens

    def _json(self, request: Request) -> Any:
        return read_json(request.body, request.headers.get("content-type", ""))

    def _check_model(self, model: str | None) -> None:
        name = self.config.model_name
        if model and model != name:
            raise RefusedError(
                f"The model `{model}` does not exist. Valid aliases: {name}.",
                param="model",
                status=404,
                kind="NotFoundError",
            )

    def _check_most_output(self, asked: int) -> None:
        longest = self.config.max_model_len
        if asked > longest:
            raise refused_value(
                f"max_tokens={asked} cannot be greater than max_model_len={longest}. "
                "Please request fewer output tokens.",
                "max_tokens",
                asked,
            )

    def _checked_length(self, ids: list[int]) -> list[int]:
        longest = self.config.max_model_len
        if len(ids) > longest:
            # vLLM stops counting a text one token past the limit.
            least = "at least " if len(ids) == longest + 1 else ""
            raise refused_value(
                f"This model's maximum context length is {longest} tokens. However, your prompt contains "
                f"{least}{len(ids)} input tokens, which exceeds this limit even without any output tokens. "
                "Please reduce the length of the input prompt.",
                "input_tokens",
                len(ids),
            )
        return ids

    def _encode(self, text: str, special: bool) -> list[int]:
        return self.tokenizer.encode_for_server(text) if special else self.tokenizer.encode(text)

    def _encode_bounded(self, text: str, special: bool) -> list[int]:
        return self._encode(text, special)[: self.config.max_model_len + 1]

    def _prompt_ids(self, body: CompletionBody) -> list[list[int]]:
        prompt = body.prompt
        items: Sequence[Any] = prompt if isinstance(prompt, list) else [prompt]
        if isinstance(items[0], int):
            items = [items]
        return [
            self._checked_length(
                self._encode_bounded(item, body.add_special_tokens) if isinstance(item, str) else item
            )
            for item in items
        ]

    def _conversation(self, body: ChatBody | TokenizeChatBody) -> tuple[list[int], tuple[Span, ...]]:
        """Token ids of the conversation in ChatML, which stands for whatever template a real model brings; its images."""
        if not body.messages:
            raise RefusedError(
                "Cannot apply chat template to an empty conversation. Provide at least one message."
            )
        pieces: list[str | SeenImage] = []
        for turn in body.messages:
            pieces += [f"<|im_start|>{turn.role}\n", *self._content(turn), "<|im_end|>\n"]
        if body.add_generation_prompt:
            pieces.append("<|im_start|>assistant\n")
        if not any(isinstance(piece, SeenImage) for piece in pieces):
            return self._encode_bounded("".join(map(str, pieces)), body.add_special_tokens), ()
        return self._with_images(pieces, body.add_special_tokens)

    def _with_images(
        self, pieces: Sequence[str | SeenImage], special: bool
    ) -> tuple[list[int], tuple[Span, ...]]:
        """Each piece encoded by itself: in a real template they are told apart by special tokens."""
        ids: list[int] = self._encode("", special)
        spans = []
        for piece in pieces:
            if isinstance(piece, SeenImage):
                spans.append(Span(len(ids), piece))
                ids += [self._placeholder] * piece.tokens
            else:
                ids += self.tokenizer.encode(piece)
        return ids, tuple(spans)

    def _content(self, message: Message) -> list[str | SeenImage]:
        if message.content is None or isinstance(message.content, str):
            return [message.content or ""]
        texts = [part.text for part in message.content if part.image_url is None]
        images = [part.image_url.url for part in message.content if part.image_url is not None]
        if None in texts or (images and self.images is None):
            raise RefusedError(f"{self.config.model_name} is not a multimodal model")
        if self.images is None or not images:
            return ["\n".join(text or "" for text in texts)]
        return [
            (part.text or "") if part.image_url is None else self.images.read(part.image_url.url)
            for part in message.content
        ]


def _rank(header: str | None) -> int | None:
    """The rank of the header; what is no number is ignored without a word, as vLLM does."""
    if header is None:
        return None
    try:
        return int(header)
    except ValueError:
        return None
