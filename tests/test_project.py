"""The house rules: which way imports point, what is public, what stands at the top level."""

import ast
import subprocess
import sys
from pathlib import Path

import kvcache

ROOT = Path(__file__).resolve().parent.parent
# Each room may import from those before it on this list, and from itself.
ROOMS = [
    "kvcache.architecture", "kvcache.layer", "kvcache.padding", "kvcache.pictures", "kvcache.whole", "kvcache.weights", "kvcache.state", "kvcache.configs", "kvcache.files", "kvcache.cache", "kvcache.predict", "kvcache.rope", "kvcache.compiled", "kvcache.half_quadratic", "kvcache.encode_numba", "kvcache.quantize", "kvcache.packed_numba", "kvcache.packed", "kvcache.rows", "kvcache.single_row", "kvcache.around", "kvcache.step", "kvcache.memory",
    "kvcache.entry", "kvcache.caches", "kvcache.catalog", "kvcache.generate", "kvcache.loading", "kvcache.bundled", "kvcache.models", "kvcache.engine",
    "kvcache.conversation", "kvcache.speed", "kvcache.measure", "kvcache.report", "kvcache", "ui", "app",
]  # fmt: skip


def sources():
    for folder in ("kvcache", "ui"):
        yield from (ROOT / folder).rglob("*.py")
    yield ROOT / "app.py"


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path):
    """Absolute names of everything a file imports, at any depth."""
    package = module_name(path).split(".") if path.name == "__init__.py" else module_name(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
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
    for path in (ROOT / "kvcache").glob("*.py"):
        assert module_name(path) in ROOMS, f"{path.name} is not on the list of rooms"


def test_the_library_never_imports_the_page():
    code = "import sys, kvcache, kvcache.conversation, kvcache.measure; print([m for m in ('gradio', 'plotly') if m in sys.modules])"
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
    assert {name for name in top if not name.startswith(".")} <= {"app.py", "kvcache", "ui", "tests", "requirements.txt", "README.md", "pytest.ini", "LICENSE"}


def test_no_file_is_too_big_for_a_spaces_git():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    big = [name for name in tracked if name and (ROOT / name).exists() and (ROOT / name).stat().st_size > 10_000_000]
    assert not big
