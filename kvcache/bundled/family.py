"""The bundled models' shapes: a small Llama that learns from nothing, a wider one with more words that can grow from it, and relatives that begin with its weights where they have the same ones."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import (
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Mamba2Config,
    Mamba2ForCausalLM,
    MinistralConfig,
    MinistralForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from ..weights import LOADING
from . import grow, mimetic, mimetic_mamba, reader, tokenizer, words

WINDOW = 256  # tokens that a windowed layer sees
GRAPHS = 64  # compiled of one layer's code at most; torch's limit of 8 leaves later shapes uncompiled
FILE_SIZE = "9MB"  # of the largest file of weights
EMBEDDING = "model.embed_tokens.weight"
MEANING = 0.5  # of the length that word vectors have in embeddings that were trained
_TOKENS = dict(vocab_size=tokenizer.VOCAB_SIZE, tie_word_embeddings=True, pad_token_id=0, bos_token_id=1, eos_token_id=2)
_ATTENTION = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=4, rms_norm_eps=1e-5,
                  max_position_embeddings=tokenizer.MAX_LENGTH, rope_parameters={"rope_type": "default", "rope_theta": 5e6})
_LLAMA = dict(**_TOKENS, **_ATTENTION, head_dim=64, intermediate_size=704)
_WIDE = dict(_LLAMA, num_attention_heads=8, intermediate_size=928)
_WORDS = dict(_WIDE, vocab_size=tokenizer.WORD_VOCAB_SIZE)
_DEEP = dict(_WORDS, num_hidden_layers=6)
_DEEPER = dict(_WORDS, num_hidden_layers=8)
_ROOMY = dict(_DEEPER, intermediate_size=1536)
_LARGE = dict(_WORDS, num_hidden_layers=10, intermediate_size=1792)
_STATE = dict(n_heads=8, n_groups=4, d_state=64, d_conv=4, expand=2, chunk_size=64)


def _granite() -> GraniteMoeHybridConfig:
    """Llama's blocks, with a Mamba-2 in place of attention in all layers but the second."""
    return GraniteMoeHybridConfig(**_TOKENS, **_ATTENTION, shared_intermediate_size=704, num_local_experts=0, num_experts_per_tok=0, position_embedding_type="rope",
                                  attention_multiplier=0.125, layer_types=["linear_attention", "full_attention", "linear_attention", "linear_attention"],
                                  **{f"mamba_{name}": value for name, value in _STATE.items()})


def _mamba() -> Mamba2Config:
    """Eight Mamba-2 layers where the Llama has four of attention and four feed-forward blocks in turn."""
    names = {"n_heads": "num_heads", "d_state": "state_size", "d_conv": "conv_kernel"}
    return Mamba2Config(**_TOKENS, hidden_size=256, num_hidden_layers=8, head_dim=64, layer_norm_epsilon=1e-5, **{names.get(name, name): value for name, value in _STATE.items()})


def _sublayer(index: int) -> str:
    """The name of a Llama's sublayer: attention and feed-forward in turn."""
    return f"model.layers.{index // 2}.{('self_attn', 'mlp')[index % 2]}"


@dataclass(frozen=True)
class Member:
    """A model of the family: how it is made, what sets its weights before training, what it is in words, and which
    of its parts imitate which sublayers of a Llama before it is trained as a whole. `reads`: an encoder-decoder, which reads a text.
    `tokens`: how many its vocabulary has. `trees`: trained on trees too, which only attention that takes a mask for each kind of layers can."""

    make: Callable[[], PreTrainedModel]
    initialise: Callable[[PreTrainedModel, int], None]
    what: str
    pupils: Callable[[PreTrainedModel], Mapping[str, Callable]] = lambda model: {}
    reads: bool = False
    tokens: int = tokenizer.VOCAB_SIZE
    trees: bool = False


