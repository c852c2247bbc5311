"""A bench's files belong together, too: what is not as the bench wrote it is refused, never summed up."""

import random

import pytest

from analyzer.analyze import analyze_measurement
from contract.bench import EXPECTED
from contract.documents import read_document
from contract.errors import ArtifactError
from contract.measurement_file import write_measurement
from contract.parts import part_hashes
from runner.bench.expectation import Expected
from runner.bench.hindsight import write_expected
from runner.bench.stage import SentStage
from tests.analyzer.bench.conftest import RAG, STAMP, Make
from tests.runner.bench.records import record


def test_no_damaged_byte_changes_a_figure_in_silence(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("analyzer.bench.analyze.write_page", lambda *_, **__: None)
    answers = [
        {"request_id": record(at).request_id, "sample_id": f"s{at}", "answers": ["a"], "answer": "a"}
        for at in (0, 1)
    ]
    made = make(answers=answers, settings=RAG)
    directory = made.directory
    stage = SentStage("formal")
    stage.records += [record(0), record(1)]
    write_expected(
        directory.root / EXPECTED, {record(at).request_id: Expected(9, 1, 2) for at in (0, 1)}, [stage]
    )
    document = read_document(directory.measurement, "measurement")
    write_measurement(directory.measurement, document | {"parts": part_hashes(directory, {})})
    before = analyze_measurement(made.manifest, STAMP).document
    assert before["quality"]["summary"]["num_samples"] == 2
    draws = random.Random(5)
    paths = [path for path in sorted(directory.root.iterdir()) if path != directory.analysis]
    assert len(paths) == 4
    for path in paths:
        content = path.read_bytes()
        for turn in range(16):
            broken = bytearray(content)
            at = draws.randrange(len(content))
            if turn % 4 == 3:
                del broken[at:]
            else:
                broken[at] ^= 1 << draws.randrange(8)
            path.write_bytes(broken)
            with pytest.raises(ArtifactError, match=path.name):
                analyze_measurement(made.manifest, STAMP)
        path.write_bytes(content)
    assert analyze_measurement(made.manifest, STAMP).document == before
