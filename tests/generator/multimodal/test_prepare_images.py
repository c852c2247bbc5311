"""prepare, inspect and validate with images, on Parquet files in MMMU's schema."""

import base64
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from contract.documents import write_document
from contract.errors import ArtifactError, ScenarioError
from contract.manifest import read_manifest, seal
from contract.run_directory import RunDirectory
from contract.token_ids import read_token_ids
from generator.multimodal.prepare import inspect_images, prepare_images
from generator.validate import validate
from prompts.tokenizer import load_tokenizer
from tests.mmmu import FULL_HD, HD, IMAGE, picture, write_mmmu

TOKENS = 30
COUNT = 12

Write = Callable[..., Path]


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "MMMU"
    write_mmmu(
        folder / "Art" / "test-00000-of-00001.parquet",
        [
            [picture((640, 480))],
            [picture((800, 600)), picture(seed=1)],
            [picture(HD, seed=2, file_format="JPEG")],
        ],
    )
    return folder


@pytest.fixture
def write_scenario(tmp_path: Path) -> Write:
    def write(**sections: Any) -> Path:
        document = {
            "run": {"run_id": "mm", "output_dir": "out"},
            "tokenizer": {"path": "builtin:demo"},
            "corpus": {"path": "builtin:word-problems"},
            "requests": {
                "count": COUNT,
                "input_length": {"mode": "fixed", "value": TOKENS},
                "output_length": {"mode": "fixed", "value": 8},
            },
            "multimodal": {"mmmu_parquet_dir": "MMMU"},
            **sections,
        }
        path = tmp_path / "scenario.json"
        path.write_text(json.dumps(document))
        return path

    return write


def rows_of(shown: dict[str, Any]) -> list[dict[str, Any]]:
    ((_, path),) = shown["datasets"].items()
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def manifest_of(shown: dict[str, Any]) -> dict[str, Any]:
    return read_manifest(Path(shown["manifest"])).document


@pytest.mark.parametrize(
    ("name", "size", "images_each"), [("single_1080p", FULL_HD, 1), ("multi_720p_5", HD, 5)]
)
def test_rows_and_manifest_are_as_documented(
    write_scenario: Write, images: Path, name: str, size: tuple[int, int], images_each: int
) -> None:
    shown = prepare_images(write_scenario(multimodal={"mmmu_parquet_dir": str(images), "scenarios": [name]}))
    document = manifest_of(shown)
    image = document["datasets"][name]["image"]
    assert (image["width"], image["height"]) == size
    head, _, encoded = image["data_url"].partition(",")
    content = base64.b64decode(encoded)
    assert content == (picture(seed=1) if name == "single_1080p" else picture(HD, seed=2, file_format="JPEG"))
    assert head == ("data:image/png;base64" if name == "single_1080p" else "data:image/jpeg;base64")
    assert image["byte_length"] == len(content)
    assert document["datasets"][name]["image_count_per_request"] == images_each
    assert document["datasets"][name]["rows"] == document["request_count"] == COUNT
    assert document["benchmark_mode"] == "mm"
    assert document["multimodal_schema_version"] == "2.0"
    assert document["content_order"] == ["image", "text"]
    assert document["selection"]["images_looked_at"] == (3 if name == "single_1080p" else 4)

    tokenizer = load_tokenizer("builtin:demo")
    rows = rows_of(shown)
    assert len(rows) == COUNT
    assert len({row["question"] for row in rows}) == COUNT
    ids = list(read_token_ids(Path(shown["manifest"].replace(".manifest.json", ".token_ids.arrow"))))
    for position, row in enumerate(rows):
        assert list(row) == [
            *("request_id", "question", "answer", "image_refs", "prompt", "text_tokens", "max_out_len")
        ]
        assert row["request_id"] == f"request-{position:08d}"
        assert row["image_refs"] == [image["ref"]] * images_each
        text = row["question"]
        assert len(tokenizer.encode(text)) == row["text_tokens"] == TOKENS
        assert ids[position].tolist() == tokenizer.encode(text)
        assert text == text.strip()
        part = {"type": "image_url", "image_url": {"base64_ref": image["ref"]}}
        assert row["prompt"] == [
            {"role": "user", "content": [*[part] * images_each, {"type": "text", "text": text}]}
        ]
        assert row["answer"] == "none"
        assert row["max_out_len"] == 8
    assert validate(Path(shown["manifest"])) == {"ok": True, "rows": COUNT, "run_id": document["run_id"]}


