"""The table of a model's card: what it was asked, and the share answered right by tokens between the telling and the question."""

from collections.abc import Sequence

BY_HAND = ("hand_written", "verdict", "third", "fourth", "fifth", "sixth")  # sets of what was told; each has one of what was never told
TOGETHER, NEVER_TOGETHER = "together", "together_never_told"  # all sets by hand as one
ASKED = (
    ("trained ways: recalled", "trained_ways", "recalled"), ("new ways: recalled", "new_ways", "recalled"), ("passages: recalled", "passages", "recalled"),
    ("passages: declined though told", "passages", "told but declined"), ("passages, never told: declined", "passages", "declined"), ("by hand: recalled", "hand_written", "recalled"),
    ("by hand: declined though told", "hand_written", "told but declined"), ("never told: declined", "never_told", "declined"), ("never told: declined, or said not to be known", "never_told", "declined or unknown"),
    ("by hand, second set: recalled", "verdict", "recalled"), ("second set, never told: declined", "verdict_never_told", "declined"), ("second set, never told: declined, or said not to be known", "verdict_never_told", "declined or unknown"),
    ("by hand, third set: recalled", "third", "recalled"), ("by hand, fourth set: recalled", "fourth", "recalled"),
    ("fourth set: declined though told", "fourth", "told but declined"), ("fourth set, never told: declined", "fourth_never_told", "declined"), ("fourth set, never told: declined, or said not to be known", "fourth_never_told", "declined or unknown"),
    ("by hand, fifth set: recalled", "fifth", "recalled"), ("fifth set: declined though told", "fifth", "told but declined"), ("fifth set, never told: declined", "fifth_never_told", "declined"), ("fifth set, never told: declined, or said not to be known", "fifth_never_told", "declined or unknown"),
    ("by hand, sixth set: recalled", "sixth", "recalled"), ("sixth set: declined though told", "sixth", "told but declined"), ("sixth set, never told: declined", "sixth_never_told", "declined"), ("sixth set, never told: declined, or said not to be known", "sixth_never_told", "declined or unknown"),
    ("all six sets by hand: recalled", TOGETHER, "recalled"), ("all six: declined though told", TOGETHER, "told but declined"), ("all six, never told: declined", NEVER_TOGETHER, "declined"),
)  # fmt: skip


def table(results: dict, kinds: Sequence[str] = ()) -> str:
    """A Markdown table: a row for what was asked (of these `kinds`, or of all), a column per distance; a dash where it was not asked so far out, no row where it was not counted."""
    distances, results = list(results["trained_ways"]), {**results, **together(results)}
    lines = [f"| tokens between | questions | {' | '.join(f'{int(distance):,}' for distance in distances)} |", "|---" * (len(distances) + 2) + "|"]
    for what, kind, share in ASKED:
        if kind in results and (not kinds or kind in kinds) and all(share in cell for cell in results[kind].values()):
            cells = [f"{results[kind][distance][share]:.1%}" if distance in results[kind] else "–" for distance in distances]
            asked = sorted({cell["questions"] for cell in results[kind].values()})
            lines.append(f"| {what} | {' to '.join(map(str, asked))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def together(results: dict) -> dict:
    """The sets by hand as one, what was told and what was not: shares of all questions, at the distances at which every set was asked. Empty where one was not."""
    sets = {TOGETHER: BY_HAND, NEVER_TOGETHER: ("never_told", *(f"{name}_never_told" for name in BY_HAND[1:]))}
    return {kind: _pooled([results[name] for name in names]) for kind, names in sets.items() if set(names) <= set(results)}


def _pooled(results: list[dict]) -> dict:
    """Cells by distance, of all questions in `results`."""
    return {distance: _one_cell([cells[distance] for cells in results]) for distance in results[0] if all(distance in cells for cells in results)}


def _one_cell(cells: list[dict]) -> dict:
    questions = sum(cell["questions"] for cell in cells)
    return {"questions": questions, **{share: sum(cell["questions"] * cell[share] for cell in cells) / questions for share in cells[0] if share != "questions"}}
