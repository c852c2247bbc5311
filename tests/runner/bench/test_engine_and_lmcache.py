"""Asking the engine and LMCache, over HTTP, with answers of every kind."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from contract.errors import ScenarioError, ServiceError
from prompts.tokenizer import load_tokenizer
from runner.bench.engine import base_url, find_engine
from runner.bench.lmcache import LmCache
from runner.bench.settings import resolve
from runner.bench.sizing import tier_tokens, tokens_per_gb
from runner.bench.tokens import SAMPLE, find_counting
from runner.workloads import WORKLOADS

SERIES = (
    'vllm:prefix_cache_queries_total{{engine="{rank}",model_name="m"}} 0\n'
    'vllm:prefix_cache_hits_total{{engine="{rank}",model_name="m"}} 0\n'
    'vllm:cache_config_info{{engine="{rank}",block_size="16",num_gpu_blocks="100",enable_prefix_caching="True",'
    'kv_cache_size_tokens="1600",kv_cache_memory_bytes="{memory}"}} 1\n'
)


@dataclass
class Routes:
    """Path -> (status, content type, body). `prompt_tokens` counts the prompts of conversations."""

    answers: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    prompt_tokens: Callable[[str], int] | None = None
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def json(self, path: str, document: Any, status: int = 200) -> None:
        self.answers[path] = (status, "application/json", json.dumps(document))

    def text(self, path: str, text: str) -> None:
        self.answers[path] = (200, "text/plain; version=0.0.4", text)

    def engine(self, ranks: int = 1, memory: str = "1048576") -> None:
        self.json("/v1/models", {"data": [{"id": "m", "max_model_len": 4096}, {"id": "n"}]})
        self.json("/version", {"version": "0.32.0"})
        self.text("/metrics", "".join(SERIES.format(rank=rank, memory=memory) for rank in range(ranks)))


@pytest.fixture
def routes() -> Iterator[Routes]:
    known = Routes()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            known.asked.append(self.path)
            if self.path == "/v1/chat/completions" and known.prompt_tokens is not None:
                count = known.prompt_tokens(json.loads(sent)["messages"][0]["content"])
                known.json(self.path, {"usage": {"prompt_tokens": count, "completion_tokens": 1}})
            status, kind, body = known.answers.get(
                self.path, (404, "application/json", '{"detail": "Not Found"}')
            )
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        do_POST = do_GET  # noqa: N815 - the name that the base class calls

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield known
    server.shutdown()
    server.server_close()


def find(routes: Routes, model: str | None = None) -> Any:
    return find_engine(routes.url, model, api_key="")


def settings(workload: str = "long-doc-qa", **values: Any) -> Any:
    return resolve({"engine_url": "http://e", "workload": workload, **values})


# ---- addresses


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("8000", "http://localhost:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("http://h:1/", "http://h:1"),
        ("http://h:1/v1", "http://h:1"),
        ("https://h/prefix/v1/", "https://h/prefix"),
        (" h ", "http://h"),
    ],
)
def test_addresses(text: str, url: str) -> None:
    assert base_url(text) == url


@pytest.mark.parametrize("text", ["", "ftp://h", "http://", "http://h:x", "http://h:99999"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ScenarioError, match="is not an address"):
        base_url(text)


def test_an_address_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(ScenarioError) as error:
        base_url("http://user:canary@h:1")
    assert "canary" not in str(error.value)


# ---- the engine


def test_the_first_model_is_taken_and_everything_told_is_kept(routes: Routes) -> None:
    routes.engine(ranks=2)
    found = find(routes)
    assert (found.model, found.version, found.max_model_len, found.ranks) == ("m", "0.32.0", 4096, 2)
    assert found.cache.block_size == 16
    assert found.client.engine.inference_url == f"{routes.url}/v1/chat/completions"


def test_ranks_are_numbered_whatever_their_labels_are(routes: Routes) -> None:
    """A bench has no scenario, so no map of labels could be asked for."""
    routes.engine()
    pages = (SERIES.format(rank=label, memory="1048576") for label in ("core-9", "core-10", "blue"))
    routes.text("/metrics", "".join(pages))
    found = find(routes)
    assert (found.no_metrics, found.ranks) == (None, 3)


def test_an_engine_without_metrics_is_measured_all_the_same(routes: Routes) -> None:
    routes.engine()
    del routes.answers["/metrics"]
    found = find(routes)
    assert (found.scrape, found.ranks, found.cache) == (None, None, None)
    assert "/metrics" in found.no_metrics
    assert "(--engine-url)" in found.no_metrics


@pytest.mark.parametrize(
    ("change", "model", "message"),
    [
        (lambda r: r.json("/v1/models", {"error": {"message": "no key"}}, 401), None, "OPENAI_API_KEY"),
        (lambda r: r.json("/v1/models", {"data": []}), None, "names no model"),
        (lambda r: r.json("/v1/models", ["?"]), None, "is --engine-url the address of the engine"),
        (lambda r: r.answers.pop("/v1/models"), None, "HTTP 404"),
        (lambda _: None, "other", "does not serve 'other' but 'm', 'n'; correct --model"),
    ],
)
def test_engines_that_cannot_be_used(
    routes: Routes, change: Callable[[Routes], Any], model: str | None, message: str
) -> None:
    routes.engine()
    change(routes)
    with pytest.raises(ServiceError) as error:
        find(routes, model)
    assert message in str(error.value)


DEMO = load_tokenizer("builtin:demo")
FRAME = 7


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that knows no name."""

    def unknown(repository: str, _revision: str | None) -> Path:
        raise ScenarioError(f"the model hub did not give {repository}")

    monkeypatch.setattr("prompts.tokenizer._download", unknown)


