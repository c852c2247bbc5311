"""A server whose answers come in pieces, or never come to an end."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import repeat

GENEROUS_SECONDS = 20.0


@contextmanager
def trickling_server(pieces: Callable[[], Iterator[bytes]], pause: float = 0.01) -> Iterator[str]:
    """Sends the pieces to whoever connects, with a pause after each, until they or the client end."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                try:
                    connection.recv(1 << 16)
                    for piece in pieces():
                        connection.sendall(piece)
                        if over.wait(pause):
                            return
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(GENEROUS_SECONDS)


def behind(head: bytes, piece: bytes) -> Callable[[], Iterator[bytes]]:
    """A head, and then the same piece for ever."""

    def pieces() -> Iterator[bytes]:
        yield head
        yield from repeat(piece)

    return pieces


TRICKLING = {
    "status line": behind(b"H", b"T"),
    "header": behind(b"HTTP/1.1 200 OK\r\nX: ", b"y"),
    "headers": behind(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
    "100 Continue": behind(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "body with a length": behind(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b"a"),
    "body until the connection ends": behind(b"HTTP/1.1 200 OK\r\n\r\n", b"a"),
    "chunks": behind(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    "nothing": behind(b"", b""),
}
