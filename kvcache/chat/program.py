"""A set-up as a short Python program in transformers' terms, which prints the reply that a chat on this set-up begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .. import bundled, catalog
from .conversation import PLAIN_STOP, accepts_system, chats, render
from .engine import PREFILL_CHUNK, Sampling
from .models import LoadedModel


def program(loaded: LoadedModel, cache_name: str, parameters: Mapping[str, Any], message: str, system: str = "", sampling: Sampling = Sampling()) -> str:
    """Python text that loads the model, makes the cache and answers `message`; at temperature 0 with the reply of `Conversation.send`.

    Raises ValueError for parameters and a sampling that cannot be.
    """
    entry, sampling = catalog.entry(cache_name), sampling.check()
    values = entry.check(loaded.config, **parameters)
    changed = {name: value for name, value in values.items() if value != entry.known(values)[name].default}
    lines = [*_imports(loaded), "", *_model(loaded), f"cache = {_call('kvcache.create', repr(cache_name), 'model', **changed)}", ""]
    return "\n".join([*lines, *_inputs(loaded, message, system), *_generate(loaded, sampling), *_printed(loaded)]) + "\n"


def _call(name: str, *arguments: str, **named: Any) -> str:
    return f"{name}({', '.join([*arguments, *(f'{key}={value!r}' for key, value in named.items())])})"


def _auto_class(loaded: LoadedModel) -> str:
    return "AutoModelForSeq2SeqLM" if loaded.is_encoder_decoder else "AutoModelForCausalLM"


def _imports(loaded: LoadedModel) -> list[str]:
    return ["import torch", f"from transformers import {_auto_class(loaded)}, AutoTokenizer", "", "import kvcache", *(["from kvcache import bundled"] if loaded.id in bundled.MODELS else [])]


def _model(loaded: LoadedModel) -> list[str]:
    where = f"bundled.path({loaded.id!r})" if loaded.id in bundled.MODELS else repr(loaded.id)
    dtype, device = str(loaded.dtype), f".to({loaded.device.type!r})" if loaded.device.type != "cpu" else ""
    return [f"name = {where}", "tokenizer = AutoTokenizer.from_pretrained(name)", f"model = {_auto_class(loaded)}.from_pretrained(name, dtype={dtype}){device}.eval()"]


def _inputs(loaded: LoadedModel, message: str, system: str) -> list[str]:
    """Lines that make `inputs`, tensors for `generate`."""
    if not loaded.is_encoder_decoder:
        return [*_prompt(loaded, message, system), 'inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt", return_token_type_ids=False).to(model.device)']
    if not chats(loaded):
        text = f"{system}\n\n{message}" if system else message
        return [f'inputs = tokenizer({text!r}, return_tensors="pt", return_token_type_ids=False).to(model.device)']
    return [*_prompt(loaded, message, ""), *_source(loaded, system),
            'prompt_ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")["input_ids"].to(model.device)',
            'inputs = {"input_ids": source_ids.to(model.device), "decoder_input_ids": prompt_ids}']  # fmt: skip


def _prompt(loaded: LoadedModel, message: str, system: str) -> list[str]:
    if not loaded.has_chat_template:
        return [f"prompt = {render(loaded, [_said('user', message)], system)!r}"]
    if system and not accepts_system(loaded):
        message, system = f"{system}\n\n{message}", ""
    messages = [*([_said("system", system)] if system else []), _said("user", message)]
    return [f"messages = {messages!r}", "prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)"]


def _source(loaded: LoadedModel, system: str) -> list[str]:
    """What the encoder of a model that chats reads."""
    if not system:
        return ["source_ids = torch.tensor([[model.config.decoder_start_token_id]])"]
    if not accepts_system(loaded):
        return [f'source_ids = tokenizer({system!r}, add_special_tokens=False, return_tensors="pt")["input_ids"]']
    return [f"source = tokenizer.apply_chat_template({[_said('system', system)]!r}, tokenize=False, add_generation_prompt=False, enable_thinking=False)",
            'source_ids = tokenizer(source, add_special_tokens=False, return_tensors="pt")["input_ids"]']  # fmt: skip


def _said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def _generate(loaded: LoadedModel, sampling: Sampling) -> list[str]:
    """Every setting by name, or a model's own generation_config would set some of them."""
    chunk = {"prefill_chunk_size": PREFILL_CHUNK} if loaded.continues_in_chunks and not loaded.is_encoder_decoder else {}
    drawn: dict[str, Any] = {"do_sample": False}
    if sampling.temperature > 0:
        drawn = {"do_sample": True, "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k, "min_p": sampling.min_p}
    stop = [] if loaded.has_chat_template or loaded.is_encoder_decoder else [f"stop_strings=[{PLAIN_STOP!r}]", "tokenizer=tokenizer"]
    call = _call("model.generate", "**inputs", f"{loaded.cache_argument}=cache", *stop, max_new_tokens=sampling.max_new_tokens,
                 repetition_penalty=sampling.repetition_penalty, **drawn, **chunk)  # fmt: skip
    return [*([f"torch.manual_seed({sampling.seed})"] if sampling.temperature > 0 else []), f"output = {call}"]


def _printed(loaded: LoadedModel) -> list[str]:
    given = 'inputs["input_ids"].shape[1]' if not loaded.is_encoder_decoder else "prompt_ids.shape[1]" if chats(loaded) else "1"
    return [f"print(tokenizer.decode(output[0, {given}:], skip_special_tokens=True))", "print(kvcache.measure_memory(cache).total, 'bytes')"]