def counted(text: str) -> int:
    """As an engine with the demo tokenizer and a chat template counts."""
    return FRAME + len(DEMO.encode(text))


def test_the_engines_tokenize_counts_where_it_is(routes: Routes) -> None:
    routes.engine()
    routes.json("/tokenize", {"tokens": DEMO.encode(SAMPLE)})
    counting = find_counting(find(routes), "builtin:demo", 1, exact=None)
    assert (counting.tokenizer, counting.note) == ("builtin:demo", None)
    assert counting.tokens is not None
    assert "/v1/chat/completions" not in routes.asked, "nothing to find out"


def test_a_named_tokenizer_is_compared_with_what_the_engine_counts(routes: Routes) -> None:
    routes.engine()
    routes.prompt_tokens = counted
    counting = find_counting(find(routes), "builtin:demo", 1, exact="rag-qa-quality")
    assert (counting.tokenizer, counting.tokens, counting.note) == ("builtin:demo", None, None)
    routes.prompt_tokens = lambda text: FRAME + len(text)
    with pytest.raises(ScenarioError, match="makes other tokens than the engine does; give the engine's own"):
        find_counting(find(routes), "builtin:demo", 1, exact=None)


def test_a_tokenizer_of_the_served_models_name_is_tried(
    routes: Routes, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes.engine()
    routes.prompt_tokens = counted
    monkeypatch.setattr("runner.bench.tokens.load_tokenizer", {"m": DEMO}.__getitem__)
    assert find_counting(find(routes), None, 1, exact="kv-tier-pressure").tokenizer == "builtin:demo"
    routes.prompt_tokens = lambda text: FRAME + len(text)
    about = find_counting(find(routes), None, 1, exact=None)
    assert about.note is not None
    assert "the tokenizer 'm' counts otherwise than the engine does" in about.note


@pytest.mark.usefixtures("no_hub")
def test_without_any_tokenizer_lengths_are_about_right(routes: Routes) -> None:
    """The engine's own count of a first answer gives the factor; whatever its tokenizer, texts come within a tenth."""
    routes.engine()
    for count in (counted, lambda text: FRAME + len(text) // 2, lambda text: FRAME + 3 * len(text.split())):
        routes.prompt_tokens = count
        counting = find_counting(find(routes), None, 1, exact=None)
        assert counting.tokens is None
        for tokens in (300, 1500):
            text = counting.texts.text("a", tokens)
            assert abs(count(text) - FRAME - tokens) < tokens / 10
            assert text == counting.texts.text("a", tokens) != counting.texts.text("b", tokens)
        assert counting.texts.text("p", 200, "PREFIX_0a1b2c3d").startswith("PREFIX_0a1b2c3d ")
        assert "--tokenizer makes them exact" in (counting.note or "")


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize("workload", ["long-doc-permutator", "rag-qa-quality", "kv-tier-pressure"])
def test_workloads_of_exact_lengths_need_a_tokenizer(routes: Routes, workload: str) -> None:
    routes.engine()
    routes.prompt_tokens = counted
    assert WORKLOADS[workload].needs_tokenizer
    with pytest.raises(ScenarioError, match=rf"--tokenizer: .* has no /tokenize, .*{workload} needs"):
        find_counting(find(routes), None, 1, exact=workload)


@pytest.mark.usefixtures("no_hub")
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda _: None, "a first request, to count tokens by, got HTTP 404"),
        (lambda r: r.json("/v1/chat/completions", {"choices": []}), "without usage.prompt_tokens"),
        (lambda r: setattr(r, "prompt_tokens", lambda _: 9), "no more tokens for a long prompt"),
    ],
)
def test_an_engine_that_tells_no_count_is_named(
    routes: Routes, answer: Callable[[Routes], Any], message: str
) -> None:
    routes.engine()
    answer(routes)
    with pytest.raises(ServiceError, match=message):
        find_counting(find(routes), None, 1, exact=None)


