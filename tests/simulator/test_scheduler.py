"""Steps of one rank: order, budgets, pressure, and that everything ends."""

from hypothesis import given, settings
from hypothesis import strategies as st

from cachemodel.block_hashes import HashChain
from cachemodel.block_pool import BlockPool
from simulator.scheduler import EngineRequest, Scheduler, Token

BLOCK = 4


def scheduler(num_blocks: int = 100, budget: int = 1000, most: int = 100) -> Scheduler:
    return Scheduler(BlockPool(num_blocks, BLOCK), max_num_batched_tokens=budget, max_num_seqs=most)


def request(number: int, prompt: list[int], out: int = 1, word: int = 50) -> EngineRequest:
    chain = HashChain(BLOCK)
    chain.extend(prompt)
    return EngineRequest(number, len(prompt), chain, out, lambda n: word + n)


def run(rank: Scheduler, most_steps: int = 10_000) -> list[Token]:
    tokens: list[Token] = []
    for _ in range(most_steps):
        if not rank.running and not rank.waiting:
            return tokens
        tokens += rank.complete(rank.schedule())
    raise AssertionError("it never ends")


def test_one_token_per_step_after_the_prompt() -> None:
    rank = scheduler()
    rank.add(request(0, [1] * 10, out=3))
    steps = [rank.schedule()]
    assert (steps[0].prefill_tokens, steps[0].decoding) == (10, False)
    assert [token.token_id for token in rank.complete(steps[0])] == [50]
    second = rank.schedule()
    assert (second.prefill_tokens, second.decoding) == (0, True)
    assert [(token.token_id, token.last) for token in rank.complete(second)] == [(51, False)]
    assert [(token.token_id, token.last) for token in rank.complete(rank.schedule())] == [(52, True)]
    assert rank.pool.usage == 0


def test_a_long_prompt_is_computed_in_chunks_beside_decoding() -> None:
    rank = scheduler(budget=8)
    rank.add(request(0, [1] * 4, out=9))
    rank.complete(rank.schedule())
    rank.add(request(1, [2] * 20))
    chunks = []
    for _ in range(3):
        step = rank.schedule()
        chunks.append((step.prefill_tokens, step.decoding))
        rank.complete(step)
    assert chunks == [(7, True), (7, True), (6, True)]


def test_equal_cold_prompts_admitted_together_hit_what_the_first_has_slots_for() -> None:
    rank = scheduler()
    requests = [request(number, [1] * 32) for number in range(24)]
    for each in requests:
        rank.add(each)
    run(rank)
    assert [each.cached_tokens for each in requests] == [0] + [28] * 23


def test_first_come_first_served_even_when_a_later_one_would_fit() -> None:
    rank = scheduler(num_blocks=11)
    big, bigger, small = request(0, [1] * 24, 2), request(1, [2] * 28), request(2, [3] * 4)
    for each in (big, bigger, small):
        rank.add(each)
    step = rank.schedule()
    assert [each.request_id for each, _ in step.chunks] == [0]
    assert (rank.running, rank.waiting) == (1, 2)
    assert [token.request.request_id for token in [*rank.complete(step), *run(rank)] if token.last] == [
        0,
        1,
        2,
    ]


def test_no_more_than_max_num_seqs_run() -> None:
    rank = scheduler(most=2)
    for number in range(5):
        rank.add(request(number, [number], out=2))
    rank.schedule()
    assert (rank.running, rank.waiting) == (2, 3)


def test_the_youngest_is_preempted_and_resumes_with_its_answer() -> None:
    rank = scheduler(num_blocks=6)
    old, young = request(0, [1] * 8, out=9), request(1, [2] * 8, out=9)
    rank.add(old)
    rank.add(young)
    answers: dict[int, list[int]] = {0: [], 1: []}
    preempted = 0
    while rank.running or rank.waiting:
        step = rank.schedule()
        preempted += step.preempted
        for token in rank.complete(step):
            answers[token.request.request_id].append(token.token_id)
    assert (old.preemptions, young.preemptions) == (0, preempted)
    assert preempted >= 1
    assert answers[0] == answers[1] == list(range(50, 59))
    assert young.cached_tokens == 0, "hits after a preemption are not the request's"


def test_a_request_that_is_gone_when_the_step_ends_gets_nothing() -> None:
    rank = scheduler()
    stays, leaves, waits = request(0, [1] * 4, 2), request(1, [2] * 4, 2), request(2, [3] * 4, 2)
    rank.add(stays)
    rank.add(leaves)
    step = rank.schedule()
    rank.add(waits)
    rank.abort(leaves)
    rank.abort(waits)
    rank.abort(waits)
    assert [token.request for token in rank.complete(step)] == [stays]
    assert {token.request for token in run(rank)} == {stays}
    assert rank.pool.reset()


def test_preempting_all_frees_the_pool_while_a_step_runs() -> None:
    rank = scheduler()
    requests = [request(number, [number] * 9, out=3) for number in range(3)]
    for each in requests:
        rank.add(each)
    step = rank.schedule()
    assert rank.preempt_all() == 3
    assert rank.pool.reset()
    assert rank.complete(step) == []
    finished = [token.request.request_id for token in run(rank) if token.last]
    assert finished == [0, 1, 2]


workloads = st.lists(
    st.tuples(st.integers(0, 2), st.integers(1, 20), st.integers(1, 20), st.integers(0, 12)), max_size=25
)


@settings(max_examples=150)
@given(
    blocks=st.integers(11, 30),
    budget=st.integers(1, 30),
    most=st.integers(1, 6),
    work=workloads,
    leave=st.integers(0, 4),
)
def test_whatever_comes_everything_ends_with_its_whole_answer(
    blocks: int, budget: int, most: int, work: list[tuple[int, int, int, int]], leave: int
) -> None:
    """Prompt and answer are at most 40 tokens, 10 blocks, so each fits the smallest pool: none may wait for ever."""
    rank = scheduler(blocks, budget, most)
    arrivals = sorted(
        (
            (at, request(number, [family] * length, out))
            for number, (family, length, out, at) in enumerate(work)
        ),
        key=lambda pair: pair[0],
    )
    requests = [each for _, each in arrivals]
    gone = requests[:leave] if leave < len(requests) else []
    answers: dict[int, list[int]] = {each.request_id: [] for each in requests}
    for now in range(3000):
        while arrivals and arrivals[0][0] <= now:
            rank.add(arrivals.pop(0)[1])
        if now == 15:
            for each in gone:
                rank.abort(each)
        if not rank.running and not rank.waiting and not arrivals:
            break
        step = rank.schedule()
        assert step.prefill_tokens <= budget
        assert len({each.request_id for each, _ in step.chunks}) == len(step.chunks)
        for token in rank.complete(step):
            answers[token.request.request_id].append(token.token_id)
    else:
        raise AssertionError("it never ends")
    for each in requests:
        expected = [50 + n for n in range(each.max_tokens)]
        answer = answers[each.request_id]
        assert answer == expected or (each in gone and answer == expected[: len(answer)])
        assert each.cached_tokens is None or each.cached_tokens <= (each.prompt_tokens - 1) // BLOCK * BLOCK
    assert rank.pool.usage == 0
    assert rank.pool.reset()
