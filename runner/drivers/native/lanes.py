"""Which request may start next: final order, one at a time per lane. Pure; knows nothing of time or network."""

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from contract.errors import DriverError


class OutgoingRequest(NamedTuple):
    """A request ready to be sent.

    Attributes:
        position: place in the final order.
        body: the JSON, or a function that makes it when the request starts, whole or in pieces that are sent one after
            another (so that a large part may be the same object in many requests). With a function a waiting
            request costs a few hundred bytes whatever the length of its prompt.
        lane: requests of one lane run one at a time, in order; None: no lane.
        dp_rank: sent as header `X-data-parallel-rank`; None: the server chooses.
        lane_sequence: place within the lane; must rise.
        most_output_tokens: how many it allows the engine to write; None: not known.
        on_answer: called with the text of a complete answer, before the lane goes on, so that the next request of the
            lane may build on it. None: the text is not kept.
    """

    position: int
    request_id: str
    group: str
    body: bytes | Callable[[], bytes | tuple[bytes, ...]]
    lane: Hashable | None = None
    dp_rank: int | None = None
    lane_sequence: int | None = None
    on_answer: Callable[[str], None] | None = None
    most_output_tokens: int | None = None


class LaneQueue:
    """Hands out requests in final order; those whose lane is busy wait aside without holding anything up.

    Reading ahead is what lets a later request of a free lane go first. Waiting requests that carry their body as
    bytes are limited to `concurrency` plus the number of lanes seen, so that memory stays flat; when that many wait,
    nothing more is read until a lane moves on. Requests with a body function are not limited: orders that keep a
    lane's requests together (all of one group, then the next) need to read far ahead to fill the slots.

    It cannot lock up: a waiting request waits for its lane alone, and a lane is busy only through a request that
    runs or that `take` will return next.
    """

    def __init__(self, requests: Iterable[OutgoingRequest], concurrency: int) -> None:
        self._requests = iter(requests)
        self._concurrency = concurrency
        self._busy: dict[Hashable, deque[tuple[int, OutgoingRequest]]] = {}
        self._ready: list[tuple[int, OutgoingRequest]] = []
        self._last_sequence: dict[Hashable, int] = {}
        self._read = 0
        self._held_bodies = 0
        self._exhausted = False
        self.waiting = 0
        """Requests that wait for their lane now."""
        self.have_waited = 0
        """Requests that had to wait for their lane so far."""

    @property
    def left(self) -> bool:
        """Whether requests are left to hand out, as far as it has been read."""
        return bool(self._ready) or self.waiting > 0 or not self._exhausted

    def take(self) -> OutgoingRequest | None:
        """The earliest request that may start; its lane is busy until `release`. None: none now, or none left.

        Raises:
            DriverError: a lane's requests are not in the order of `lane_sequence`.
        """
        if self._ready:
            _, request = heapq.heappop(self._ready)
            self._held_bodies -= isinstance(request.body, bytes)
            return request
        while not self._exhausted and self._held_bodies < self._concurrency + len(self._last_sequence):
            request = next(self._requests, None)  # type: ignore[assignment]
            if request is None:
                self._exhausted = True
                return None
            self._read += 1
            if request.lane is None:
                return request
            self._check_sequence(request)
            queue = self._busy.get(request.lane)
            if queue is None:
                self._busy[request.lane] = deque()
                return request
            self._set_aside(queue, request)
        return None

    def offer(self, request: OutgoingRequest) -> None:
        """Add a request that has just arrived; `take` hands it out once its lane is free.

        Raises:
            DriverError: as `take`.
        """
        self._read += 1
        if request.lane is not None:
            self._check_sequence(request)
            queue = self._busy.get(request.lane)
            if queue is not None:
                self._set_aside(queue, request)
                return
            self._busy[request.lane] = deque()
        self._held_bodies += isinstance(request.body, bytes)
        heapq.heappush(self._ready, (self._read, request))

    def release(self, request: OutgoingRequest) -> None:
        """The request is over; the next of its lane may start."""
        if request.lane is None:
            return
        queue = self._busy[request.lane]
        if queue:
            heapq.heappush(self._ready, queue.popleft())
            self.waiting -= 1
        else:
            del self._busy[request.lane]

    def _set_aside(self, queue: deque[tuple[int, OutgoingRequest]], request: OutgoingRequest) -> None:
        queue.append((self._read, request))
        self.waiting += 1
        self.have_waited += 1
        self._held_bodies += isinstance(request.body, bytes)

    def _check_sequence(self, request: OutgoingRequest) -> None:
        last = self._last_sequence.get(request.lane, -1)
        sequence = request.lane_sequence if request.lane_sequence is not None else last + 1
        if sequence <= last:
            raise DriverError(
                f"request {request.request_id} (position {request.position}) comes after number {last} of its lane "
                f"but is number {sequence}; the rows are not in final order, prepare them again"
            )
        self._last_sequence[request.lane] = sequence
