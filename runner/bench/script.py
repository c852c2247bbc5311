"""From described requests to the conversations that are sent; sessions grow as answers come."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import orjson

from prompts.words import Texts
from runner.drivers.native.lanes import OutgoingRequest
from runner.request_bodies import most_output_tokens
from runner.workloads.plan import Message, Phase, Plan, Request, Words

ChatMessage = dict[str, str]


class Script:
    """The texts of a plan. What a session remembers grows while its requests are answered.

    Args:
        fixed: fields that every request body has.
    """

    def __init__(self, plan: Plan, texts: Texts, fixed: Mapping[str, Any]) -> None:
        self._texts = texts
        self._fixed = dict(fixed)
        self._make(message for messages in plan.sessions.values() for message in messages)
        self._said = {name: [self._written(m) for m in messages] for name, messages in plan.sessions.items()}
        self._heard: dict[str, int] = {}
        self._keep = frozenset(plan.samples)
        self.answers: dict[str, str] = {}
        """Request id -> answer, of those that are scored."""

    def write(self, phase: Phase) -> None:
        """Make all texts of a phase, so that none is made while requests run."""
        self._make(message for request in phase.requests for message in request.messages)

    def outgoing(self, phase: Phase, first_position: int) -> Iterator[OutgoingRequest]:
        for position, request in enumerate(phase.requests, start=first_position):
            listens = request.remember or request.request_id in self._keep
            yield OutgoingRequest(
                position=position,
                request_id=request.request_id,
                group=request.group,
                body=partial(self._body, request),
                lane=request.session,
                on_answer=partial(self._answered, request) if listens else None,
                most_output_tokens=most_output_tokens(request.max_tokens, self._fixed),
            )

    def sent(self, request: Request) -> list[ChatMessage]:
        """The conversation as it was sent, or would be sent now."""
        own = [self._written(message) for message in request.messages]
        if request.session is None:
            return own
        said = self._said[request.session]
        return said[: self._heard.get(request.request_id, len(said))] + own

    def _body(self, request: Request) -> bytes:
        chat = self.sent(request)
        if request.session is not None:
            self._heard[request.request_id] = len(self._said[request.session])
        return orjson.dumps({**self._fixed, "messages": chat, "max_tokens": request.max_tokens})

    def _answered(self, request: Request, answer: str) -> None:
        """A failed request is not remembered: the user would not have got an answer to go on from."""
        if request.request_id in self._keep:
            self.answers[request.request_id] = answer
        if request.remember and request.session is not None:
            own = [self._written(message) for message in request.messages]
            self._said[request.session] += [*own, {"role": "assistant", "content": answer}]

    def _make(self, messages: Iterable[Message]) -> None:
        self._texts.make(
            (part.key, part.tokens, part.opening)
            for message in messages
            for part in message.parts
            if isinstance(part, Words)
        )

    def _written(self, message: Message) -> ChatMessage:
        parts = (
            self._texts.text(part.key, part.tokens, part.opening) if isinstance(part, Words) else part.text
            for part in message.parts
        )
        return {"role": message.role, "content": message.separator.join(parts)}
