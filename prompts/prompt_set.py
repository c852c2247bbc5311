"""The prompts of a run: every request and warmup with exactly the token ids that the plan asks for.

Layout of a request, in the server's tokens: canonical prefix of its group up to p, seed, natural suffix, and the ids the
server puts behind. The ids the server puts in front (BOS) are the first of the prefix, or of the seed where p is 0. A
warmup is the group's whole prefix and a seed of its own.

Every prompt is decoded to text and encoded as the server encodes it; what comes back must be the planned ids. A
prompt that does not survive is repaired: its suffix is encoded anew together with what stands before it, or ends in
other tokens, or starts with another record, or the prompt gets another seed. Repairs are counted by kind; when none
helps the error names the request and the place. The first block that a prompt does not share is compared, over the final
ids, with all others and with the canonical prefixes.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from contract.errors import ScenarioError
from prompts.corpus import Corpus, EncodedCorpus, IntArray, Selection, select_records
from prompts.prefixes import CanonicalPrefix, PrefixBuilder
from prompts.seeds import SeedSpace, find_safe_tokens, first_difference
from prompts.tokenizer import Tokenizer

# One batch of prompts is as large as this many tokens; memory does not grow with the number of requests.
_BATCH_TOKENS = 262_144
_ATTEMPTS = 48
_SAFE_TOKENS = 256
_FEWEST_SAFE_TOKENS = 64
_SUFFIX_ENDS = (1, 2, 3, 4, 6, 8)
# Random streams of the plan, relative to the run's seed.
_POOL_STREAM = 300
_SEED_STREAM = 5

LongArray = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class GroupInput:
    """A group as the plan has it. `index` numbers its random stream, `size` counts its requests."""

    name: str
    index: int
    selection: Selection
    max_prefix_tokens: int
    size: int


@dataclass(frozen=True)
class RequestColumns:
    """The plan's requests in final order, one array each, all of the same length.

    request_number: the number in the request id. group: position in the list of groups. occurrence: how many requests of
    the group came before. input_tokens: length as the server counts it. prefix_tokens: shared part, a multiple of
    the block size.
    """

    request_number: LongArray
    group: IntArray
    occurrence: IntArray
    input_tokens: LongArray
    prefix_tokens: LongArray

    def __len__(self) -> int:
        return len(self.request_number)


@dataclass(frozen=True)
class GroupPrefix:
    """The canonical prefix of a group. `sha256`: over the ids as little-endian int32, like all hashes of ids here."""

    name: str
    ids: IntArray
    sha256: str
    record_indices: tuple[int, ...]
    record_sha256: tuple[str, ...]


@dataclass(frozen=True)
class BuiltPrompt:
    """One request. `token_ids` are the server's (int32); `text` is what to send.

    `seed_tokens` counts the seed's region, leading ids included where prefix_tokens is 0; the three parts add up to the
    length. `random_seed` (below 2**53) gives the seed back: `PromptSet.seeds.tokens(random_seed, n)`.
    `divergence_unique` is the outcome of a comparison over the ids, `repairs` the kinds of repair it took.
    """

    position: int
    request_id: str
    text: str
    token_ids: IntArray
    prefix_tokens: int
    seed_tokens: int
    suffix_tokens: int
    suffix_record_indices: tuple[int, ...]
    suffix_record_sha256: tuple[str, ...]
    seed_sha256: str
    random_seed: int
    divergence_block_sha256: str
    divergence_unique: bool
    repairs: tuple[str, ...]


@dataclass(frozen=True)
class WarmupPrompt:
    """The prompt that puts a group's whole prefix into the cache of one rank; `request_id` is warmup:<group>:<rank>."""

    request_id: str
    group: str
    rank: int
    text: str
    token_ids: IntArray
    prefix_tokens: int
    seed_tokens: int
    seed_sha256: str
    random_seed: int
    divergence_block_sha256: str
    divergence_unique: bool
    repairs: tuple[str, ...]


def ids_sha256(ids: IntArray) -> str:
    """SHA-256 (hex) of token ids written as little-endian 32-bit integers."""
    return hashlib.sha256(np.ascontiguousarray(ids, dtype="<i4").tobytes()).hexdigest()


@dataclass
class _Draft:
    """A prompt under construction; `item` numbers requests and warmups together."""

    item: int
    name: str
    group: int
    occurrence: int
    prefix_tokens: int
    length: int
    seed_number: int = 0
    suffix: IntArray | None = None
    records: tuple[int, ...] = ()
    repairs: tuple[str, ...] = ()


