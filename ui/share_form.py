"""The widgets of "Keep and share"."""
from __future__ import annotations

from dataclasses import dataclass

import gradio as gr


@dataclass(frozen=True)
class ShareForm:
    python: gr.Button
    link: gr.Button
    export: gr.Button
    export_cache: gr.Button
    load: gr.Button
    code: gr.Code
    address: gr.Textbox
    notice: gr.HTML
    text: gr.Textbox


def share_form() -> ShareForm:
    """Five buttons, the text that two of them make, and a place for sentences."""
    with gr.Accordion("Keep and share", open=False, elem_id="kv-share"):
        with gr.Row(elem_classes="kv-buttons"):
            buttons = {name: gr.Button(words, size="sm", elem_id=f"kv-{name.replace('_', '-')}") for name, words in {
                "python": "Copy as Python", "link": "Copy link", "export": "Export chat", "export_cache": "Export chat and cache", "load": "Import"}.items()}
        notice = gr.HTML(elem_id="kv-share-notice", elem_classes="kv-note")
        code = gr.Code(language="python", label="Python", visible=False, elem_id="kv-code", lines=8, max_lines=24)
        address = gr.Textbox(label="Link", visible=False, elem_id="kv-address", lines=1, max_lines=3)
        gr.HTML('<p class="kv-quiet">An exported chat holds settings, token ids, seeds, bytes, times and versions: <code>python -m kvcache.measure replay FILE</code> says it again.</p>')
        text = gr.Textbox(visible=False)
    return ShareForm(**buttons, code=code, address=address, notice=notice, text=text)
