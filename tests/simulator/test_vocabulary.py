"""What the simulated model says."""

from collections.abc import Sequence

import numpy as np

from simulator.vocabulary import Vocabulary


class Words:
    """A tokenizer that drops a leading space, as SentencePiece does; ids 0 to 9 are no words."""

    vocab_size = 700

    def decode(self, ids: Sequence[int]) -> str:
        letters = ["#" if i < 10 else " w" + chr(97 + i // 26) + chr(97 + i % 26) for i in ids]
        return "".join(letters).removeprefix(" ")


class Symbols:
    vocab_size = 5

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("<>{}!"[i] for i in ids)


def prompt(*ids: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(ids, dtype=np.int32)


def test_answers_are_words_with_their_space_and_depend_on_the_prompt_alone() -> None:
    words = Vocabulary(Words())
    answer = words.answer_to(prompt(1, 2, 3))
    again = Vocabulary(Words()).answer_to(prompt(1, 2, 3))
    other = words.answer_to(prompt(1, 2, 4))
    said = [answer(n) for n in range(200)]
    assert said == [again(n) for n in range(200)]
    assert said != [other(n) for n in range(200)]
    assert len(set(said)) == 200
    assert all(10 <= token < 700 for token in said)
    assert all(words.text(token)[:2] == " w" for token in said)


def test_a_vocabulary_without_words_is_used_as_it_is() -> None:
    symbols = Vocabulary(Symbols())
    answer = symbols.answer_to(prompt(3))
    assert {symbols.text(answer(n)) for n in range(20)} == set(">{}!")
