"""The tokenizer: byte-level BPE of 2,048 tokens, words with their leading space, single digits, and a chat template.

Every message starts with a space, so that a word has the same token wherever it stands. The rendering of a conversation is a strict
prefix of the rendering of the same conversation with more messages, so a cache can always go on from it.
"""

from collections.abc import Iterable
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from . import dialogues, marks, values

VOCAB_SIZE = 2048
SOME_WORDS, WORD_VOCAB_SIZE = 3072, 8192  # of the tokenizers that have the commonest words whole, and most
MAX_LENGTH = 4096
PAD, BOS, END, SYSTEM, USER, ASSISTANT = SPECIAL = ["<|pad|>", "<|bos|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
WORDS = Regex(r" ?\p{L}+| ?\p{N}|'(?:s|m|re|ve|ll|d|t)\b| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
CHAT_TEMPLATE = (
    "{{- '<|bos|>' -}}"
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|> ' + (message['content'] | trim) + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def render(messages: list[dict[str, str]]) -> str:
    """What the chat template gives, without its cost; contents are kept as they are."""
    return BOS + "".join(f"<|{m['role']}|> {m['content']}{END}" for m in messages)


def stretch(tok: PreTrainedTokenizerFast) -> float:
    """How many tokens of the small vocabulary, which the data maker counts in, make one of this tokenizer's."""
    return {SOME_WORDS: 1.11, WORD_VOCAB_SIZE: 1.21}.get(len(tok), 1.0)


def corpus(count: int, seed: int = 0) -> Iterable[str]:
    """Texts to train the tokenizer on: conversations and made-up words, never held-out values."""
    rng = Random(seed)
    for number in range(count):
        for message in dialogues.conversation(f"tokenizer {seed} {number}", 400):
            yield " " + marks.strip(message["content"])
        yield " " + " ".join(values.make(rng, kind) for kind in ("name", "word", "pet_name", "city", "street", "title"))


def train(count: int = 3000, seed: int = 0) -> PreTrainedTokenizerFast:
    """A tokenizer trained on `count` conversations."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(WORDS, behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB_SIZE, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(corpus(count, seed), trainer)
    return fast(tokenizer)


def fast(made: Tokenizer) -> PreTrainedTokenizerFast:
    """The tokenizer as transformers takes it, with the chat template."""
    tok = PreTrainedTokenizerFast(tokenizer_object=made, pad_token=PAD, bos_token=BOS, eos_token=END, model_max_length=MAX_LENGTH,
                                  clean_up_tokenization_spaces=False, extra_special_tokens=[SYSTEM, USER, ASSISTANT])
    tok.chat_template = CHAT_TEMPLATE
    return tok