def test_equal_scenarios_give_equal_texts_and_another_seed_others(
    write_scenario: Write, images: Path
) -> None:
    texts = [
        [row["question"] for row in rows_of(prepare_images(write_scenario(run=run)))]
        for run in (
            {"run_id": "a", "output_dir": "a"},
            {"run_id": "b", "output_dir": "b"},
            {"run_id": "c", "output_dir": "c", "random_seed": 7},
        )
    ]
    assert texts[0] == texts[1] != texts[2]


def test_preferred_folders_come_first_in_their_order(write_scenario: Write, tmp_path: Path) -> None:
    folder = tmp_path / "MMMU"
    names = [
        "Agriculture/test-00001-of-00003",
        "Literature/test-00000-of-00001",
        "Sociology/test-00000-of-00001",
        "Art/test-00000-of-00001",
        "Art/validation-00000-of-00001",
        "Art/dev-00000-of-00001",
        "Art/train-00000-of-00001",
    ]
    files = [write_mmmu(folder / f"{name}.parquet", [[picture(seed=i)]]) for i, name in enumerate(names)]
    for expected in files:
        (image,) = inspect_images(write_scenario())["selected_images"].values()
        assert image["parquet_path"] == str(expected)
        expected.unlink()


def test_broken_images_are_skipped_and_counted(write_scenario: Write, tmp_path: Path) -> None:
    whole = picture(seed=3)
    cut = whole[: len(whole) // 2]  # its size can be read, its pixels cannot
    write_mmmu(
        tmp_path / "MMMU" / "test-0.parquet", [[b"no image at all"], [cut, None, whole], [picture((5, 5))]]
    )
    shown = inspect_images(write_scenario())
    (image,) = shown["selected_images"].values()
    assert shown["selection"]["images_undecodable"] == 2
    assert (image["row_index"], image["image_column"]) == (1, "image_3")
    assert image["sample_id"] == "test-0_1"
    assert image["original_path"] == "test-0_1_3.png"


def test_where_no_image_fits_the_sizes_seen_are_listed(write_scenario: Write, tmp_path: Path) -> None:
    write_mmmu(
        tmp_path / "MMMU" / "a.parquet",
        [[picture((1919, 1080)), picture((640, 480))], [picture((640, 480))], [b"x"]],
    )
    with pytest.raises(ScenarioError) as failure:
        prepare_images(write_scenario())
    message = str(failure.value)
    assert "1920x1080" in message
    assert "640x480 (2), 1919x1080 (1)" in message
    assert "4 images in 1 files, 1 undecodable" in message


def test_files_without_image_columns_are_told(write_scenario: Write, tmp_path: Path) -> None:
    folder = tmp_path / "MMMU"
    folder.mkdir()
    # A column of that name which holds no struct, and a struct without bytes.
    table = {"image_1": pa.array(["a.png"]), "image_2": pa.array([{"path": "x"}])}
    pq.write_table(pa.table(table), folder / "test-0.parquet")
    with pytest.raises(ScenarioError, match="no columns image_1"):
        prepare_images(write_scenario())
    # Beside a good file it does no harm, and is named.
    write_mmmu(folder / "test-1.parquet", [[picture()]])
    shown = inspect_images(write_scenario())
    assert shown["selection"]["files_without_image_columns"] == ["test-0.parquet"]


def test_files_without_the_column_id_do(write_scenario: Write, tmp_path: Path) -> None:
    folder = tmp_path / "MMMU"
    folder.mkdir()
    cells = pa.array([{"bytes": picture(), "path": None}], type=IMAGE)
    pq.write_table(pa.table({"image_1": cells}), folder / "test-0.parquet")
    (image,) = inspect_images(write_scenario())["selected_images"].values()
    assert image["sample_id"] is None
    assert image["original_path"] is None


def test_no_folder_no_file_and_no_parquet(write_scenario: Write, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"multimodal\.mmmu_parquet_dir: .*MMMU is no folder"):
        prepare_images(write_scenario())
    (tmp_path / "MMMU").mkdir()
    with pytest.raises(ScenarioError, match=r"there is no \.parquet file"):
        prepare_images(write_scenario())
    (tmp_path / "MMMU" / "test-0.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(ScenarioError, match=r"test-0\.parquet cannot be read as Parquet"):
        prepare_images(write_scenario())
    assert not list(tmp_path.glob("out_*"))


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"multimodal": {}}, "mmmu_parquet_dir: is missing; --mode mm needs it"),
        (
            {"multimodal": {"mmmu_parquet_dir": "MMMU", "scenarios": ["single_1080p", "multi_720p_5"]}},
            "must have exactly one",
        ),
        (
            {
                "requests": {
                    "count": 2,
                    "input_length": {"mode": "range", "ranges": [{"min": 1, "max": 2, "count": 2}]},
                }
            },
            r"requests\.input_length\.mode: found 'range'; --mode mm needs 'fixed'",
        ),
        (
            {"requests": {"count": 2, "output_length": {"mode": "uniform", "min": 1, "max": 2}}},
            r"requests\.output_length\.mode: found 'uniform'",
        ),
        (
            {"requests": {"count": 4097, "input_length": {"mode": "fixed", "value": 9}}},
            r"corpus\.selection: 4096 different records of builtin:word-problems for requests\.count 4097",
        ),
        (
            {
                "corpus": {
                    "path": "builtin:word-problems",
                    "selection": {"mode": "indices", "values": [3, 4, 3]},
                }
            },
            "2 different records",
        ),
    ],
)
def test_what_cannot_be_prepared(
    write_scenario: Write, images: Path, sections: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ScenarioError, match=complaint):
        prepare_images(write_scenario(**sections))


