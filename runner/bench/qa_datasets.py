"""Questions with passages and gold answers: the named data sets, and local files of the same shapes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from contract.errors import ScenarioError
from contract.files import expanded, open_file, read_file, regular
from contract.foreign_text import presentable
from runner.workloads.plan import QaSample


@dataclass(frozen=True)
class HubFile:
    """A file of a data set on the hub."""

    repository: str
    file: str


NAMED = {
    "musique": HubFile("dgslibisey/MuSiQue", "musique_ans_v1.0_dev.jsonl"),
    "hotpotqa": HubFile("hotpotqa/hotpot_qa", "distractor/validation-00000-of-00001.parquet"),
}


def load_samples(dataset: str, count: int) -> tuple[tuple[QaSample, ...], int]:
    """The first `count` usable questions of a data set, in its order (fewer when it has no more), and how many records
    were skipped on the way because they lack passages, a question or answers.

    Raises:
        ScenarioError: no such data set or file, one that cannot be read, or one without a usable question.
    """
    path = _download(dataset) if dataset in NAMED else expanded(dataset)
    samples: list[QaSample] = []
    skipped = 0
    for index, record in enumerate(_records(path, dataset)):
        if len(samples) == count:
            break
        sample = read_sample(record, index)
        if sample is None:
            skipped += 1
        else:
            samples.append(sample)
    if not samples:
        raise ScenarioError(
            f"--rag-dataset {dataset}: none of its records has passages, a question and answers ({skipped} looked at)"
        )
    return tuple(samples), skipped


def _download(name: str) -> Path:
    import huggingface_hub  # comes with tokenizers; needed for the named data sets only

    source = NAMED[name]
    try:
        return Path(huggingface_hub.hf_hub_download(source.repository, source.file, repo_type="dataset"))
    except Exception as error:  # the client raises its own, requests' and plain OSErrors
        raise ScenarioError(
            f"--rag-dataset {name}: {source.repository} cannot be had ({type(error).__name__}); without the hub give the "
            f"path of its file {source.file}"
        ) from error


def _records(path: Path, dataset: str) -> Iterator[Any]:
    kind = path.suffix.lower()
    try:
        if kind == ".jsonl":
            with open_file(path) as file:
                yield from (orjson.loads(line) for line in file if line.strip())
        elif kind == ".json":
            content = orjson.loads(read_file(path))
            if not isinstance(content, list):
                raise ScenarioError(f"--rag-dataset {dataset}: must hold a list of records")
            yield from content
        elif kind in (".parquet", ".pq"):
            for batch in pq.ParquetFile(regular(path)).iter_batches():
                yield from batch.to_pylist()
        else:
            raise ScenarioError(
                f"--rag-dataset {dataset}: must be {', '.join(NAMED)}, or a .json, .jsonl or .parquet file"
            )
    except OSError as error:
        raise ScenarioError(f"--rag-dataset {dataset}: cannot be read ({error.strerror or error})") from error
    except (orjson.JSONDecodeError, pa.ArrowInvalid) as error:
        raise ScenarioError(f"--rag-dataset {dataset}: is damaged ({presentable(str(error))})") from error


def read_sample(record: Any, index: int) -> QaSample | None:
    """A record of any of the known shapes; None when it lacks one of the three."""
    if not isinstance(record, Mapping):
        return None
    extra = record.get("extra") if isinstance(record.get("extra"), Mapping) else {}
    passages = _passages(record)
    question = _first_text(record, "question", "query", "user_input")
    answers = [text for source in (record, extra) for text in _answers(source or {})]
    if not passages or question is None or not answers:
        return None
    name = next((record[key] for key in ("_id", "id", "index") if record.get(key) is not None), index)
    return QaSample(str(name), question, tuple(passages), tuple(dict.fromkeys(answers)))


def _first_text(record: Mapping[str, Any], *keys: str) -> str | None:
    return next(
        (record[key].strip() for key in keys if isinstance(record.get(key), str) and record[key].strip()),
        None,
    )


def _answers(record: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for key in ("answers", "answer", "reference"):
        found = _texts(record.get(key))
        if found:
            break
    return found + _texts(record.get("answer_aliases"))


def _texts(value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [text.strip() for text in values if isinstance(text, str) and text.strip()]


def _passages(record: Mapping[str, Any]) -> list[str]:
    for key in ("paragraphs", "ctxs", "contexts", "retrieved_contexts"):
        if isinstance(record.get(key), list):
            return [text for entry in record[key] if (text := _passage(entry))]
    context = record.get("context")
    if isinstance(context, Mapping):
        return [
            text
            for title, sentences in zip(
                context.get("title") or [], context.get("sentences") or [], strict=False
            )
            if (text := _titled(title, sentences))
        ]
    if isinstance(context, list):
        return [text for entry in context if (text := _passage(entry))]
    return _texts(context)


def _passage(entry: Any) -> str:
    if isinstance(entry, str):
        return entry.strip()
    if isinstance(entry, Mapping):
        body = next((entry[key] for key in ("paragraph_text", "text") if isinstance(entry.get(key), str)), "")
        return _titled(entry.get("title"), [body])
    if isinstance(entry, Sequence) and len(entry) == 2:
        return _titled(entry[0], entry[1])
    return ""


def _titled(title: Any, sentences: Any) -> str:
    """Title and text on two lines; "" without text."""
    parts = sentences if isinstance(sentences, list) else [sentences]
    body = "".join(part for part in parts if isinstance(part, str)).strip()
    head = title.strip() if isinstance(title, str) else ""
    return f"{head}\n{body}" if head and body else body