def test_another_tokenizer_than_the_engines_is_refused(routes: Routes) -> None:
    routes.engine()
    routes.json("/tokenize", {"tokens": [1, 2, 3]})
    with pytest.raises(ScenarioError, match="makes other tokens than the engine does"):
        find_counting(find(routes), "builtin:demo", 1, exact=None)


# ---- sizing


def test_size_is_the_given_one_first(routes: Routes) -> None:
    routes.engine()
    size = tokens_per_gb(
        settings(tokens_per_gb_kvcache=7, lmcache_url="http://nowhere.invalid"), find(routes)
    )
    assert (size.tokens_per_gb, size.source) == (7, "given")


def test_size_from_the_engine(routes: Routes) -> None:
    routes.engine(memory=str(2**20))
    size = tokens_per_gb(settings(), find(routes))
    assert size.tokens_per_gb == 1600 * 1024, "1600 tokens in a MiB"
    assert tier_tokens(settings(), find(routes), size) == 1584, "without the placeholder block"


@pytest.mark.parametrize("memory", ["None", "0", "much"])
def test_an_engine_that_does_not_tell_its_memory(routes: Routes, memory: str) -> None:
    routes.engine(memory=memory)
    with pytest.raises(ScenarioError) as error:
        tokens_per_gb(settings(), find(routes))
    for part in (
        "Available KV cache memory: 12.34 GiB",
        "GPU KV cache size: 567,890 tokens",
        "46020",
        "--lmcache-url",
    ):
        assert part in str(error.value)
    assert tokens_per_gb(settings("random-prefill"), find(routes)).tokens_per_gb is None, "it needs none"
    rag = settings("rag-qa-quality", rag_dataset="x")
    assert tokens_per_gb(rag, find(routes)).tokens_per_gb is None


@pytest.mark.parametrize("key", ["cache_context_meta", "cb_gpu_context_meta"])
def test_size_from_lmcache(routes: Routes, key: str) -> None:
    routes.engine()
    layout = {"cache_size_per_token": 40_000}
    contexts = {
        "1": {"model_name": "x"},
        "2": {"model_name": "m", "world_size": 2, "kv_cache_layout": layout},
    }
    manager = {"l1_manager": {"memory_total_bytes": 3 * 2**30}}
    routes.json("/status", {key: contexts, "storage_manager": manager})
    wanted = settings("kv-tier-pressure", lmcache_url=routes.url)
    size = tokens_per_gb(wanted, find(routes))
    assert size.tokens_per_gb == 2**30 // 80_000
    assert tier_tokens(wanted, find(routes), size) == 3 * size.tokens_per_gb


@pytest.mark.parametrize(
    "status", [{}, {"cache_context_meta": {"1": {"model_name": "m"}}}, {"cache_context_meta": []}]
)
def test_lmcache_that_does_not_know_the_model(routes: Routes, status: Any) -> None:
    routes.json("/status", status)
    with pytest.raises(ServiceError, match="says nothing of 'm'"):
        LmCache(routes.url).tokens_per_gb("m")


def test_lmcache_that_is_something_else(routes: Routes) -> None:
    routes.text("/status", "<html>")
    with pytest.raises(ServiceError, match="no answer in JSON"):
        LmCache(routes.url).tokens_per_gb("m")
    routes.json("/status", {}, 500)
    with pytest.raises(ServiceError, match="HTTP 500"):
        LmCache(routes.url).memory_bytes()


def test_lookup_counters(routes: Routes) -> None:
    def page(*counts: int) -> str:
        names = ("mp_lookup_requested", "mp_lookup_hit", "blend_lookup_requested", "blend_lookup_hit")
        lines = [f'lmcache_{n}_tokens_total{{w="0"}} {c}\n' for n, c in zip(names, counts, strict=True)]
        return (
            "".join(lines)
            + 'lmcache_mp_lookup_hit_tokens_total{w="1"} 5\nlmcache_mp_lookup_hit_tokens_created 9\n'
        )

    routes.text("/metrics", page(100, 10, 0, 0))
    before = LmCache(routes.url).lookups()
    assert before.hit == {"lookup": 15, "blend": 0}
    assert before.moved == "lookup"
    routes.text("/metrics", page(100, 10, 700, 300))
    after = LmCache(routes.url).lookups().since(before)
    assert (after.requested, after.hit) == ({"lookup": 0, "blend": 700}, {"lookup": 0, "blend": 300})
    assert after.moved == "blend"
    assert before.since(before).moved is None
