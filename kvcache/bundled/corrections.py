"""Corrections that do not say what they correct: "actually it's orange now", "sorry, Berlin, not Bern"."""

from dataclasses import replace
from random import Random

from . import grammar, phrases
from .facts import PLURAL, Fact

_BEFORE = {"job": "$a ", "bought": "$a ", "their job": "$a ", "their gift": "$a ", "their workplace": "$a ", "pet toy": "$a ", "stay gift": "$a ", "car": "a ", "their car": "$a ", "instrument": "the ", "their instrument": "the ", "event room": "room "}
_AFTER = {"thing age": " old"}
_WITH_OLD = ("{sorry|no|oops|wait|hmm|oh|I mean|hang on}, $v{,|} not $o", "not $o{,| but} $v", "$v, not $o{, sorry|}", "{it's|it is} not $o, {it's|it is} $v", "{it's|it is} $v {now, |}not $o {any more|now}", "I {meant|mean} $v, not $o", "I said $o, but {it's|I meant|it should be} $v", "{it's|that's} not $o any more but $v", "$o was wrong, {it's|it is} $v")
_PLAIN = ("{actually|sorry|no|no wait|wait|oops|oh|hmm|hang on|my mistake}{,|} {it's|it is} $v{| now| instead}", "{no wait|no|wait|sorry|hang on|oops|oh}, I {meant|mean} $v", "{it|that} {has changed|changed|is now|was changed|'s changed} to $v", "{make|let's make} {that|it} $v{| please| instead}", "{please |can you |}change {it|that} to $v{| please}",
          "{wrong|not quite|not any more|no longer true|that's wrong|I was wrong|I made a mistake}{,|:} it's $v", "scratch that, it's $v", "{correction|update|change|new}: {it's |now |}$v", "{I|we} changed {it|that} to $v", "{it's|it is} $v now", "{it should be|it must be|it has to be|that should be} $v", "I changed my mind, $v", "no, $v", "{I|sorry, I} got {it|that} wrong, {it's|it is} $v", "{it turns out|now} it's $v", "{forget|ignore} that, {it's|it is} $v", "it's $v after all", "$v{, I mean|, sorry|, actually| now| instead}", "actually $v{| now| please}", "they changed it to $v")


def correct(rng: Random, old: Fact, value: str, held: bool) -> str:
    """A message that puts `value` in the place of the fact just spoken of."""
    text = phrases.choose(rng, _WITH_OLD if rng.random() < 0.35 else _PLAIN, held)
    if old.kind == "spot" and old.key in PLURAL:
        text = text.replace("it's", "they're").replace("it is", "they are")
    before, after = _BEFORE.get(old.kind, ""), _AFTER.get(old.kind, "")
    bare = rng.random() < 0.5  # "Tuesday" for "on Tuesday"
    new_and_old = [fact.split[1] if bare else fact.value for fact in (replace(old, value=value), old)]
    shown = [before.replace("$a", grammar.article(v)) + v + after for v in new_and_old]
    return text.replace("$v", shown[0]).replace("$o", shown[1])