MEMBERS: dict[str, Member] = {
    "kvlab-llama-20m": Member(lambda: LlamaForCausalLM(LlamaConfig(**_LARGE)), mimetic.initialise,
                              "a plain Llama: every layer attends to every token, two query heads to a key head; its words began with what they mean", tokens=tokenizer.WORD_VOCAB_SIZE, trees=True),
    "kvlab-llama-15m": Member(lambda: LlamaForCausalLM(LlamaConfig(**_ROOMY)), mimetic.initialise, "the shallower one with fewer neurons that the 20m began with; it ships no more", tokens=tokenizer.WORD_VOCAB_SIZE, trees=True),
    "kvlab-llama-11m": Member(lambda: LlamaForCausalLM(LlamaConfig(**_DEEPER)), mimetic.initialise, "the one with fewer neurons that the 15m began with; it ships no more", tokens=tokenizer.WORD_VOCAB_SIZE, trees=True),
    "kvlab-llama-9m": Member(lambda: LlamaForCausalLM(LlamaConfig(**_DEEP)), mimetic.initialise, "the shallower Llama that the 11m began with; it ships no more", tokens=tokenizer.WORD_VOCAB_SIZE, trees=True),
    "kvlab-llama-7m": Member(lambda: LlamaForCausalLM(LlamaConfig(**_WORDS)), mimetic.initialise, "the yet shallower one that the 9m, the Ministral and the Mistral began with; it ships no more",
                             tokens=tokenizer.WORD_VOCAB_SIZE, trees=True),
    "kvlab-llama-4m": Member(lambda: LlamaForCausalLM(LlamaConfig(**_LLAMA)), mimetic.initialise, "the smallest Llama, that all others began with; it ships no more"),
    "kvlab-ministral-7m": Member(
        lambda: MinistralForCausalLM(MinistralConfig(**_WORDS, sliding_window=WINDOW, layer_types=["sliding_attention", "full_attention"] * 2)),
        mimetic.initialise, f"a Ministral, as Gemma's layers alternate: layers 1 and 3 attend to the latest {WINDOW} tokens, layers 2 and 4 to every one", tokens=tokenizer.WORD_VOCAB_SIZE, trees=True),
    "kvlab-mistral-5m": Member(lambda: MistralForCausalLM(MistralConfig(**dict(_WIDE, vocab_size=tokenizer.SOME_WORDS), sliding_window=WINDOW)), mimetic.initialise,
                               f"a Mistral: every layer attends to the latest {WINDOW} tokens", tokens=tokenizer.SOME_WORDS, trees=True),
    "kvlab-mamba2-5m": Member(lambda: Mamba2ForCausalLM(_mamba()), mimetic_mamba.initialise, "a Mamba-2: no attention, a state of fixed size in every layer",
                              lambda model: {_sublayer(index): block.mixer for index, block in enumerate(model.backbone.layers)}),
    "kvlab-granite-5m": Member(lambda: GraniteMoeHybridForCausalLM(_granite()), mimetic_mamba.initialise_hybrid,
                               "a dense Granite hybrid, Jamba's idea: attention in the second of four layers, Mamba-2 in the others",
                               lambda model: {_sublayer(2 * index): block.mamba for index, block in enumerate(model.model.layers) if block.mamba is not None}),
    "kvlab-umt5-5m": Member(reader.make, lambda model, seed: None, "a UMT5: an encoder reads a text, a decoder talks about it", reads=True),
}  # fmt: skip


def fresh(name: str, seed: int = 0, start: Path | None = None, tok: PreTrainedTokenizerFast | None = None) -> PreTrainedModel:
    """A model ready to train, mimetically initialised, in float32; with `start`, the weights it shares with the model in that folder are taken from there.

    With a tokenizer of whole words, the embeddings of those begin with what they mean. Raises ValueError for one with more tokens than the model has room for.
    """
    torch.manual_seed(seed)
    with LOADING:
        model = MEMBERS[name].make().float()
    MEMBERS[name].initialise(model, seed)
    if tok is not None and len(tok) > model.config.vocab_size:
        raise ValueError(f"{name} has room for {model.config.vocab_size:,} tokens, and the tokenizer has {len(tok):,}: `words.shortened` takes its latest merges away")
    if start is not None:
        _adopt(model, start, tok)
    elif tok is not None and len(tok) > tokenizer.VOCAB_SIZE:
        _give_meaning(model, tok)
    return model