def test_field_and_selection_of_the_corpus_are_honoured(
    write_scenario: Write, images: Path, tmp_path: Path
) -> None:
    corpus = tmp_path / "own.jsonl"
    corpus.write_text("".join(json.dumps({"said": f"number {n} says words"}) + "\n" for n in range(9)))
    shown = prepare_images(
        write_scenario(
            corpus={"path": "own.jsonl", "field": "said", "selection": {"mode": "indices", "values": [7, 2]}},
            requests={"count": 2, "input_length": {"mode": "fixed", "value": 40}},
        )
    )
    texts = [row["question"] for row in rows_of(shown)]
    assert "number 7 says words\nnumber 7" in texts[0]
    assert "number 2 says words\nnumber 2" in texts[1]


def test_block_size_and_prefix_cache_have_no_effect(write_scenario: Write, images: Path) -> None:
    plain = prepare_images(write_scenario())
    other = prepare_images(
        write_scenario(
            tokenizer={"path": "builtin:demo", "block_size": 4096},
            prefix_cache={"mode": "cold", "target_hit_rate": 2},
        )
    )
    assert rows_of(plain) == rows_of(other)
    assert manifest_of(plain)["data_sha256"] == manifest_of(other)["data_sha256"]


def test_overwrite_rebuilds_and_inspect_is_taken_on(write_scenario: Write, images: Path) -> None:
    scenario = write_scenario()
    inspected = inspect_images(scenario)
    assert inspected["mode"] == "mm"
    assert inspected["sends_requests"] is False
    first = prepare_images(scenario)
    assert first["manifest"] == inspected["manifest"]
    again = prepare_images(scenario, overwrite=True)
    assert again["manifest"] == first["manifest"]
    other = write_scenario(multimodal={"mmmu_parquet_dir": "MMMU", "scenarios": ["multi_720p_5"]})
    before = Path(first["manifest"]).read_bytes()
    third = prepare_images(other, overwrite=True)
    assert third["manifest"] != first["manifest"]
    assert Path(first["manifest"]).read_bytes() == before, "other data is never overwritten"
    RunDirectory.of_manifest(Path(third["manifest"])).new_measurement()
    fourth = prepare_images(other, overwrite=True)
    assert fourth["manifest"] != third["manifest"]
    again = prepare_images(other, overwrite=True, discard_measurements=True)
    assert again["manifest"] == fourth["manifest"]


def damage_text(result: Path) -> None:
    (rows,) = result.glob("*.requests.jsonl")
    rows.write_text(rows.read_text().replace("request-00000003", "request-00000004", 1))


