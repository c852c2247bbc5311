"""The page: parsed as a browser would, from measurements made by hand."""

import base64
import hashlib
import time
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jinja2 import Environment

from analyzer.analyze import analyze_measurement
from analyzer.offline import analyze_scrapes
from analyzer.report_page import render, write_report
from contract.documents import read_document
from contract.errors import ArtifactError
from contract.manifest import Manifest
from contract.measurement import Finding, PhaseRecord
from contract.records import REQUEST_SCHEMA, RequestRecord
from contract.run_directory import MeasurementDirectory
from contract.streams import KV_SAMPLE_SCHEMA
from contract.warnings import WARNING_TEXTS
from tests.analyzer.conftest import Made, Make
from tests.analyzer.synthetic import edit_analysis, edit_measurement

STAMP = "20260101_000000"
VOID = {"meta", "br", "hr", "img", "input", "link"}
SCRIPT = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Elements with their attributes, the text, and the rows of each table by its caption."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.text = ""
        self.style = ""
        self._open: list[str] = []
        self._caption = ""
        self.feed(html)
        self.close()
        assert self._open == [], "every element is closed"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self._open.append(tag)
        if tag == "caption":
            self._caption = ""
        elif tag == "tr":
            self.tables.setdefault(self._caption, []).append([])
        elif tag in ("th", "td"):
            self.tables[self._caption][-1].append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] == "style":
            self.style += data
            return
        self.text += data
        if "caption" in self._open:
            self._caption += data
        elif "th" in self._open or "td" in self._open:
            self.tables[self._caption][-1][-1] += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def row(self, caption: str, name: str) -> list[str]:
        return next(
            [cell.strip() for cell in row] for row in self.tables[caption] if row and row[0].strip() == name
        )


PHASES = [
    PhaseRecord(name="precheck", started_at="2026-01-01T00:00:00+00:00", finished_at="2026-01-01T00:00:02+00:00"),
    PhaseRecord(name="formal", started_at="2026-01-01T00:00:02+00:00", finished_at="2026-01-01T00:00:32+00:00"),
    PhaseRecord(name="settle", started_at="2026-01-01T00:00:32+00:00"),
]  # fmt: skip


def write_samples(directory: MeasurementDirectory, ranks: int, count: int = 20, **columns: Any) -> None:
    rows = [(at, rank) for at in range(count) for rank in range(ranks)]
    values = {
        "elapsed_seconds": [at * 1.5 for at, _ in rows],
        "dp_rank": [rank for _, rank in rows],
        "kv_cache_usage": [0.01 * (at % 7) + 0.001 * rank for at, rank in rows],
        "requests_running": [at % 5 for at, _ in rows],
        "requests_waiting": [(at * rank) % 3 for at, rank in rows],
    }
    values |= {name: [value] * len(rows) for name, value in columns.items()}
    pq.write_table(pa.table(values, schema=KV_SAMPLE_SCHEMA), directory.kv_samples)
    edit_measurement(directory)


def reported(made: Made, records: list[RequestRecord] | None = None, **more: Any) -> Page:
    """Write the measurement, analyse it, and read its page."""
    directory = made.write(records, **{"phases": PHASES, **more})
    write_samples(directory, made.ranks)
    return page_of(made.manifest, directory)


def page_of(manifest: Manifest, directory: MeasurementDirectory) -> Page:
    analyze_measurement(manifest, directory.stamp)
    return Page(write_report(manifest, directory).read_text(encoding="utf-8"))


def spread(made: Made) -> list[RequestRecord]:
    """Records whose times differ."""
    return [
        item._replace(
            ttft_s=0.05 + 0.01 * number, e2el_s=0.3 + 0.02 * number, itl_s=(0.01, 0.02 + 0.001 * number)
        )
        for number, item in enumerate(made.records())
    ]


# --- what is there ---------------------------------------------------------------------------------------------------


def test_an_exact_run_is_told_on_one_page(make: Make) -> None:
    made = make("cold-2")
    page = reported(made, spread(made))
    hits = sum(row["theoretical_hit_tokens"] for row in made.rows)
    assert (
        f"Equal to the token: theory, prediction and 4 ledgers of the engine say {hits:,} hit tokens"
        in page.text
    )
    headings = [tag for tag, _ in page.elements if tag in ("h1", "h2")]
    assert headings == ["h1"] + ["h2"] * 7
    assert {attributes["id"] for attributes in page.all("figure")} == {
        f"chart-{name}" for name in ("cumulative", "ttft-by-share", "ttft", "tpot", "itl", "e2el", "engine")
    }
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(set(ids)) == len(ids), "no two elements share an id, drawings included"
    for group in made.manifest.document["groups"]:
        planned = made.manifest.document["theory"]["groups"][group]["hit_tokens"]
        row = page.row("Groups: planned, and as the answers report it", group)
        assert row[3] == f"{planned:,}"
        assert row[6] == f"✓ {planned:,}"
    for rank in ("0", "1"):
        planned = made.manifest.document["theory"]["dp"][rank]["hit_tokens"]
        assert page.row("Ranks: as the counters report it", f"rank {rank}")[2] == f"{planned:,}"
    assert page.row("Phases of the run", "formal")[2] == "30.0 s"
    assert "not known" in page.row("Phases of the run", "settle")[2]