class PromptSet:
    """All prompts of a run, made when they are asked for, in batches, in final order.

    Building the set encodes the records of the groups, finds safe tokens and makes the canonical prefixes; the prompts
    follow from `requests()` and `warmups()`, which may be iterated again and give the same prompts. A few hundred bytes
    per prompt are kept (the digest of its first own block).

    Raises `ScenarioError` (at construction or while iterating) when the tokenizer, the corpus and the block size do
    not allow what the plan asks for, and `ValueError` for a plan that contradicts itself.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        corpus: Corpus,
        groups: Sequence[GroupInput],
        columns: RequestColumns,
        *,
        block_size: int,
        seed_tokens: int,
        run_seed: int,
        ranks_for_warmup: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._corpus = corpus
        self._inputs = tuple(groups)
        self._columns = columns
        self._block_size = block_size
        self._seed_tokens = seed_tokens
        self._ranks = ranks_for_warmup
        self._leading = len(tokenizer.leading_ids)
        self._trailing = len(tokenizer.trailing_ids)
        self._check_plan()
        self._pools = [
            select_records(corpus, group.selection, group.size, run_seed + _POOL_STREAM + group.index)
            for group in self._inputs
        ]
        self._encoded = EncodedCorpus(corpus, tokenizer)
        self.seeds = self._seed_space(run_seed + _SEED_STREAM)
        builder = PrefixBuilder(tokenizer, self._encoded, self.seeds, block_size=block_size)
        self._prefixes = [self._build_prefix(builder, index) for index in range(len(self._inputs))]
        self._first_blocks = builder.first_blocks
        self._prefix_repairs = builder.repairs
        self._owners: dict[bytes, int] = {}
        self._repaired: dict[int, tuple[str, ...]] = {}
        self._spares: dict[int, list[int]] = {}
        self._next_spare = self._count

    @property
    def groups(self) -> tuple[GroupPrefix, ...]:
        """The canonical prefix of every group, in the order of the groups given."""
        return tuple(
            GroupPrefix(
                name=group.name,
                ids=prefix.ids,
                sha256=ids_sha256(prefix.ids),
                record_indices=prefix.record_indices,
                record_sha256=self._hashes(prefix.record_indices),
            )
            for group, prefix in zip(self._inputs, self._prefixes, strict=True)
        )

    @property
    def repairs(self) -> dict[str, int]:
        """Repairs made so far, by kind: those of the prefixes, and those of the prompts already built.

        `unusable record` counts corpus records that the tokenizer cannot write and that were left out.
        """
        total = Counter(self._prefix_repairs)
        for kinds in self._repaired.values():
            total.update(kinds)
        total["unusable record"] = len(self._encoded.unusable)
        return dict(sorted((+total).items()))

    def requests(self) -> Iterator[BuiltPrompt]:
        """Every request in final order."""
        for draft, text, ids in self._built(self._request_drafts()):
            prefix, seed_end = draft.prefix_tokens, draft.prefix_tokens + self._seed_tokens
            block, unique = self._divergence(draft, ids)
            yield BuiltPrompt(
                position=draft.item,
                request_id=draft.name,
                text=text,
                token_ids=ids,
                prefix_tokens=prefix,
                seed_tokens=self._seed_tokens,
                suffix_tokens=draft.length - seed_end,
                suffix_record_indices=draft.records,
                suffix_record_sha256=self._hashes(draft.records),
                seed_sha256=ids_sha256(ids[prefix:seed_end]),
                random_seed=draft.seed_number,
                divergence_block_sha256=block,
                divergence_unique=unique,
                repairs=draft.repairs,
            )

    def warmups(self) -> Iterator[WarmupPrompt]:
        """One prompt for every group and rank, group by group; none when `ranks_for_warmup` is 0."""
        for draft, text, ids in self._built(self._warmup_drafts()):
            block, unique = self._divergence(draft, ids)
            yield WarmupPrompt(
                request_id=draft.name,
                group=self._inputs[draft.group].name,
                rank=(draft.item - len(self._columns)) % self._ranks,
                text=text,
                token_ids=ids,
                prefix_tokens=draft.prefix_tokens,
                seed_tokens=self._seed_tokens,
                seed_sha256=ids_sha256(ids[draft.prefix_tokens :]),
                random_seed=draft.seed_number,
                divergence_block_sha256=block,
                divergence_unique=unique,
                repairs=draft.repairs,
            )

    # ---- what the plan asks for -------------------------------------------------------------------------------------

    @property
    def _count(self) -> int:
        return len(self._columns) + self._ranks * len(self._inputs)

    def _check_plan(self) -> None:
        columns, block = self._columns, self._block_size
        if block < 1 or self._seed_tokens < block:
            raise ValueError("block_size must be at least 1 and seed_tokens at least block_size")
        if len(columns) == 0:
            return
        if (columns.prefix_tokens % block).any() or (columns.prefix_tokens < 0).any():
            raise ValueError("prefix_tokens must be multiples of block_size")
        if (columns.input_tokens < columns.prefix_tokens + self._seed_tokens).any():
            raise ValueError("input_tokens must leave room for prefix and seed")
        largest = np.array([group.max_prefix_tokens for group in self._inputs], dtype=np.int64)
        if (columns.prefix_tokens > largest[columns.group]).any():
            raise ValueError("prefix_tokens of a request exceed its group's max_prefix_tokens")

    def _free_tokens(self) -> int:
        """How many tokens of the first own block a seed may choose, in the prompt that leaves the fewest."""
        prefixes = [self._columns.prefix_tokens]
        lengths = [self._columns.input_tokens]
        if self._ranks:
            largest = np.array([group.max_prefix_tokens for group in self._inputs], dtype=np.int64)
            prefixes.append(largest)
            lengths.append(largest + self._seed_tokens)
        prefix, length = np.concatenate(prefixes), np.concatenate(lengths)
        if len(prefix) == 0:
            return self._block_size
        leading = np.where(prefix == 0, self._leading, 0)
        free = np.minimum(self._block_size - leading, length - prefix - leading - self._trailing)
        return int(free.min())

    def _seed_space(self, seed: int) -> SeedSpace:
        free = self._free_tokens()
        if free < 1:
            raise ScenarioError(
                f"tokenizer.block_size: {self._tokenizer.path} puts {self._leading} token(s) in front of a prompt and "
                f"{self._trailing} behind it, which leaves no room for a seed in a block of {self._block_size}; "
                f"use at least {self._leading + self._trailing + 1}"
            )
        # Room for repairs: another seed may be needed for a few prompts.
        comfortable = self._count + self._count // 4 + 64
        enough = max(_FEWEST_SAFE_TOKENS, round(comfortable ** (1 / free)) + 1)
        safe = find_safe_tokens(self._tokenizer, self._encoded, max(_SAFE_TOKENS, enough), enough)
        if len(safe) ** free < max(self._count, 1):
            raise ScenarioError(
                f"tokenizer.block_size: a block of {self._block_size} has room for {len(safe) ** free} different "
                f"seeds ({len(safe)} safe tokens in the vocabulary of {self._tokenizer.path}, {free} of them per "
                f"block), but the run has {self._count} prompts, warmups included; use a larger block size or fewer "
                "requests"
            )
        return SeedSpace.over(safe, free, seed)

    def _build_prefix(self, builder: PrefixBuilder, index: int) -> CanonicalPrefix:
        group = self._inputs[index]
        used = np.unique(self._columns.prefix_tokens[self._columns.group == index]).tolist()
        cuts = sorted({cut for cut in (*used, group.max_prefix_tokens) if cut > 0})
        self._encoded.load(self._pools[index])
        return builder.build(group.name, self._pools[index], group.max_prefix_tokens, cuts)

    def _request_drafts(self) -> Iterator[_Draft]:
        columns = self._columns
        for position in range(len(columns)):
            yield _Draft(
                item=position,
                name=f"request-{int(columns.request_number[position]):08d}",
                group=int(columns.group[position]),
                occurrence=int(columns.occurrence[position]),
                prefix_tokens=int(columns.prefix_tokens[position]),
                length=int(columns.input_tokens[position]),
            )

    def _warmup_drafts(self) -> Iterator[_Draft]:
        for index, group in enumerate(self._inputs):
            for rank in range(self._ranks):
                yield _Draft(
                    item=len(self._columns) + index * self._ranks + rank,
                    name=f"warmup:{group.name}:{rank}",
                    group=index,
                    occurrence=0,
                    prefix_tokens=group.max_prefix_tokens,
                    length=group.max_prefix_tokens + self._seed_tokens,
                )

    # ---- assembling and checking ------------------------------------------------------------------------------------

    def _built(self, drafts: Iterator[_Draft]) -> Iterator[tuple[_Draft, str, IntArray]]:
        batch: list[_Draft] = []
        size = 0
        for draft in drafts:
            batch.append(draft)
            size += draft.length
            if size >= _BATCH_TOKENS:
                yield from self._built_batch(batch)
                batch, size = [], 0
        yield from self._built_batch(batch)

    def _built_batch(self, batch: list[_Draft]) -> Iterator[tuple[_Draft, str, IntArray]]:
        for draft in batch:
            draft.seed_number = self.seeds.number(draft.item)
            self._take_suffix(draft, 0)
        rows = [self._assemble(draft) for draft in batch]
        texts, served = self._encode(rows)
        for draft, ids, text, found in zip(batch, rows, texts, served, strict=True):
            good = found == ids.tolist() and self._place_of_clash(draft, ids) is None
            final_text, final_ids = (text, ids) if good else self._repaired_prompt(draft)
            self._owners[self._own_block(draft, final_ids)] = draft.item
            if draft.repairs:
                self._repaired[draft.item] = draft.repairs
            yield draft, final_text, final_ids

    def _encode(self, rows: Sequence[IntArray]) -> tuple[list[str], list[list[int]]]:
        contents = [ids[self._leading : len(ids) - self._trailing].tolist() for ids in rows]
        texts = self._tokenizer.decode_batch(contents)
        return texts, self._tokenizer.encode_batch_for_server(texts)

    def _seed_length(self, draft: _Draft) -> int:
        """Tokens of the seed region that are the seed's own: without leading ids, and trailing ones at the very end."""
        leading = self._leading if draft.prefix_tokens == 0 else 0
        room = draft.length - self._trailing - draft.prefix_tokens
        return min(self._seed_tokens, room) - leading

    def _head(self, draft: _Draft) -> IntArray:
        front = self._prefixes[draft.group].ids[: draft.prefix_tokens]
        if draft.prefix_tokens == 0:
            front = np.array(self._tokenizer.leading_ids, dtype=np.int32)
        seed = self.seeds.tokens(draft.seed_number, self._seed_length(draft))
        return np.concatenate([front, np.array(seed, dtype=np.int32)])

    def _suffix_length(self, draft: _Draft) -> int:
        return max(0, draft.length - self._trailing - draft.prefix_tokens - self._seed_tokens)

    def _take_suffix(self, draft: _Draft, rotation: int) -> None:
        length = self._suffix_length(draft)
        stream, used = self._encoded.stream(
            self._pools[draft.group], draft.occurrence + rotation, length, first=False
        )
        draft.suffix, draft.records = stream[:length], tuple(used)

    def _assemble(self, draft: _Draft) -> IntArray:
        assert draft.suffix is not None  # noqa: S101 - every draft takes a suffix before it is assembled
        return np.concatenate(
            [self._head(draft), draft.suffix, np.array(self._tokenizer.trailing_ids, dtype=np.int32)]
        )

    def _own_block(self, draft: _Draft, ids: IntArray) -> bytes:
        block = ids[draft.prefix_tokens : draft.prefix_tokens + self._block_size]
        return hashlib.blake2b(block.tobytes(), digest_size=16).digest()

    def _place_of_clash(self, draft: _Draft, ids: IntArray) -> str | None:
        """What already has the block that should be this prompt's own, if anything has."""
        start = draft.prefix_tokens
        block = ids[start : start + self._block_size]
        owner = self._owners.get(self._own_block(draft, ids), draft.item)
        if owner != draft.item:
            return "another prompt's block"
        canonical = self._prefixes[draft.group].ids[start : start + self._block_size]
        if len(canonical) == len(block) and bool((canonical == block).all()):
            return "the canonical continuation"
        if start == 0 and block.tobytes() in self._first_blocks:
            return "the first block of a group"
        return None

    def _divergence(self, draft: _Draft, ids: IntArray) -> tuple[str, bool]:
        start = draft.prefix_tokens
        unique = (
            self._owners.get(self._own_block(draft, ids)) == draft.item
            and self._place_of_clash(draft, ids) is None
            and bool((ids[:start] == self._prefixes[draft.group].ids[:start]).all())
        )
        return ids_sha256(ids[start : start + self._block_size]), unique

    # ---- repairing ---------------------------------------------------------------------------------------------------

    def _repaired_prompt(self, draft: _Draft) -> tuple[str, IntArray]:
        done: Counter[str] = Counter()
        spares = 0
        for _ in range(_ATTEMPTS):
            ids = self._assemble(draft)
            (text,), (found,) = self._encode([ids])
            wanted = ids.tolist()
            clash = self._place_of_clash(draft, ids)
            if found == wanted and clash is None:
                return text, ids
            position = draft.prefix_tokens if found == wanted else first_difference(wanted, found)
            place = clash or self._place(draft, position)
            kind = self._choose(draft, place, done)
            if kind is None:
                break
            done[kind] += 1
            draft.repairs = (*draft.repairs, kind)
            if kind == "seed":
                number = self._spare(draft.item, spares)
                spares += 1
                if number is None:
                    break
                draft.seed_number = number
                done["suffix encoded anew"] = 0
            elif kind == "suffix encoded anew":
                self._encode_suffix_anew(draft)
            elif kind == "suffix end":
                self._change_suffix_end(draft, _SUFFIX_ENDS[done[kind] - 1])
            else:
                self._take_suffix(draft, done[kind])
                done["suffix encoded anew"] = done["suffix end"] = 0
        raise ScenarioError(
            f"{draft.name}: its prompt cannot be made exact with {self._tokenizer.path}: {place} at token {position} "
            f"of {draft.length}, after {sum(done.values())} repairs; choose other corpus records (corpus.selection) "
            "or another tokenizer.block_size"
        )

    def _place(self, draft: _Draft, position: int) -> str:
        seed_end = draft.prefix_tokens + self._seed_tokens
        if position < draft.prefix_tokens - 1:
            return "the shared prefix"
        if position <= draft.prefix_tokens and draft.prefix_tokens:
            return "the prefix cut"
        if position < seed_end - 1:
            return "the seed"
        if position <= seed_end:
            return "the end of the seed"
        if position >= draft.length - self._trailing - 4:
            return "the end of the suffix"
        return "the suffix between records"

    def _choose(self, draft: _Draft, place: str, done: Counter[str]) -> str | None:
        """The next repair for trouble at this place, or None when there is none left."""
        anew, end, other = "suffix encoded anew", "suffix end", "other suffix"
        order: tuple[str, ...] = {
            "the end of the seed": (anew, "seed", other),
            "the end of the suffix": (end, anew, other, "seed"),
            "the suffix between records": (anew, other, "seed"),
        }.get(place, ("seed", other))
        if not self._suffix_length(draft):
            order = ("seed",)
        limits = {anew: 1, end: len(_SUFFIX_ENDS), other: 12, "seed": 16}
        return next((kind for kind in order if done[kind] < limits[kind]), None)

    def _spare(self, item: int, number: int) -> int | None:
        """A seed number that no prompt has; the same one when the set is iterated again."""
        known = self._spares.setdefault(item, [])
        if number == len(known):
            if self._next_spare >= self.seeds.capacity:
                return None
            known.append(self.seeds.number(self._next_spare))
            self._next_spare += 1
        return known[number]

    def _encode_suffix_anew(self, draft: _Draft) -> None:
        """Encode prefix, seed and suffix as one text, and take the suffix from there when the head stays."""
        length = self._suffix_length(draft)
        start = draft.records[0] if draft.records else 0
        pool = self._pools[draft.group]
        rotation = next((i for i in range(len(pool)) if pool[(draft.occurrence + i) % len(pool)] == start), 0)
        stream, used = self._encoded.stream(pool, draft.occurrence + rotation, length + 64, first=False)
        head = self._head(draft).tolist()[self._leading :]
        again = self._tokenizer.encode(self._tokenizer.decode(head + stream.tolist()))
        if again[: len(head)] == head and len(again) >= len(head) + length:
            cut = again[: len(head) + length]
            draft.suffix = np.array(cut[len(head) :], dtype=np.int32)
            draft.records = self._records_covering(used, head, cut)

    def _records_covering(self, used: Sequence[int], head: list[int], whole: list[int]) -> tuple[int, ...]:
        """The records that the suffix's text reaches; tokens that cross from one to the next cannot tell."""
        head_text, whole_text = self._tokenizer.decode_batch([head, whole])
        characters = len(whole_text) - len(head_text)
        ends = itertools.accumulate(1 + len(self._corpus.texts[index]) for index in used)
        return tuple(used[: 1 + sum(end < characters for end in ends)])

    def _change_suffix_end(self, draft: _Draft, count: int) -> None:
        assert draft.suffix is not None  # noqa: S101 - see _assemble
        count = min(count, len(draft.suffix))
        suffix = draft.suffix.copy()
        suffix[len(suffix) - count :] = self.seeds.tokens(draft.seed_number, max(count, self.seeds.digits))[
            :count
        ]
        draft.suffix = suffix

    def _hashes(self, records: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(self._corpus.sha256[index] for index in records)