@torch.no_grad()
def _give_meaning(model: PreTrainedModel, tok: PreTrainedTokenizerFast) -> None:
    """Word vectors along random directions, beside random embeddings that tell all tokens apart."""
    embedding = model.get_input_embeddings().weight
    directions = mimetic.orthonormal(words.SIZE, embedding.shape[1], torch.Generator().manual_seed(0))
    embedding += MEANING * words.meanings(tok, directions)
    embedding[:, 0] = mimetic.CONSTANT


@torch.no_grad()
def _adopt(model: PreTrainedModel, start: Path, tok: PreTrainedTokenizerFast | None) -> None:
    """Copy every weight of the same shape and name, or of the name a Llama has for it; a wider or deeper Llama takes a smaller one's, with a larger vocabulary too. Raises ValueError if there is none, or the model in the folder has more layers."""
    theirs = weights(start)
    if tok is not None and EMBEDDING in theirs:
        known = theirs[EMBEDDING]
        theirs[EMBEDDING] = words.embeddings(known.float(), tok) if len(known) < len(tok) else known[:len(tok)]
    if model.config.is_encoder_decoder and "model.norm.weight" in theirs:
        return reader.adopt(model, theirs)
    if any(map(grow.LAYER.match, dict(model.named_parameters()))):
        theirs = grow.deeper(theirs, model.config.num_hidden_layers)
    if grow.wider(model, theirs):
        return grow.grow(model, theirs)
    shared = {name: p for name, p in model.named_parameters() if (source := _source(name, theirs)) is not None and source.shape == p.shape}
    if not shared:
        raise ValueError(f"{start} has no weight in common with a {model.config.model_type}: start from a model of this family")
    for name, p in shared.items():
        p.copy_(_source(name, theirs))


def _source(name: str, theirs: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """The weight for a parameter among those of another model, or None."""
    if name.endswith("shared_mlp.input_linear.weight") and name not in theirs:
        return torch.cat([theirs[name.replace("shared_mlp.input_linear", f"mlp.{part}_proj")] for part in ("gate", "up")])
    for own, llama in ((r"shared_mlp\.output_linear", "mlp.down_proj"), (r"backbone\.embeddings", "model.embed_tokens"), (r"backbone\.norm_f", "model.norm")):
        if name not in theirs:
            name = re.sub(own, llama, name)
    block = re.fullmatch(r"backbone\.layers\.(\d+)\.norm\.weight", name)
    if block and name not in theirs:
        name = f"model.layers.{int(block[1]) // 2}.{('input_layernorm', 'post_attention_layernorm')[int(block[1]) % 2]}.weight"
    return theirs.get(name)


def compile_layers(model: PreTrainedModel) -> None:
    """Compile each layer, all with the same code, so that there is one graph for each shape of rows and kind of layer."""
    torch._dynamo.config.recompile_limit = GRAPHS
    for layers in (module for module in model.modules() if isinstance(module, torch.nn.ModuleList)):
        for layer in layers:
            layer.compile(dynamic=False)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """All weights of a model's folder, by name."""
    return {name: p for file in files(folder) for name, p in load_file(file).items()}


def files(folder: Path) -> list[Path]:
    """The files of a model's weights. Raises FileNotFoundError if there are none."""
    found = sorted(folder.glob("model*.safetensors"))
    if not found:
        raise FileNotFoundError(f"{folder} has no model.safetensors, nor parts of one: give the folder of a trained model")
    return found


def export(model: PreTrainedModel, tok: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write weights (fp16), configuration, generation settings and tokenizer as a folder `from_pretrained` reads."""
    state = {k: v.detach().to("cpu", torch.float16) for k, v in model.state_dict().items()}
    half = type(model)(model.config).to(torch.float16)
    half.load_state_dict(state)
    half.tie_weights()
    half.config.dtype = torch.float16
    half.generation_config.update(do_sample=False, max_new_tokens=128, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    for file in folder.glob("model*"):
        file.unlink()  # a file of all weights would be read in place of newer parts
    half.save_pretrained(folder, max_shard_size=FILE_SIZE)
    tok.save_pretrained(folder)
