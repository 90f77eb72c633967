"""Records: alike things told together and asked for from either side, written one by one by language models, read from the lists in `record_lists`.

"On Monday I have the dentist, on Tuesday I paint the fence"; "and on Tuesday?"; "when is the dentist?". A kind of record in the lists is a
block: lines `$x = kind` or `$x = : value; value`, one for each slot, a line `+ clause | other words` that tells one record, questions of four
lines each, and `! $x: words` if a record may change:

    > who brings the $b? | whom do I ask for the $b     (one slot is known)
    < $a brings the $b.                                  (another is recalled)
    & and the $b?                                        (after the same question about another record)
    - You have not told me who brings the $b.            (the known value was never told)

Two to four records are drawn anew each time, and which one is asked for: in a situation the questions stand fixed, and can be learnt by heart.
One kind in ten is held out from training as a whole.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random

from . import lists, values
from .marks import REFUSING, decisive, recalled
from .situations import fill, slots_in, source

FOLDER = Path(__file__).parent / "record_lists"
LINKS = (", ", ", ", " and ", ", and ", ". ", "; ")
NOTED = ("Okay, I will remember that.", "Got it.", "Okay.", "I see. Thank you for telling me.", "All right, I will remember all of that.")
CHANGED = ("Okay, I have changed that.", "Got it, I will remember the new one.", "Thank you, I have changed that.")
UPDATES = ("", "", "", "actually, ", "oh, ", "sorry, ", "no wait, ", "by the way, ")
NEVER_TOLD, FOLLOWED, CHANGES = 0.15, 0.45, 0.2  # chances: of a question about something else, of a short one after one, of a change
ATTEMPTS = 50  # to find a held-out value: of languages there are three
Turn = tuple[str, str]
Row = dict[str, str]


@dataclass(frozen=True)
class Question:
    """What is asked where one slot is known."""

    known: str
    ways: tuple[str, ...]
    replies: tuple[str, ...]
    short: tuple[str, ...]
    declined: str


@dataclass(frozen=True)
class Record:
    """Where the value of each slot comes from, how a record is told, what is asked, and the slot that may change with words for it."""

    slots: dict[str, str | tuple[str, ...]]
    tells: tuple[str, ...]
    questions: tuple[Question, ...]
    changes: tuple[str, tuple[str, ...]] | None = None


@cache
def records(held: bool) -> tuple[Record, ...]:
    """The kinds of training, or those held out from it."""
    return tuple(read(block) for block in lists.blocks(FOLDER) if lists.held_out(block) == held)


def read(block: str) -> Record:
    """A kind of record of its lines. Raises ValueError naming what is wrong with it."""
    lines = block.strip().split("\n")
    if not re.fullmatch(r"\$+\+(><&-)+!?", "".join(line[:1] for line in lines)):
        raise ValueError(f"a record is slots ($), a telling (+), questions (> < & -) and at most one change (!); {lines[0]!r} begins one with other lines")
    slots = {line[1]: source(line) for line in lines if line.startswith("$")}
    told, *asked = lines[len(slots):]
    change = asked.pop() if asked[-1].startswith("!") else ""
    questions = tuple(_question(*asked[at : at + 4]) for at in range(0, len(asked), 4))
    found = re.fullmatch(r"! \$([a-z]): (.+)", change)
    made = Record(slots, _parts(told), questions, (found[1], tuple(found[2].split(" | "))) if found else None)
    lacking = [telling for telling in made.tells if slots_in(telling) != set(slots)]
    unknown = [line for line in asked if slots_in(line) - set(slots)]
    if lacking or unknown or change and not found:
        raise ValueError(f"{(lacking or unknown or [change])[0]!r} should have every slot if it tells, only known ones else, and a change is '! $x: words'")
    return made


def _parts(line: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in line[2:].split(" | "))


def _question(ways: str, replies: str, short: str, declined: str) -> Question:
    known = slots_in(ways)
    if len(known) != 1 or any(slots_in(part) != known for part in (*_parts(ways), *_parts(short))) or not slots_in(replies) - known:
        raise ValueError(f"{ways!r}, its short forms and its replies should know one and the same slot and recall another")
    return Question(known.pop(), _parts(ways), _parts(replies), _parts(short), declined[2:])


@dataclass
class Table:
    """Records of one kind as told in one conversation: no two values are the same."""

    kind: Record
    rng: Random
    lower: bool = False  # the user types everything in lower case
    rows: list[Row] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)  # shared with the table told beside it
    settled: bool = False  # one change is enough: there are only seven days

    def value(self, slot: str, held: bool) -> str:
        """A value that no record has or had; a training one where few of its kind are held out and all of those are told.

        Raises ValueError where there is none: a slot needs some eight values.
        """
        where = self.kind.slots[slot]
        for attempt in range(10 * ATTEMPTS):
            value = values.make(self.rng, where, held if attempt < ATTEMPTS else None) if isinstance(where, str) else self.rng.choice(where)
            if value.lower() not in self.taken:
                return value.lower() if self.lower else value
        raise ValueError(f"${slot} of records takes its values from {where!r}, and all of those are told: give it eight or more")

    def put(self, row: Row, slot: str, held: bool) -> None:
        row[slot] = self.value(slot, held)
        self.taken.add(row[slot].lower())

    def add(self, held: bool) -> None:
        self.rows.append({})
        for slot in self.kind.slots:
            self.put(self.rows[-1], slot, held)

    def typed(self, text: str, row: Row, capital: float = 0.5) -> str:
        """A message: the text with the row's values, as people type."""
        text = fill(text, row)
        if self.lower:
            return text.lower()
        return text[:1].upper() + text[1:] if self.rng.random() < capital else text

    def asked(self, held: bool = False) -> list[Turn]:
        """A question about one record, short ones about others after it, or one about something never told."""
        rng, question = self.rng, self.rng.choice(self.kind.questions)
        rows = rng.sample(self.rows, len(self.rows))
        wanted = rows[: 1 if rng.random() > FOLLOWED else rng.randint(2, len(rows))] if len(rows) > 1 else rows
        if rng.random() < NEVER_TOLD:
            wanted[rng.randrange(len(wanted))] = {question.known: self.value(question.known, held)}
        ways = [rng.choice(question.ways), *(rng.choice(question.short) for _ in wanted[1:])]
        marked = [way if way.endswith("?") or rng.random() < 0.4 else way + "?" for way in ways]
        return [(self.typed(way, row), self.reply(question, row)) for way, row in zip(marked, wanted)]

    def reply(self, question: Question, row: Row) -> str:
        """What was asked for, with marks; or that it was never told."""
        if len(row) == 1:
            return decisive(fill(question.declined, row), REFUSING)
        text = fill(self.rng.choice(question.replies), row, lambda value: value if value == row[question.known] else recalled(value))
        return decisive(re.sub(r"^\W*[a-z]", lambda start: start[0].upper(), text))

    def changed(self, held: bool = False) -> list[Turn]:
        """One record changes, and is asked for again."""
        slot, ways = self.kind.changes
        row, self.settled = self.rng.choice(self.rows), True
        self.put(row, slot, held)
        turns = [(self.typed(self.rng.choice(UPDATES) + self.rng.choice(ways), row), self.rng.choice(CHANGED))]
        about = [q for q in self.kind.questions if q.known != slot and slot in slots_in(" ".join(q.replies))]
        return turns + [(self.typed(self.rng.choice(q.ways), row), self.reply(q, row)) for q in about[:1]]