def test_commands_repeat_the_run(make: Make) -> None:
    made = make("cold-2")
    page = reported(made, overrides={"engine.kind": "simulator", "driver.kind": "native"})
    manifest, scenario = made.manifest.directory.manifest, made.manifest.document["scenario_path"]
    for command in (
        f"hitlab prepare --scenario {scenario} --mode text",
        f"hitlab validate --manifest {manifest}",
        f"hitlab run --scenario {scenario} --manifest {manifest} --driver native --engine simulator",
        f"hitlab analyze --manifest {manifest} --measurement {STAMP}",
    ):
        assert command in page.text
    assert str(made.manifest.effective_config["run"]["random_seed"]) in page.text
    assert "0.32.0" in page.text


def test_every_chart_and_table_says_what_it_is(make: Make) -> None:
    made = make("cold-2")
    page = reported(made, spread(made))
    drawings = page.all("svg")
    assert drawings
    for drawing in drawings:
        assert drawing["role"] == "img"
        assert len(drawing["aria-label"] or "") > 20
    assert len(page.all("caption")) == len(page.all("table")) == len(page.tables)
    assert "" not in page.tables
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    assert page.all("html") == [{"lang": "en"}]


def test_equal_input_gives_equal_bytes(make: Make) -> None:
    made = make("cold-2")
    reported(made)
    directory = MeasurementDirectory(made.manifest.directory.runs / STAMP)
    first = directory.report.read_bytes()
    assert write_report(made.manifest, directory).read_bytes() == first


# --- nothing from outside --------------------------------------------------------------------------------------------


