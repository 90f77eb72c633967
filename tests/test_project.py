"""The house rules: which way imports point, what is public, what stands at the top level."""

import ast
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest

import kvcache
from kvcache import extras

ROOT = Path(__file__).resolve().parent.parent
# Each room may import from those before it on this list, and from itself.
ROOMS = [
    "kvcache.versions", "kvcache.extras", "kvcache.architecture", "kvcache.upstream_quirks", "kvcache.read_only", "kvcache.validation", "kvcache.half_quadratic", "kvcache.hadamard", "kvcache.quantize", "kvcache.kernels",
    "kvcache.attention", "kvcache.layer", "kvcache.uncompiled", "kvcache.recurrent_shapes", "kvcache.recurrent", "kvcache.refusals", "kvcache.mrope", "kvcache.feed", "kvcache.configs", "kvcache.weights",
    "kvcache.saving", "kvcache.legacy", "kvcache.export", "kvcache.cache", "kvcache.predict", "kvcache.window", "kvcache.rope", "kvcache.memory", "kvcache.entry", "kvcache.policies", "kvcache.caches", "kvcache.catalog", "kvcache.compact", "kvcache.batch", "kvcache.trie", "kvcache.prefix_store", "kvcache.generate",
    "kvcache.bundled", "kvcache.chat.gemv", "kvcache.chat.compile_thread", "kvcache.chat.graph", "kvcache.chat.split_graph", "kvcache.chat.decode_step", "kvcache.chat.models.menu", "kvcache.chat.models.room",
    "kvcache.chat.models.hub", "kvcache.chat.models.loading", "kvcache.chat.models.config_only", "kvcache.chat.models.store", "kvcache.chat.models", "kvcache.chat.engine", "kvcache.chat.scheduler", "kvcache.chat.prefixes", "kvcache.chat.conversation", "kvcache.chat.program", "kvcache.chat.record", "kvcache.chat", "kvcache.measure.drift", "kvcache.measure.replay", "kvcache.measure.calculator", "kvcache.measure.page", "kvcache.measure.speed", "kvcache.measure.quality", "kvcache.measure.load", "kvcache.measure.report", "kvcache.measure.__main__", "kvcache.measure", "kvcache", "ui", "app",
]  # fmt: skip


def sources():
    for folder in ("kvcache", "ui"):
        yield from (ROOT / folder).rglob("*.py")
    yield ROOT / "app.py"


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path):
    """Absolute names of everything a file imports, at any depth, but for annotations alone."""
    package = module_name(path).split(".") if path.name == "__init__.py" else module_name(path).split(".")[:-1]
    tree = ast.parse(path.read_text())
    typing = {node for block in ast.walk(tree) if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING" for node in block.body}
    for node in set(ast.walk(tree)) - typing:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


def room_of(name):
    matches = [room for room in ROOMS if name == room or name.startswith(room + ".")]
    return ROOMS.index(max(matches, key=len)) if matches else None


def test_imports_point_one_way():
    wrong = []
    for path in sources():
        here = room_of(module_name(path))
        for name in imports_of(path):
            there = room_of(name)
            if there is not None and there > here and not (name.startswith("kvcache.") and ROOMS[there] == "kvcache"):
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, wrong


def test_every_module_of_the_library_has_its_room():
    for path in [*(ROOT / "kvcache").glob("*.py"), *(ROOT / "kvcache/chat").glob("*.py"), *(ROOT / "kvcache/measure").glob("*.py")]:
        assert module_name(path) in ROOMS, f"{path.name} is not on the list of rooms"


def test_the_library_never_imports_the_page():
    code = "import sys, kvcache, kvcache.chat.conversation, kvcache.measure.drift; print([m for m in ('gradio', 'plotly') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_optional_backends_are_not_imported_until_they_are_used():
    """transformers itself imports hqq where it is installed; quanto, which can compile C++, and numba must wait."""
    code = "import sys, kvcache; print([m for m in ('optimum.quanto', 'numba') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_all_is_the_public_surface():
    assert list(kvcache.__all__) == sorted(kvcache.__all__, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(hasattr(kvcache, name) for name in kvcache.__all__)


def test_the_top_level_is_what_it_should_be():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    top = {name.split("/")[0] for name in tracked if name}
    assert {name for name in top if not name.startswith(".")} <= {"app.py", "docs", "kvcache", "ui", "tests", "requirements.txt", "README.md", "pyproject.toml", "LICENSE"}


def test_no_file_is_too_big_for_a_spaces_git():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    big = [name for name in tracked if name and (ROOT / name).exists() and (ROOT / name).stat().st_size > 10_000_000]
    assert not big


def test_what_the_library_and_its_extras_need_is_in_the_requirements():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    required = (ROOT / "requirements.txt").read_text().splitlines()
    missing = [each for each in needed if not each.startswith("kvcache[") and not any(line.startswith(each) for line in required)]
    assert not missing, missing


def test_another_transformers_is_warned_of_and_a_tested_one_is_not():
    with pytest.warns(UserWarning, match="tested with transformers 5.23 and 5.24, and this is 6.0.1"):
        extras.warn_untested("6.0.1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for version in ("5.23.0", "5.24.0.dev0"):
            extras.warn_untested(version)


def test_what_an_extra_brings_is_named_where_it_is_missing():
    missing = ModuleNotFoundError("No module named 'optimum.quanto'", name="optimum.quanto")
    assert extras.why_not_imported(missing) == "it needs optimum-quanto: pip install kvcache[quanto]"
    assert extras.why_not_imported(OSError("broken")) == "OSError: broken"


def test_importing_the_library_imports_nothing_that_the_model_itself_does_not_need():
    """A model class takes a second to import and the list of all of them a third: who only makes a cache waits for neither."""
    code = "import sys, kvcache; print([m for m in ('transformers.modeling_utils', 'transformers.models.auto.modeling_auto') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