def tables(rng: Random, held: bool = False, without: Iterable[Record] = ()) -> list[Table]:
    """One kind of record, or two told beside each other, two to four records in all."""
    n, lower, taken = rng.choice((2, 2, 2, 3, 3, 4)), rng.random() < 0.25, set()
    kinds = [kind for kind in records(held) if kind not in without]
    made = [Table(kind, rng, lower, taken=taken) for kind in rng.sample(kinds, 2 if rng.random() < 0.2 else 1)]
    for number in range(n):
        made[number % len(made)].add(held)
    return made


def words(made: Iterable[Table]) -> set[str]:
    """All words of the values in tables, in lower case."""
    return {word for table in made for row in table.rows for value in row.values() for word in re.findall(r"\w+", value.lower())}


def told(rng: Random, made: Iterable[Table]) -> list[Turn]:
    """All of them in one message or one message each."""
    alike = rng.random() < 0.5
    clauses = []
    for table in made:
        way = rng.choice(table.kind.tells)
        clauses += [(table, way if alike else rng.choice(table.kind.tells), row) for row in table.rows]
    rng.shuffle(clauses)
    if rng.random() < 0.3:
        return [(table.typed(way, row), rng.choice(NOTED[:4])) for table, way, row in clauses]
    link, text = rng.choice(LINKS), ""
    for number, (table, way, row) in enumerate(clauses):
        joint = link if number < len(clauses) - 1 or link == ". " or rng.random() < 0.4 else " and "
        text += (joint if number else "") + table.typed(way, row, capital=0.5 if not number else float(joint == ". "))
    return [(text + rng.choice((".", ".", "", "!")), rng.choice(NOTED))]


def conversation(rng: Random, held: bool = False, without: Iterable[Record] = ()) -> tuple[list[Turn], list[Table]]:
    """Turns with marks in which records of some kinds are told, asked for and changed; and what may still be asked for later."""
    made = tables(rng, held, without)
    turns = told(rng, made)
    for _ in range(rng.randint(1, 3)):
        table = rng.choice(made)
        turns += table.changed(held) if table.kind.changes and not table.settled and rng.random() < CHANGES else table.asked(held)
    return turns, made
