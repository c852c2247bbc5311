"""The built-in corpus: word problems of the grade-school kind, made from HitLab's own templates.

Every problem is a small story with whole numbers and one question; the answer is computed beside it. The generator is
pure: the same seed gives the same bytes.
"""

# ruff: noqa: E501 - a sentence of a template reads best on one line

import json
import random
from collections.abc import Callable
from typing import NamedTuple


def _words(text: str) -> list[str]:
    return text.split()


def _phrases(text: str) -> list[str]:
    return text.split(";")


COUNT = 4096
_SEED = 20_260_101
_NAMES = _words(
    "Amara Anton Asha Beatriz Bruno Carmen Chidi Clara Daniel Dario Elena Elif Emil Farah Felix Fatima Gloria "
    "Goran Hana Hector Ibrahim Ingrid Isla Ivan Jana Jonas Julia Kaito Karim Katya Kofi Lars Layla Leila Lin "
    "Lucas Magda Malik Marta Mateo Mei Mila Milan Mina Nadia Naoki Nils Nora Omar Oskar Paula Pavel Petra "
    "Priya Rafael Ravi Rosa Ruth Samir Sara Selma Sven Tala Tariq Theo Tomas Uma Vera Viktor Wanda Yara Yusuf "
    "Zara Zoe"
)
# Family and town names are put together from two halves, as many real ones are.
_FAMILY_STARTS = _words(
    "Ander Asker Bald Berg Birk Bjorn Black Bran Brook Carl Clay Dahl Den Dun East Eber Edel Elling Falk Fen "
    "Fjell Gart Glen Gold Green Grun Hag Hald Har Hof Holm Jan Kel Kirk Klein Lang Lind Lock Lund Mar Mel Mor "
    "Nor Ny Os Pen Quar Rad Ras Reed Rosen Sand Sel Sol Stein Storm Sund Tor Tran Tull Ulv Vald Vester Wald "
    "War Wes Win Wolf York"
)
_FAMILY_ENDS = _words(
    "ak bauer beck berg blom by dahl den er feld ford gaard gren hart holt ing ius kamp ley lin lund man mark "
    "mann nes off ow quist rud son stad stein strom ton vik ward wick wood worth"
)
_TOWN_STARTS = _words(
    "Alder Amber Ash Badger Barley Beacon Bell Birch Bramble Bridge Bright Broad Chalk Cherry Copper Crow "
    "Deep Dove Elder Ember Fair Falcon Fern Flint Fox Frost Gold Granite Hare Hawk Hazel Heather Heron High "
    "Iron Ivy Juniper King Lark Linden Long Maple Marsh Mill Mist Moss North Oak Otter Owl Pebble Pine Quarry "
    "Quill Raven Reed River Rowan Saddle Salt Silver Slate Snow South Spring Stone Summer Swan Thistle Thorn "
    "Timber Upper Walnut Weather West Wheat White Willow Winter Wood Wren"
)
_TOWN_ENDS = _words(
    "bank bay bourne bridge brook burgh bury cliff combe creek crest dale den fell field ford gate glen grove "
    "ham haven hill holm hurst lake lea mere mill minster moor mouth point pool port ridge side stead ton "
    "vale view ville water well wick wold worth"
)
_FRUIT = _words(
    "apples apricots avocados bananas cherries figs grapefruits kiwis lemons limes mangoes nectarines oranges "
    "peaches pears pineapples plums pomegranates strawberries tangerines"
)
_SUPPLIES = _words(
    "binders brushes crayons erasers folders markers notebooks pencils pens rulers scissors stickers stencils "
    "envelopes highlighters sketchbooks staplers"
)
_BAKED = _words(
    "bagels brownies buns cookies croissants cupcakes doughnuts muffins pancakes pies pretzels rolls scones "
    "tarts waffles"
)
_COLLECTIBLES = _phrases(
    "badges;beads;buttons;coins;marbles;medals;minerals;postcards;puzzles;seashells;stamps;toys;trading cards"
)
_ANIMALS = _words("chickens cows donkeys ducks geese goats horses llamas pigs rabbits sheep turkeys")
_FLOWERS = _words(
    "asters begonias daffodils dahlias daisies irises lilies orchids poppies roses sunflowers tulips"
)
_TREES = _words("almond apple birch cedar cherry chestnut maple oak olive pear pine walnut willow")
_PLACES = _phrases(
    "the airport;the aquarium;the bakery;the bookshop;the botanical garden;the bus station;"
    "the community centre;the concert hall;the farmers' market;the harbour;the hospital;the library;"
    "the lighthouse;the museum;the observatory;the post office;the sports hall;the swimming pool;the theatre;"
    "the town hall;the train station;the zoo"
)
_RELATIVES = _words("brother sister cousin grandfather grandmother neighbour uncle aunt classmate colleague")
_DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_MONTHS = _words("January March April May June August September October November")
_SPORTS = _words("badminton basketball chess handball hockey rugby swimming tennis volleyball rowing")
_VEHICLES = _words("bus ferry minibus tram train truck van")
_CRAFTS = _words(
    "baskets blankets bracelets candles hats kites lanterns mittens mugs necklaces quilts scarves vases"
)
_DRINKS = _phrases("apple juice;cocoa;lemonade;iced tea;milk;orange juice;soup;spring water")
_NUMBER_WORDS = _words("two three four five six seven eight nine ten eleven twelve")


