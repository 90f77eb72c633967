"""The Learn tab: what a KV cache is, which one suits whom, one card per catalog entry, and the words of the field."""
from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from kvcache.entry import OPERATIONS

from .forms import info_text
from .learn_pictures import TOKENS, picture_html

TITLE = "What a cache keeps, and what it costs"
LEAD = (
    "To write the next token, a transformer looks back at every earlier one through the key and the value that each layer made of it. Keeping those, so that they are not computed again, is the KV cache.",
    "It grows with every token and can outweigh the model in a long conversation. Caches differ in what they keep, how precisely, and where.",
)
CHOICES = (  # (who you are, the cache, why)
    ("Everything fits", "dynamic", "Exact, and nothing to set. Begin here."),
    ("Memory is short, and nothing may be forgotten", "quantized", "4 bits keep every token in about a quarter of the bytes; replies hardly change. Try 4 bits for keys and 2 for values next."),
    ("A long context, of which some is enough", "evicting", "A fixed budget for each head; a policy keeps what attention looks at. Facts nobody looks at are lost."),
    ("An endless chat, of which the latest counts", "sink", "The first tokens and a window: flat memory, and the text stays fluent for ever."),
    ("torch.compile, or a fixed budget of memory", "static", "Reserves all of it at the first token, so that nothing moves while decoding."),
    ("A GPU too small for the cache, and time to wait", "offloaded", "Exact; the layers wait in the host's memory and are fetched ahead of their turn."),
    ("Gemma and kin, which alternate windows", "hybrid", "Room for the window alone in the layers that look no further."),
    ("Mamba and kin", "mamba", "A state of fixed size. Models with attention beside it take hybrid_mamba."),
    ("T5, BART, Whisper", "encoder_decoder", "Any of the others for what the decoder says, beside the text that was read."),
)
GLOSSARY = {
    "token": "A word or a part of one: what a model reads and writes.",
    "prefill, decode": "Reading a prompt, many tokens in one forward; then writing, one token in each.",
    "seen, held, evicted": "Tokens that were fed; those that are still stored; those that were dropped.",
    "residual": "The latest tokens of a quantized cache, in full precision until a block of them is rounded.",
    "scales": "What turns rounded numbers back: a scale and a smallest value for each group of them.",
    "sinks": "The first few tokens, to which much attention goes whatever they say. Without them a model that slides soon writes nonsense.",
    "used, reserved": "Bytes of tokens that are there, and bytes allocated ahead for those to come.",
    "state": "What a recurrent layer keeps in place of tokens: a summary whose size never changes.",
    "KL divergence": "How far the next token's probabilities are from the full cache's, in nats. 0 is the same; from about 0.1 on, replies begin to differ.",
    "fused attention": "Attention that reads rounded tokens as they are stored, without decoding them first.",
    "prefix reuse": "Going on from tokens that a cache has seen already, in place of reading them again.",
}


def lead_html() -> str:
    """A title and what a cache is, in two sentences."""
    return f'<h1 class="kv-learn-title">{escape(TITLE)}</h1>' + "".join(f'<p class="kv-lead">{escape(words)}</p>' for words in LEAD)


def choice_html(entries: Mapping[str, Any]) -> str:
    """Which cache for whom, with the reason, each a link to its card."""
    rows = "".join(
        f'<li><span>{escape(who)}</span><a href="#kv-about-{name}">{escape(entries[name].title)}</a><span>{escape(why)}</span></li>' for who, name, why in CHOICES if name in entries
    )
    return f'<div class="kv-card kv-choice"><h2>Which cache for me?</h2><ul>{rows}</ul></div>'


def glossary_html() -> str:
    """The field's words, a line each."""
    rows = "".join(f"<dt>{escape(word)}</dt><dd>{escape(meaning)}</dd>" for word, meaning in GLOSSARY.items())
    return f'<div class="kv-card kv-glossary"><h2>Words</h2><dl>{rows}</dl></div>'


def cards_html(entries: Mapping[str, Any]) -> str:
    """All cards, in the order of the catalog."""
    intro = f'<h2>Every cache, after {TOKENS} tokens</h2><p class="kv-quiet">Each square stands for tokens of one conversation, the oldest first, with the settings that the cache starts with.</p>'
    return f'{intro}<div class="kv-cards">{"".join(card_html(entry) for entry in entries.values())}</div>'


def card_html(entry: Any) -> str:
    """One cache: what it is for and what it keeps; folded, what can be set, what it refuses, where it comes from."""
    reason = entry.why_not_here()
    loss = ('<span class="kv-tag kv-lossy">forgets or rounds</span>' if entry.lossy else '<span class="kv-tag">exact</span>')
    parts = [
        f"<h3>{escape(entry.title)} {loss}</h3>", f"<p>{escape(entry.summary)}</p>",
        f'<p class="kv-warning">{escape(reason)}</p>' if reason else picture_html(entry),
        _folded("Settings", _parameters(entry)), _folded("What it refuses", _operations(entry)),
        f'<p><a href="{escape(entry.paper)}" target="_blank" rel="noopener">The paper</a></p>' if entry.paper else "",
    ]
    return f'<article class="kv-card kv-learn" id="kv-about-{entry.name}">{"".join(parts)}</article>'


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>" if body else ""


def _parameters(entry: Any) -> str:
    rows = "".join(f"<dt>{escape(p.label)} <code>{escape(p.name)}</code></dt><dd>{escape(info_text(p))} Starts at {p.default}.</dd>" for p in entry.parameters)
    return f"<dl>{rows}</dl>" if rows else ""


def _operations(entry: Any) -> str:
    refused = [words for name, words in OPERATIONS.items() if name not in entry.can]
    return f'<p class="kv-quiet">With a sentence that says why: {escape("; ".join(refused))}.</p>' if refused else ""
