import math
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from contract.errors import ServiceError
from enginemetrics import parse_exposition
from enginemetrics.exposition import _plain_sample


def test_label_values_may_hold_braces_quotes_and_line_separators():
    text = 'a{x="1}",y="q\\"{,",z="\u2028"} 3\nb 4\n'
    samples = parse_exposition(text)
    assert [(s.name, s.labels, s.value) for s in samples] == [
        ("a", {"x": "1}", "y": 'q"{,', "z": "\u2028"}, 3),
        ("b", {}, 4),
    ]


def test_nan_and_infinity_are_values():
    values = [s.value for s in parse_exposition("a NaN\nb +Inf\nc -Inf\n")]
    assert math.isnan(values[0])
    assert values[1:] == [math.inf, -math.inf]


def test_buckets_can_be_left_out():
    text = 'a_bucket{le="1"} 3\na_sum{x="_bucket{"} 4\na_bucket_total 5\na_bucket 6\n'
    assert [s.value for s in parse_exposition(text)] == [3, 4, 5, 6]
    assert [s.value for s in parse_exposition(text, buckets=False)] == [4, 5, 6]


@pytest.mark.parametrize("name", ["x:queries", "x:queries_total"])
@pytest.mark.parametrize("type_line", ["", "# TYPE {} counter\n", "# TYPE {} gauge\n"])
def test_names_stay_as_exposed(name, type_line):
    text = f"{type_line.format(name)}{name} 5\n"
    assert [s.name for s in parse_exposition(text)] == [name]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("<html><body>", "<html>"),
        ('a{x="1" 5', "a{x="),
        ("a{x=1} 5", "a{x=1}"),
        ("a five", "a five"),
        ("a", "'a'"),
        ('{"detail":"Not Found"}', "Not Found"),
        ("1abc 5", "1abc"),
    ],
)
def test_broken_text_names_source_and_line(line, shown):
    with pytest.raises(ServiceError) as caught:
        parse_exposition(f"# HELP a b\ngood 1\n{line}\ngood 2\n", source="http://e/metrics")
    message = str(caught.value)
    assert message.startswith("http://e/metrics: line 3 ")
    assert shown in message
    assert "\n" not in message


@settings(deadline=None)
@given(st.text(max_size=200) | st.text('ab_:{}="\\, \t\n#1.', max_size=60))
def test_any_text_parses_or_is_refused(text):
    # Anything but a ServiceError fails the test.
    with suppress(ServiceError):
        assert len(parse_exposition(text)) <= text.count("\n") + 1


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.text(min_size=0, max_size=12), st.floats(allow_nan=False)),
        unique_by=lambda pair: pair[0],
        max_size=8,
    )
)
def test_round_trip_through_the_official_writer(series):
    # Surrogates cannot be written as UTF-8 and are never part of a scrape.
    series = [(label, value) for label, value in series if label.isprintable()]
    registry = CollectorRegistry()
    gauge = Gauge("vllm:thing", "A thing\nwith } and \\", ["k"], registry=registry)
    for label, value in series:
        gauge.labels(label).set(value)
    samples = parse_exposition(generate_latest(registry).decode())
    assert {(s.labels["k"], s.value) for s in samples} == set(series)


NUMBERS = [
    "5",
    "5.0",
    "+5",
    "-0",
    "1e3",
    "9007199254740993",
    "NaN",
    "+Inf",
    "-Inf",
    "Inf",
    "1.2.3",
    "1_0",
    "e",
    "--1",
]
LINES = st.one_of(
    st.builds(
        lambda name, labels, comma, gap, number: f"{name}{{{','.join(labels)}{comma}}}{gap}{number}",
        st.sampled_from(["a", "vllm:x_total", "_a", "1a", "a-b", ""]),
        st.lists(
            st.builds(
                lambda name, value: f'{name}="{value}"',
                st.sampled_from(["x", "y", "engine", "_z", "__name__", "__z", "a:b", "1", ""]),
                st.text(alphabet='ab}{,= #\\"\u2028é', max_size=4),
            ),
            max_size=3,
        ),
        st.sampled_from(["", ","]),
        st.sampled_from([" ", "", "  ", "\t"]),
        st.sampled_from([*NUMBERS, "5 1700000000000", "5 # {} 1"]),
    ),
    st.builds(
        "{}{}{}".format,
        st.sampled_from(["a", "a:b", "1a", ""]),
        st.sampled_from([" ", "\t"]),
        st.sampled_from(NUMBERS),
    ),
    st.text(alphabet='ax:{}=",\\ 15.e+N', max_size=14),
)


@given(line=LINES)
@settings(max_examples=300)
def test_a_plain_line_means_what_the_client_library_reads(line):
    """The short way takes a line or leaves it; what it takes, the library reads alike, to the type of the number."""
    sample = _plain_sample(line)
    if sample is None:
        return
    (family,) = text_string_to_metric_families(line)
    assert repr(family.samples) == repr([sample])


def test_what_engines_write_is_plain():
    for line in (
        'vllm:prefix_cache_queries_total{engine="0",model_name="demo"} 1024.0',
        "process_start_time_seconds 1.76e+09",
        'a{x="1}",y="{,",z="\u2028"} NaN',
    ):
        assert _plain_sample(line) is not None