class Problem(NamedTuple):
    """One question and its answer."""

    question: str
    answer: int


class _Draw:
    """Words and numbers for one problem, drawn without repeating a name within it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names = rng.sample(_NAMES, 3)

    def name(self) -> str:
        return self._names.pop()

    def full_name(self) -> str:
        return f"{self.name()} {self._rng.choice(_FAMILY_STARTS)}{self._rng.choice(_FAMILY_ENDS)}"

    def town(self) -> str:
        return f"{self._rng.choice(_TOWN_STARTS)}{self._rng.choice(_TOWN_ENDS)}"

    def of(self, words: list[str]) -> str:
        return self._rng.choice(words)

    def two_of(self, words: list[str]) -> tuple[str, str]:
        first, second = self._rng.sample(words, 2)
        return first, second

    def number(self, low: int, high: int) -> int:
        return self._rng.randint(low, high)

    def word_number(self) -> tuple[str, int]:
        index = self._rng.randrange(len(_NUMBER_WORDS))
        return _NUMBER_WORDS[index], index + 2


def _market_stall(d: _Draw) -> Problem:
    fruit, day = d.of(_FRUIT), d.of(_DAYS)
    start, sold, crates, each = d.number(120, 400), d.number(15, 110), d.number(2, 9), d.number(10, 24)
    return Problem(
        f"{d.full_name()} opens a market stall in {d.town()} on {day} with {start} {fruit}. Before lunch {sold} of them are sold, and in the "
        f"afternoon a van delivers {crates} more crates of {each} {fruit} each. How many {fruit} are on the stall now?",
        start - sold + crates * each,
    )


def _classroom(d: _Draw) -> Problem:
    first, second = d.two_of(_SUPPLIES)
    pupils, per_first, per_second = d.number(12, 34), d.number(2, 6), d.number(1, 5)
    return Problem(
        f"{d.full_name()} teaches a class of {pupils} pupils in {d.town()}. Every pupil needs {per_first} {first} and {per_second} {second} "
        "for the school year. How many things must be ordered in total?",
        pupils * (per_first + per_second),
    )


def _bakery(d: _Draw) -> Problem:
    name, baked = d.name(), d.of(_BAKED)
    trays, each, burnt, price = d.number(4, 15), d.number(8, 24), d.number(2, 20), d.number(2, 5)
    return Problem(
        f"At the bakery in {d.town()}, {name} puts {trays} trays of {baked} into the oven, and each tray holds {each} of them. "
        f"{burnt} {baked} come out burnt and are thrown away. The rest are sold for ${price} each. "
        "How many dollars does the bakery take in?",
        (trays * each - burnt) * price,
    )


def _collection(d: _Draw) -> Problem:
    name, relative, things = d.name(), d.of(_RELATIVES), d.of(_COLLECTIBLES)
    start, (word, factor), lost = d.number(20, 90), d.word_number(), d.number(3, 18)
    return Problem(
        f"{name} collects {things} and already has {start} of them. For a birthday, {name}'s {relative} gives away a "
        f"box with {word} times as many. On the way home {lost} {things} fall out of the box and cannot be found. "
        f"How many {things} does {name} own in the end?",
        start + start * factor - lost,
    )


def _train_ride(d: _Draw) -> Problem:
    vehicle, place = d.of(_VEHICLES), d.of(_PLACES)
    start, off, on, off_again = d.number(80, 160), d.number(5, 30), d.number(5, 40), d.number(5, 40)
    return Problem(
        f"A {vehicle} leaves {place} in {d.town()} with {start} passengers. At the first stop {off} people get off and {on} get on. "
        f"At the second stop {off_again} people leave and nobody boards. How many passengers are still on the "
        f"{vehicle}?",
        start - off + on - off_again,
    )


def _savings(d: _Draw) -> Problem:
    name, month = d.name(), d.of(_MONTHS)
    weekly, weeks, gift, spent = d.number(5, 25), d.number(6, 20), d.number(10, 60), d.number(10, 30)
    return Problem(
        f"Since the start of {month}, {name} has put ${weekly} into a money box every week. After {weeks} weeks a "
        f"grandmother adds ${gift}, and {name} spends ${spent} on a present. How much money is left in the box?",
        weekly * weeks + gift - spent,
    )


def _farm(d: _Draw) -> Problem:
    first, second = d.two_of(_ANIMALS)
    count, more, sold = d.number(20, 70), d.number(5, 30), d.number(3, 18)
    return Problem(
        f"{d.full_name()} keeps {count} {first} on a farm near {d.town()}, and {more} more {second} than {first}. In spring {sold} of the "
        f"{second} are sold to a neighbour. How many animals live on the farm after that?",
        count + count + more - sold,
    )


def _garden(d: _Draw) -> Problem:
    first, second = d.two_of(_FLOWERS)
    rows, each, more_rows, more_each = d.number(3, 12), d.number(6, 20), d.number(2, 9), d.number(5, 16)
    return Problem(
        f"In the park of {d.town()}, {d.full_name()} plants {rows} rows of {first} with {each} in every row, and {more_rows} rows of "
        f"{second} with {more_each} in every row. How many flowers are there when the work is done?",
        rows * each + more_rows * more_each,
    )


def _reading(d: _Draw) -> Problem:
    name, day = d.name(), d.of(_DAYS)
    daily, days, rest = d.number(12, 45), d.number(4, 14), d.number(10, 120)
    return Problem(
        f"{name} borrows a novel by {d.full_name()} from the library on a {day} and reads {daily} pages every evening. After {days} "
        f"evenings there are still {rest} pages to go. How many pages does the novel have?",
        daily * days + rest,
    )


def _orchard(d: _Draw) -> Problem:
    name, town, tree = d.name(), d.town(), d.of(_TREES)
    volunteers, share, (word, _) = d.number(20, 90), d.number(3, 12), d.word_number()
    return Problem(
        f"{name} wants to plant {volunteers * share} {tree} trees along the river in {town}. {volunteers} volunteers "
        f"come to help and plant the same number each. After {word} days they are finished. How many trees did each "
        "volunteer plant?",
        share,
    )


def _tickets(d: _Draw) -> Problem:
    place, day = d.of(_PLACES), d.of(_DAYS)
    adults, children, adult_price, discount = (
        d.number(20, 150),
        d.number(15, 120),
        d.number(8, 20),
        d.number(2, 6),
    )
    return Problem(
        f"A ticket for {place} in {d.town()} costs ${adult_price} for adults, and children pay ${discount} less. On {day}, {adults} "
        f"adults and {children} children come in. How many dollars are paid for tickets on that day?",
        adults * adult_price + children * (adult_price - discount),
    )


def _club(d: _Draw) -> Problem:
    sport, (word, groups) = d.of(_SPORTS), d.word_number()
    per_group, trainers, newcomers = d.number(6, 18), d.number(1, 3), d.number(2, 15)
    return Problem(
        f"The {sport} club of {d.town()} has {word} training groups. In each group there are {per_group} members and {trainers} "
        f"coach{'es' if trainers > 1 else ''}. In September {newcomers} new members join. How many people belong to the club now, coaches "
        "included?",
        groups * (per_group + trainers) + newcomers,
    )


def _crafts(d: _Draw) -> Problem:
    name, craft = d.name(), d.of(_CRAFTS)
    hourly, hours, days, price = d.number(2, 6), d.number(3, 8), d.number(2, 9), d.number(4, 15)
    return Problem(
        f"{name} lives in {d.town()}, makes {craft} by hand and finishes {hourly} of them an hour. {name} works {hours} hours a day for "
        f"{days} days and sells all the {craft} at ${price} apiece. How much money does {name} earn?",
        hourly * hours * days * price,
    )


def _walk(d: _Draw) -> Problem:
    name, (here, there) = d.name(), d.two_of(_PLACES)
    metres, trips, extra = d.number(3, 18) * 50, d.number(2, 7), d.number(2, 12) * 50
    return Problem(
        f"It is {metres} metres from {here} to {there}. This week {name} walks there and back {trips} times, and once "
        f"takes a detour of {extra} metres. How many metres does {name} walk in total?",
        metres * 2 * trips + extra,
    )


def _drinks(d: _Draw) -> Problem:
    drink, guests, per_guest, litres = d.of(_DRINKS), d.number(10, 60), d.number(2, 5), d.number(2, 6)
    needed = guests * per_guest * 200
    bottles = -(-needed // (litres * 1000))
    return Problem(
        f"For a party in {d.town()} with {guests} guests, the host expects everybody to drink {per_guest} glasses of {drink}. A "
        f"glass holds 200 millilitres, and {drink} is sold in cans of {litres} litres. How many cans must the host "
        "buy at least?",
        bottles,
    )


def _ages(d: _Draw) -> Problem:
    name, other, relative = d.name(), d.name(), d.of(_RELATIVES)
    age, (word, factor), years = d.number(4, 12), d.word_number(), d.number(3, 20)
    return Problem(
        f"{name} is {age} years old. {name}'s {relative} {other} is {word} times as old. How old will {other} be in "
        f"{years} years?",
        age * factor + years,
    )


def _shelves(d: _Draw) -> Problem:
    name, place = d.name(), d.of(_PLACES)
    shelves, each, borrowed, returned = d.number(5, 24), d.number(18, 45), d.number(20, 80), d.number(5, 19)
    return Problem(
        f"{name} works at {place} in {d.town()} and looks after {shelves} shelves with {each} books on each. During the week "
        f"visitors borrow {borrowed} books and bring back {returned}. How many books stand on the shelves now?",
        shelves * each - borrowed + returned,
    )


def _paint(d: _Draw) -> Problem:
    name, other = d.name(), d.name()
    first, second, hours, left = d.number(3, 9), d.number(2, 8), d.number(3, 12), d.number(5, 40)
    return Problem(
        f"{name} paints {first} fence boards an hour, and {other} paints {second}. They work side by side for "
        f"{hours} hours, and then {left} boards are still bare. How many boards does the fence have?",
        (first + second) * hours + left,
    )


def _delivery(d: _Draw) -> Problem:
    vehicle, (first, second) = d.of(_VEHICLES), d.two_of(_FRUIT)
    boxes, weight, others, other_weight = d.number(10, 40), d.number(4, 12), d.number(10, 50), d.number(3, 15)
    return Problem(
        f"On the road from {d.town()} to {d.town()}, a {vehicle} carries {boxes} boxes of {first} that weigh {weight} kilograms each and {others} boxes of "
        f"{second} that weigh {other_weight} kilograms each. What is the weight of the whole load in kilograms?",
        boxes * weight + others * other_weight,
    )


def _sharing(d: _Draw) -> Problem:
    name, relative, things = d.name(), d.of(_RELATIVES), d.of(_COLLECTIBLES)
    friends, each, kept = d.number(3, 12), d.number(4, 20), d.number(5, 25)
    return Problem(
        f"{name} wants to give away {friends * each + kept} {things}. {name} keeps {kept} for a {relative} and shares "
        f"the others equally among {friends} friends. How many {things} does each friend receive?",
        each,
    )


def _phone(d: _Draw) -> Problem:
    name, month = d.name(), d.of(_MONTHS)
    fee, minutes, cents = d.number(8, 25), d.number(2, 30) * 10, d.number(1, 3) * 10
    return Problem(
        f"{name}'s telephone plan costs ${fee} a month plus {cents} cents for each minute. In {month}, {name} talked "
        f"for {minutes} minutes. How many dollars is the bill for that month?",
        fee + minutes * cents // 100,
    )


def _tank(d: _Draw) -> Problem:
    place = d.of(_PLACES)
    start, inflow, outflow, hours = d.number(20, 90) * 10, d.number(30, 80), d.number(5, 29), d.number(2, 12)
    return Problem(
        f"The water tank behind {place} in {d.town()} holds {start} litres. A pump adds {inflow} litres an hour, while a leak lets "
        f"{outflow} litres an hour run out. How many litres are in the tank after {hours} hours?",
        start + (inflow - outflow) * hours,
    )


def _tournament(d: _Draw) -> Problem:
    sport, name = d.of(_SPORTS), d.full_name()
    wins, draws, per_win, missing = d.number(4, 20), d.number(1, 9), d.number(2, 4), d.number(2, 12)
    return Problem(
        f"In the {sport} league a win brings {per_win} points and a draw brings 1 point. {name}'s team has won {wins} "
        f"games and drawn {draws}. The leaders, from {d.town()}, are {missing} points ahead. How many points do the leaders have?",
        wins * per_win + draws + missing,
    )


def _quilt(d: _Draw) -> Problem:
    name, other, craft = d.name(), d.name(), d.of(_CRAFTS)
    mine, more, given = d.number(12, 60), d.number(3, 25), d.number(2, 11)
    return Problem(
        f"{name} and {other} bring their {craft} to the spring fair. {name} has {mine} of them, which is {more} fewer "
        f"than {other}. After {other} gives {given} to {name}, how many {craft} does {other} still have?",
        mine + more - given,
    )


def _parking(d: _Draw) -> Problem:
    place, (word, levels) = d.of(_PLACES), d.word_number()
    rows, spaces, taken = d.number(4, 12), d.number(10, 25), d.number(20, 75)
    return Problem(
        f"The car park at {place} in {d.town()} has {word} levels, every level has {rows} rows, and there are {spaces} spaces in a "
        f"row. This morning {taken} spaces are taken. How many spaces are free?",
        levels * rows * spaces - taken,
    )


def _eggs(d: _Draw) -> Problem:
    name, day = d.name(), d.of(_DAYS)
    hens, eggs, days, kept = d.number(8, 40), d.number(1, 2), d.number(5, 14), d.number(4, 30)
    sold = hens * eggs * days - kept
    return Problem(
        f"{name} from {d.town()} has {hens} hens, and each of them lays {eggs} egg{'s' if eggs > 1 else ''} a day. Starting on {day}, "
        f"{name} gathers the eggs for {days} days, keeps {kept} of them for the kitchen and sells the others. How "
        "many eggs are sold?",
        sold,
    )


def _lunch(d: _Draw) -> Problem:
    name, (first, second) = d.name(), d.two_of(_BAKED)
    first_count, first_price, second_count, second_price = (
        d.number(2, 9),
        d.number(2, 6),
        d.number(2, 9),
        d.number(1, 5),
    )
    cost = first_count * first_price + second_count * second_price
    note = (cost // 20 + 1) * 20
    return Problem(
        f"{name} buys {first_count} {first} at ${first_price} each and {second_count} {second} at ${second_price} "
        f"each, and pays with ${note}. How much change does {name} get back?",
        note - cost,
    )


def _concert(d: _Draw) -> Problem:
    place = d.of(_PLACES)
    rows, seats, empty, standing = d.number(10, 30), d.number(12, 36), d.number(8, 80), d.number(10, 60)
    return Problem(
        f"{d.full_name()} plays the violin at {place} in {d.town()}. There are {rows} rows with {seats} seats each; {empty} seats stay empty, "
        f"but {standing} people stand along the walls. How many people listen to the concert?",
        rows * seats - empty + standing,
    )


_TEMPLATES: tuple[Callable[[_Draw], Problem], ...] = (
    _market_stall, _classroom, _bakery, _collection, _train_ride, _savings, _farm, _garden, _reading, _orchard,
    _tickets, _club, _crafts, _walk, _drinks, _ages, _shelves, _paint, _delivery, _sharing, _phone, _tank,
    _tournament, _quilt, _parking, _eggs, _lunch, _concert,
)  # fmt: skip


def generate(count: int = COUNT, seed: int = _SEED) -> list[Problem]:
    """`count` problems with distinct questions; the templates take turns, so neighbours tell different stories."""
    rng = random.Random(seed)
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = _TEMPLATES[len(problems) % len(_TEMPLATES)](_Draw(rng))
        problems.setdefault(problem.question, problem)
    return list(problems.values())


def corpus_bytes() -> bytes:
    """The corpus file: one JSON object per line, UTF-8."""
    lines = (json.dumps({"question": q, "answer": str(a)}, ensure_ascii=False) for q, a in generate())
    return "".join(f"{line}\n" for line in lines).encode()