def test_the_page_loads_nothing_and_runs_nothing(make: Make) -> None:
    page = reported(make("cold-2"))
    tags = {tag for tag, _ in page.elements}
    assert not tags & {
        "script",
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
        "image",
        "use",
        "a",
    }
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name not in ("src", "href", "xlink:href", "style", "srcset", "action"), (tag, name)
            assert "url(" not in (value or ""), (tag, name)
    assert "url(" not in page.style
    assert "@import" not in page.style
    (policy,) = (
        attributes["content"]
        for attributes in page.all("meta")
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    digest = base64.b64encode(hashlib.sha256(page.style.encode()).digest()).decode()
    assert policy == (f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'")


def texts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Where each text of a document is: its container and its key."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(item, str):
            yield value, key
        elif isinstance(item, dict | list):
            yield from texts(item)


def test_planted_markup_is_only_text(make: Make) -> None:
    made = make("cold-2")
    records = made.records()
    records[3] = records[3]._replace(
        error_kind="http", error_text=f"\"{SCRIPT}'", http_status=500, cached_tokens=None, prompt_tokens=None
    )
    directory = made.write(records, phases=PHASES, findings=[Finding(code="CONTAMINATED", message=SCRIPT)])
    write_samples(directory, made.ranks)
    analyze_measurement(made.manifest, STAMP)
    analysis = read_document(directory.analysis, "analysis")
    analysis["run_id"] = f"run{SCRIPT}"
    for reason in (analysis["actual"], analysis["ledgers"]["prediction"]["total"]):
        reason["reason"] = SCRIPT
    analysis["ledgers"]["differences"][0]["cause"] = SCRIPT
    analysis["prediction"]["caveats"] = [SCRIPT]
    analysis["warnings"].append({"code": SCRIPT, "message": "an unknown code"})
    edit_analysis(directory, analysis)
    measurement = read_document(directory.measurement, "measurement")
    measurement["engine"] |= {"model": f"model{SCRIPT}", "version": f"version{SCRIPT}"}
    measurement["error"] = f"error{SCRIPT}"
    measurement["preflight"] = [{"name": "tokenizer", "status": "ok", "detail": f"detail{SCRIPT}"}]
    edit_measurement(directory, **measurement)
    made.manifest.document["scenario_path"] = f"/tmp/{SCRIPT}.yaml"  # noqa: S108 - only a text
    html = write_report(made.manifest, directory).read_text(encoding="utf-8")
    assert "<script" not in html
    page = Page(html)
    for planted in ("run", "model", "version", "error", "detail", '"'):
        assert planted + SCRIPT in page.text
    assert page.text.count(SCRIPT) >= 12


def test_every_text_of_analysis_and_measurement_may_be_markup(make: Make) -> None:
    """Whichever field the page shows, now or later: none of them can open an element."""
    made = make("cold-2")
    records = made.records()
    records[0] = records[0]._replace(cached_tokens=0)
    directory = made.write(records, findings=[Finding(code="KV_CAPACITY", message="x")])
    analyze_measurement(made.manifest, STAMP)
    analysis = read_document(directory.analysis, "analysis")
    kept = {"status", "unit", "code", "quantity", "between", "strategy"}
    for container, key in list(texts({name: analysis[name] for name in analysis if name != "runtime"})):
        if key not in kept and not isinstance(key, int):
            container[key] = f"{container[key]}{SCRIPT}"
    for rate in (analysis["actual"]["global_hit_rate"], None):  # without a rate the headline gives the reason
        analysis["actual"] |= {"global_hit_rate": rate, "reason": f"reason{SCRIPT}"}
        edit_analysis(directory, analysis)
        html = render(made.manifest, directory)
        assert "<script" not in html
        assert "&lt;script&gt;" in html


# --- what is not known -----------------------------------------------------------------------------------------------


def test_unknown_values_have_their_reason_and_no_zero(make: Make) -> None:
    made = make("warmup-2")
    records = [item._replace(cached_tokens=None, ttft_s=None, itl_s=(), chunks=0) for item in made.records()]
    directory = made.write(records, version=None)
    page = page_of(made.manifest, directory)
    answers = page.row("Ledgers: the same traffic, counted in several ways", "answers (cached_tokens)")
    assert answers[1].startswith("not known")
    assert "--enable-prompt-tokens-details" in answers[1]
    assert answers[3] == answers[4] == "not known"
    for name in ("TTFT", "ITL"):
        row = page.row("Requests that were answered", name)
        assert row[1].startswith("not known")
        assert len(row[1]) > len("not known") + 10
        assert set(row[2:]) == {"not known"}
    rank = page.row("Ranks: as the counters report it", "rank 0")
    assert rank[4] == "not knownthe service chooses the ranks"
    assert rank[5].startswith("not knownno record says when a request was under way")
    assert "actual is not known" in page.text
    assert "the load was over before the first sample" in page.text
    assert "the engine does not report it" in page.text
    assert "chart-ttft-by-share" not in {attributes["id"] for attributes in page.all("figure")}
    assert "chart-ahead" not in {attributes["id"] for attributes in page.all("figure")}


def test_engine_without_a_gauge_says_so(make: Make) -> None:
    made = make("cold-2")
    directory = made.write(phases=PHASES)
    write_samples(directory, made.ranks, kv_cache_usage=None)
    page = page_of(made.manifest, directory)
    assert "Not known, because the engine does not report: KV cache usage." in page.text


def test_two_scrapes_alone_have_a_page(make: Make, tmp_path: Path) -> None:
    made = make("cold-2")
    directory = made.write()
    before, after = (path.rename(tmp_path / path.name) for path in (directory.baseline, directory.after))
    analysis = analyze_scrapes(made.manifest, before, after)
    (entry,) = (
        MeasurementDirectory(root) for root in made.manifest.directory.runs.iterdir() if root.name != STAMP
    )
    page = Page(write_report(made.manifest, entry).read_text(encoding="utf-8"))
    assert analysis.document["status"] == "analyzed"
    assert page.all("svg") == []
    assert "two saved scrapes were analysed, which hold no requests" in page.text
    assert f"--baseline {entry.baseline} --after {entry.after}" in page.text


def test_no_analysis_is_an_error_with_advice(make: Make) -> None:
    made = make("cold-2")
    directory = made.write()
    with pytest.raises(ArtifactError, match="no such analysis"):
        write_report(made.manifest, directory)
    assert not directory.report.exists()


# --- what went wrong -------------------------------------------------------------------------------------------------


def test_failed_and_void_requests_are_marked_and_counted(make: Make) -> None:
    made = make("cold-2")
    records = made.records()
    records[0] = records[0]._replace(
        error_kind="timeout", error_text="nothing came", prompt_tokens=None, cached_tokens=None, ttft_s=None
    )
    page = reported(made, records)
    first = made.rows[0]
    lane = [
        row for row in made.rows if (row["group_id"], row["dp_rank"]) == (first["group_id"], first["dp_rank"])
    ]
    assert len(lane) > 1
    assert f"1 failed or not sent  {len(lane)} void in all" in page.text
    assert f"1 of 24 requests failed; the theory of {len(lane)} requests is void." in page.text
    assert "failed: request 1" in page.text, "the mark in the curve says which"
    assert page.text.count("void: request") >= 1
    row = page.row("The first 1 failed attempts", "1")
    assert row == ["1", "1", "timeout", "200", "nothing came"]
    assert "1 failed attempts: timeout 1" in page.text


@pytest.mark.parametrize("code", sorted(WARNING_TEXTS))
def test_each_warning_has_its_meaning_and_advice(code: str) -> None:
    """The template alone: one warning of each code."""
    text = WARNING_TEXTS[code]
    source = (Path(__file__).parents[3] / "analyzer/html_report/report.html.j2").read_text(encoding="utf-8")
    part = source[
        source.index('<ul class="warnings">') : source.index("</ul>", source.index('<ul class="warnings">'))
    ]
    shown = Environment(autoescape=True).from_string(part + "</ul>")
    page = Page(shown.render(warnings=[{"code": code, "message": "what happened", "text": text}]))
    for expected in (code, "what happened", text.meaning, text.advice):
        assert expected in page.text


def test_a_lost_hit_shows_where_it_was_lost(make: Make) -> None:
    made = make("cold-2")
    records = made.records()
    most = max(range(len(records)), key=lambda at: records[at].cached_tokens or 0)
    lost = records[most].cached_tokens or 0
    records[most] = records[most]._replace(cached_tokens=0)
    page = reported(made, records)
    assert "chart-ahead" in {attributes["id"] for attributes in page.all("figure")}
    assert f"Ends at -{lost:,} tokens." in page.text
    assert "HIT_TOKENS_DIFFER" in page.text
    answers = page.row("Ledgers: the same traffic, counted in several ways", "answers (cached_tokens)")
    assert answers[4] == f"! -{lost:,}"


# --- large runs ------------------------------------------------------------------------------------------------------


def test_twenty_thousand_requests_stay_small_and_quick(make: Make) -> None:
    """The plan, repeated; times and hits that differ from request to request."""
    made = make("cold-2")
    count, times = 20_000, np.random.default_rng(1)
    directory = made.write(phases=PHASES)
    analyze_measurement(
        made.manifest, STAMP
    )  # of the small one: what is large here are records, samples and plan
    full = made.manifest.directory.full
    lines = full.read_bytes().splitlines(keepends=True)
    full.write_bytes(b"".join(lines[at % len(lines)] for at in range(count)))
    rows = [made.rows[at % len(made.rows)] for at in range(count)]
    ttft = times.lognormal(-3, 1, count)
    table = pa.table(
        {
            "position": np.arange(count),
            "request_id": [f"request-{at:08d}" for at in range(count)],
            "group": [row["group_id"] for row in rows],
            "dp_rank": [row["dp_rank"] for row in rows],
            "lane_sequence": [None] * count,
            "attempt": np.ones(count, dtype=np.int32),
            "started_ns": np.arange(count) * 1_000_000,
            "wall_start": np.arange(count) * 1e-3,
            "ttft_s": ttft,
            "e2el_s": ttft + times.lognormal(-1, 0.5, count),
            "itl_s": list(times.lognormal(-4, 1, (count, 32)).astype(np.float32)),
            "chunks": np.full(count, 33, dtype=np.int32),
            "http_status": np.full(count, 200, dtype=np.int16),
            "error_kind": [None] * count,
            "error_text": [None] * count,
            "prompt_tokens": [row["actual_input_tokens"] for row in rows],
            "completion_tokens": np.full(count, 33),
            "cached_tokens": (times.random(count) * [row["actual_input_tokens"] for row in rows]).astype(int),
            "finish_reason": ["length"] * count,
            "image_tokens": [None] * count,
        },
        schema=REQUEST_SCHEMA,
    )
    pq.write_table(table, directory.requests)
    write_samples(directory, 2, count=20_000)
    began = time.process_time()
    html = render(made.manifest, directory)
    assert time.process_time() - began < 10, "CPU seconds; about 3 on the machine this was written on"
    assert len(html.encode()) < 5_000_000
    page = Page(html)
    assert "In each pixel column the first, lowest, highest and last value are drawn." in page.text
    assert "its slowest request" in page.text
    assert "20,000 samples of 2 ranks" in page.text


def test_more_ranks_than_colours_become_a_range(make: Make) -> None:
    made = make("cold-2")
    directory = made.write(phases=PHASES)
    write_samples(directory, 12)
    page = page_of(made.manifest, directory)
    assert "12 ranks: the mean, and the range from the lowest to the highest." in page.text
