"""What README and docs say is so: tables come from the code, examples run, links lead somewhere."""

import importlib
import inspect
import json
import re
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch
import transformers
from architectures import model_of, token_ids
from started import started_page
from test_upstream import DEFECTS

import kvcache
from kvcache import bundled
from kvcache.architecture import cache_argument
from kvcache.measure import report
from kvcache.measure.__main__ import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
README = PAGES["README.md"]


def between(name: str) -> str:
    """The table between markers, which stand on one page."""
    (page,) = (text for text in PAGES.values() if f"<!-- {name} -->\n" in text)
    return page.split(f"<!-- {name} -->\n")[1].split(f"\n<!-- /{name} -->")[0]


def code_block(beginning: str, page: str = "README.md") -> str:
    """The Python example that contains `beginning`."""
    return next(block for block in re.findall(r"```python\n(.*?)```", PAGES[page], re.S) if beginning in block)


@pytest.mark.parametrize("name", report.said_by_catalog(ROOT))
def test_a_table_that_needs_no_measuring_is_what_the_code_says(name):
    assert between(name) == report.said_by_catalog(ROOT)[name], "run python -m kvcache.measure.report --catalog"


def test_those_tables_are_written_without_measuring(tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").mkdir()
    for page, text in PAGES.items():
        stale = re.sub(r"(?s)(<!-- (kinds|best|catalog|parameters|operations|default|models) -->).*?(<!-- /\2 -->)", r"\1\nold\n\3", text)
        (tmp_path / page).write_text(stale)
        assert stale != text or page not in ("README.md", "docs/caches.md", "docs/measured.md")
    monkeypatch.setattr("sys.argv", ["report", "--catalog", "--pages", str(tmp_path)])
    report.main()
    assert {page: (tmp_path / page).read_text() for page in PAGES} == PAGES and not capsys.readouterr().out


def test_a_table_without_a_place_is_an_error(tmp_path):
    (tmp_path / "README.md").write_text("nothing")
    with pytest.raises(ValueError, match="marker of catalog"):
        report.write({"catalog": "|"}, tmp_path)


def test_bytes_that_bound_a_step_on_a_gpu_are_those_of_its_caches():
    config = transformers.LlamaConfig(num_hidden_layers=1, num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=1 << 17)
    for line in between("speed-device").splitlines():
        if not line.startswith(("| Dynamic", "| quantized")):
            continue
        label, mib, fewer, one, eight = (cell.strip() for cell in line.strip("|").split("|"))
        bits = re.search(r"(\d) bits", label)
        parameters = {"nbits": int(bits[1])} if bits else {}
        nbytes = kvcache.predict_memory("quantized" if bits else "dynamic", config, 1 << 15, dtype=torch.bfloat16, **parameters).used
        dense = kvcache.predict_memory("dynamic", config, 1 << 15, dtype=torch.bfloat16).used
        assert nbytes / 2**20 == pytest.approx(float(mib), abs=0.6) and dense / nbytes == pytest.approx(float(fewer), rel=0.03)
        assert [nbytes * rows / 3.35e6 for rows in (1, 8)] == pytest.approx([float(one), float(eight)], rel=0.03, abs=0.6)


def test_the_readme_is_short():
    assert len(README.encode()) <= 9_000


def anchors(text: str) -> set[str]:
    """What GitHub calls the headings of a page, for links into it."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"(?s)```.*?```", "", text), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings_and_pictures_are_small(page):
    for target, heading in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", re.sub(r"(?s)```.*?```", "", PAGES[page])):
        path = (ROOT / page).parent / target if target else ROOT / page
        if target.startswith("https:"):
            continue
        assert path.exists(), target
        assert path.suffix != ".png" or path.stat().st_size < 400_000
        assert not heading or heading in anchors(path.read_text()), f"{target}#{heading}"


def test_the_readme_leads_to_every_page():
    assert set(re.findall(r"\]\((docs/[^)#]*)", README)) == set(PAGES) - {"README.md"}


@pytest.mark.parametrize("page", PAGES)
def test_options_of_commands_on_a_page_exist(page):
    for module, rest in re.findall(r"python -m (kvcache[\w.]*)([^`\n&|]*)", PAGES[page]):
        source = inspect.getsource(importlib.import_module(COMMANDS[rest.split()[0]] if module == "kvcache.measure" else module))
        assert all(f'"{option}"' in source for option in re.findall(r"--[a-z]+", rest)), f"{module}{rest}"


def test_the_measured_table_has_every_variant_with_the_bytes_that_the_config_predicts():
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in between("measured").splitlines() if line.startswith("| ")][1:]
    assert [row[0] for row in rows] == [kvcache.ENTRIES[name].describe(**parameters) for name, parameters in report.VARIANTS]
    config = transformers.AutoConfig.from_pretrained(bundled.path())
    for row, (name, parameters) in zip(rows, report.VARIANTS):
        assert int(row[1].replace(",", "")) == kvcache.predict_memory(name, config, report.TOKENS, dtype=torch.float32, **parameters).total
    assert "python -m kvcache.measure.report" in between("measured")


def test_the_pretrained_models_table_has_every_variant_with_the_bytes_that_its_shape_predicts():
    shape = transformers.LlamaConfig(hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3)  # SmolLM2 135M
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in between("text").splitlines()[2:]]
    for row, (name, parameters) in zip(rows, report.VARIANTS, strict=True):
        predicted = kvcache.predict_memory(name, shape, 2048, dtype=torch.float32, **parameters)
        assert row[0] == kvcache.ENTRIES[name].describe(**parameters) and int(row[-1].replace(",", "")) == predicted.used


def test_perplexity_of_a_text_is_that_of_a_run_without_a_cache(monkeypatch):
    monkeypatch.setattr(report, "VARIANTS", (("dynamic", {}), ("sliding_window", {"window_length": 256})))
    loaded = kvcache.chat.models.load(bundled.DEFAULT)
    table = report.text_table(loaded, 600, lambda line: None)
    full, windowed = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:])
    ids = torch.tensor([loaded.tokenizer(topics["typesseq"], add_special_tokens=False)["input_ids"][:601]])
    with torch.no_grad():
        losses = torch.nn.functional.cross_entropy(loaded.model(ids[:, :-1]).logits[0], ids[0, 1:], reduction="none")
    assert [float(cell) for cell in full[1:4]] == pytest.approx([losses[a:b].mean().exp().item() for a, b in ((0, 256), (256, 512), (512, 600))], rel=1e-4, abs=0.006)  # written with two digits
    assert windowed[1] == full[1] and windowed[2:] != full[2:] and "256-512" in table and "512-600" in table


def test_the_commands_of_the_first_screen_stand_there():
    for command in ("pip install -r requirements.txt && python app.py", "pip install -r requirements.txt && python -m pytest"):
        assert f"\n{command}\n" in README


def test_the_first_line_that_names_pytest_is_the_command_that_ci_runs():
    assert next(line for line in README.splitlines() if "python -m pytest" in line) == "pip install -r requirements.txt && python -m pytest"


def test_the_front_matter_is_a_spaces():
    front = dict(line.split(": ", 1) for line in README.split("---")[1].strip().splitlines() if ": " in line)
    assert front["sdk"] == "gradio" and front["app_file"] == "app.py" and front["sdk_version"].startswith("6.31.")
    assert len(front["short_description"]) <= 60


def as_here(code: str) -> str:
    """An example for the transformers at hand: 5.23 calls the argument otherwise."""
    return code.replace("cache=cache", f"{cache_argument(model_of('llama'))}=cache").replace("cache=kvcache", f"{cache_argument(model_of('llama'))}=kvcache")


def test_the_example_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, ids = model_of("llama"), token_ids(1, 12)
    exec(as_here(code_block("kvcache.create")), {"model": model, "inputs": {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 3}})
    assert kvcache.load_cache("talk.safetensors", model).get_seq_length() == 15


def test_the_examples_of_the_guide_run_in_order(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGES["docs/guide.md"], re.S):
        exec(as_here(code).replace('"kvcache/bundled', f'"{ROOT}/kvcache/bundled'), names)
    assert names["talk"].messages[0]["content"] == "Hi, my name is Ada."


def test_the_example_of_the_api_runs(capsys):
    with started_page() as (address, _):
        code = code_block("gradio_client", "docs/playground.md").replace("http://127.0.0.1:7860", address).replace("Client(", "Client(verbose=False, src=")
        lines = [line.split("  #")[0] for line in code.splitlines()]
        names = {}
        exec("\n".join(f"answer = {line}" if line.startswith("client.predict") else line for line in lines), names)
    json.dumps(names["answer"])
    assert {cache["name"] for cache in names["answer"]["caches"]} == set(kvcache.ENTRIES)


def test_the_table_beside_upstream_has_every_defect_that_is_tried():
    rows = [line.split(" | ")[0].strip("| ") for line in between("upstream").splitlines()[2:]]
    assert rows == [defect.what for defect in DEFECTS]
