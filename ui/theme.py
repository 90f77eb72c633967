"""Colours, fonts and files of the page: Gradio's Base theme on our variables, so that both change together."""
from __future__ import annotations

import inspect
from pathlib import Path

import gradio as gr
import plotly

ASSETS = Path(__file__).parent / "assets"
PLOTLY_JS = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "DejaVu Sans", "Arial", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "DejaVu Sans Mono", "monospace")


def theme() -> gr.themes.Base:
    """Gradio's Base theme with every surface taken from page.css; no font is fetched."""
    look = {
        "body_background_fill": "--kv-page", "body_text_color": "--kv-text", "body_text_color_subdued": "--kv-text-soft",
        "background_fill_primary": "--kv-panel", "background_fill_secondary": "--kv-page",
        "block_background_fill": "--kv-panel", "block_border_color": "--kv-line", "block_label_text_color": "--kv-text-soft",
        "block_title_text_color": "--kv-text", "block_info_text_color": "--kv-text-soft", "border_color_primary": "--kv-line",
        "border_color_accent": "--kv-accent", "color_accent": "--kv-accent", "color_accent_soft": "--kv-user",
        "input_background_fill": "--kv-field", "input_border_color": "--kv-line", "input_border_color_focus": "--kv-accent",
        "input_placeholder_color": "--kv-text-soft", "slider_color": "--kv-accent", "link_text_color": "--kv-accent",
        "button_primary_background_fill": "--kv-accent", "button_primary_background_fill_hover": "--kv-accent",
        "button_primary_text_color": "--kv-on-accent", "button_primary_border_color": "--kv-accent",
        "button_secondary_background_fill": "--kv-panel", "button_secondary_background_fill_hover": "--kv-user",
        "button_secondary_text_color": "--kv-text", "button_secondary_border_color": "--kv-line",
        "checkbox_background_color_selected": "--kv-accent", "checkbox_border_color_selected": "--kv-accent",
        "checkbox_label_background_fill": "--kv-field", "checkbox_label_background_fill_selected": "--kv-user",
        "checkbox_label_text_color": "--kv-text", "checkbox_label_text_color_selected": "--kv-text",
        "error_background_fill": "--kv-bad-back", "error_text_color": "--kv-bad", "error_border_color": "--kv-bad",
        "loader_color": "--kv-accent", "stat_background_fill": "--kv-user", "table_border_color": "--kv-line",
        "accordion_text_color": "--kv-text",
    }
    base = gr.themes.Base(font=FONT, font_mono=MONO, radius_size="md", text_size="md", spacing_size="md")
    known = inspect.signature(base.set).parameters
    values = {key + suffix: f"var({css})" for key, css in look.items() for suffix in ("", "_dark") if key + suffix in known}
    base.set(**values, shadow_drop="none", shadow_drop_lg="none", block_shadow="none", button_primary_shadow="none",
             block_title_text_weight="600", block_label_text_weight="500", input_border_width="1px",
             body_text_size="14px", block_radius="12px", input_radius="8px", button_large_radius="8px",
             button_small_radius="8px", button_medium_radius="8px")
    return base


def launch_options() -> dict:
    """What `Blocks.launch` needs to show the page as designed, offline and without a record of what people wrote."""
    gr.set_static_paths([PLOTLY_JS.parent])
    script = (ASSETS / "page.js").read_text(encoding="utf-8")
    return {
        "theme": theme(), "css_paths": [ASSETS / "page.css"], "head": f"<script>{script}</script>",
        "run_history": False, "footer_links": ["api"], "show_error": True,
        "max_threads": 200,  # of handlers: each reply that is waited for holds one
        "max_file_size": 1,  # nothing is uploaded here
    }
