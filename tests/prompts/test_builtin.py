"""The committed corpus and tokenizer are what their scripts make."""

import hashlib
import json
import os
import subprocess
import sys

from prompts.builtin import demo_tokenizer_directory, word_problems_path
from prompts.builtin.demo_tokenizer import tokenizer_files
from prompts.builtin.word_problems import corpus_bytes, generate


def test_the_committed_files_are_what_the_scripts_make() -> None:
    corpus = corpus_bytes()
    assert word_problems_path().read_bytes() == corpus
    for name, content in tokenizer_files(corpus).items():
        assert (demo_tokenizer_directory() / name).read_bytes() == content, name


def test_training_gives_the_same_bytes_in_other_processes() -> None:
    code = (
        "import hashlib; from prompts.builtin.demo_tokenizer import tokenizer_files;"
        "from prompts.builtin.word_problems import corpus_bytes;"
        "print(hashlib.sha256(tokenizer_files(corpus_bytes())['tokenizer.json']).hexdigest())"
    )
    committed = hashlib.sha256((demo_tokenizer_directory() / "tokenizer.json").read_bytes()).hexdigest()
    for seed, threads in (("1", "1"), ("77", "2")):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "RAYON_NUM_THREADS": threads}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == committed


def test_thousands_of_distinct_problems_with_sensible_answers() -> None:
    records = [json.loads(line) for line in word_problems_path().read_text(encoding="utf-8").splitlines()]
    questions = {record["question"] for record in records}
    assert len(records) == len(questions) >= 3000
    assert all(set(record) == {"question", "answer"} and int(record["answer"]) > 0 for record in records)
    assert all(question.strip() == question and question.endswith(("?", ".")) for question in questions)
    assert not any(mark in question for question in questions for mark in ("{", "}", "_", "  ", "None"))


def test_an_answer_follows_from_its_question() -> None:
    fences = [p for p in generate() if "fence boards an hour" in p.question]
    assert len(fences) > 50
    for question, answer in fences:
        first, second, hours, left = (
            int(word) for word in question.replace(".", " ").split() if word.isdigit()
        )
        assert answer == first * hours + second * hours + left


def test_the_files_are_small() -> None:
    for file in (word_problems_path(), *demo_tokenizer_directory().iterdir()):
        assert file.stat().st_size < 1_400_000
