from itertools import pairwise

from hypothesis import example, given, settings
from hypothesis import strategies as st

from runner.drivers.native.sse import Event, SseReader


def read(*pieces, finish=False):
    reader = SseReader()
    events = [event for piece in pieces for event in reader.feed(piece)]
    return events + (reader.finish() if finish else [])


def test_fields_comments_and_several_data_lines():
    text = b": ping\nid: 7\nretry: 10\nevent: error\ndata: one\ndata:two\ndata:  three\n\n"
    text += b'data\n\n\n: x\n\ndata: {"a":": "}\n\n'
    assert read(text) == [
        Event(b"error", b"one\ntwo\n three"),
        Event(b"message", b""),
        Event(b"message", b'{"a":": "}'),
    ]


def test_an_open_event_appears_only_at_the_end():
    assert read(b"data: [DONE]\n") == []
    assert read(b"data: [DONE]\n", finish=True) == [Event(b"message", b"[DONE]")]
    assert read(b"data: [DONE]", finish=True) == [Event(b"message", b"[DONE]")]
    assert read(b"data: a\n\n", finish=True) == [Event(b"message", b"a")]


def test_events_one_by_one_and_mixed_with_pieces():
    expected = [
        Event(b"message", b"1"),
        Event(b"error", b"2"),
        Event(b"message", b"3\n4"),
        Event(b"message", b"5"),
    ]
    assert (
        read(b"data: 1\n\n", b"event: error\n", b"data: 2\n\n", b"data: 3\n", b"data: 4\n\n", b"data: 5\n\n")
        == expected
    )
    assert read(b"da", b"data: 1\n\n") == []
    assert read(b": x\r", b"data: 1\n\n") == [Event(b"message", b"1")]


def test_byte_order_mark():
    assert read(b"\xef\xbb", b"\xbfdata: a\n\n") == [Event(b"message", b"a")]


LINE = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=8)
LINES = st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=5)


@settings(deadline=None)
@given(LINES, st.sampled_from(["\n", "\r\n", "\r"]), st.data())
@example([["a"], ["b"]], "\r\n", None)
def test_split_anywhere_and_any_line_end(messages, newline, data):
    text = "".join(
        "".join(f"data: {line}{newline}" for line in lines) + newline for lines in messages
    ).encode()
    expected = [Event(b"message", "\n".join(lines).encode()) for lines in messages]
    assert read(text) == expected
    assert read(*(text[i : i + 1] for i in range(len(text)))) == expected
    if data is not None:
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
        bounds = [0, *cuts, len(text)]
        assert read(*(text[a:b] for a, b in pairwise(bounds))) == expected