def drop_row(result: Path) -> None:
    (rows,) = result.glob("*.requests.jsonl")
    rows.write_text("".join(rows.read_text().splitlines(keepends=True)[:-1]))


def another_reference(result: Path) -> None:
    (rows,) = result.glob("*.requests.jsonl")
    rows.write_text(rows.read_text().replace("mmmu:single", "mmmu:double", 1))


def change_word(result: Path) -> None:
    (rows,) = result.glob("*.requests.jsonl")
    first, *rest = rows.read_text().splitlines(keepends=True)
    rows.write_text(first.replace(json.loads(first)["question"], "other words") + "".join(rest))


def no_rows(result: Path) -> None:
    next(result.glob("*.requests.jsonl")).unlink()


def no_token_ids(result: Path) -> None:
    next(result.glob("*.token_ids.arrow")).unlink()


def edit_manifest(result: Path) -> None:
    manifest = next(result.glob("*.manifest.json"))
    manifest.write_text(manifest.read_text().replace('"width": 1920', '"width": 1921'))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (damage_text, ":4: request_id is not what the manifest describes"),
        (drop_row, f"has {COUNT - 1} rows; {COUNT} were written"),
        (another_reference, ":1: image_refs is not what the manifest describes"),
        (change_word, "differs from what prepare wrote"),
        (no_rows, "is missing"),
        (no_token_ids, "is missing"),
        (edit_manifest, "was changed after it was written"),
    ],
)
def test_validate_finds_every_damage(
    write_scenario: Write, images: Path, damage: Callable[[Path], None], complaint: str
) -> None:
    manifest = Path(prepare_images(write_scenario())["manifest"])
    damage(manifest.parent)
    with pytest.raises(ArtifactError, match=complaint):
        validate(manifest)


def test_validate_decodes_the_image(write_scenario: Write, images: Path) -> None:
    """Somebody who writes hashes that fit cannot pass off another image."""
    manifest = Path(prepare_images(write_scenario())["manifest"])
    for content, complaint in (
        (picture((1920, 1079)), "is PNG of 1920x1079"),
        (picture()[:2000], "cannot be decoded"),
        (picture(file_format="JPEG"), "is JPEG of 1920x1080"),
    ):
        document = read_manifest(manifest).document
        image = document["datasets"]["single_1080p"]["image"]
        image |= {
            "data_url": f"data:image/png;base64,{base64.b64encode(content).decode()}",
            "byte_length": len(content),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        write_document(manifest, seal(document))
        with pytest.raises(ArtifactError, match=complaint):
            validate(manifest)


# The peak of this program alone: ru_maxrss of a process begins with that of the one it was started from.
WITH_PEAK = """
import sys
from hitlab.main import main
try:
    main()
finally:
    with open("/proc/self/status") as status:
        sys.stderr.write(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
"""


def test_the_guides_example_is_quick_and_small(write_scenario: Write, images: Path, tmp_path: Path) -> None:
    """1,319 requests of single_1080p with 30 and 256 tokens: 20 s, 400 MB, 3 MB besides the image."""
    scenario = write_scenario(
        requests={
            "count": 1319,
            "input_length": {"mode": "fixed", "value": 30},
            "output_length": {"mode": "fixed", "value": 256},
        }
    )
    command = [sys.executable, "-c", WITH_PEAK, "prepare", "--scenario", scenario, "--mode", "mm"]
    with (tmp_path / "printed").open("w+") as printed, (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen(command, stdout=printed, stderr=said)
        _, status, used = os.wait4(process.pid, 0)  # what this process used, and no other
        process.returncode = os.waitstatus_to_exitcode(status)
        printed.seek(0)
        said.seek(0)
        shown, peak_kb = json.load(printed), int(said.read().split()[-1])
    assert process.returncode == 0
    assert used.ru_utime + used.ru_stime < 20
    assert 50_000 < peak_kb < 400_000
    assert len({row["question"] for row in rows_of(shown)}) == 1319
    size = sum(file.stat().st_size for file in Path(shown["manifest"]).parent.iterdir())
    data_url = manifest_of(shown)["datasets"]["single_1080p"]["image"]["data_url"]
    assert size - len(data_url) < 3_000_000
