"""The house itself: imports point one way, and the folders hold what they say."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "onedraw"
LONGEST_SAMPLER = {"infer.py": 450}
NAMES_THAT_SAY_NOTHING = {"utils", "util", "helpers", "common", "base", "misc", "core"}


def modules():
    """Every module by its dotted name."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path, known):
    """Modules of the package that a file imports anywhere: at its top, inside functions, for type checkers."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {name.name for name in node.names if name.name in known}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                found |= {inner} & known.keys() or {node.module} & known.keys()
    return found


def cycles(graph):
    """Groups of modules that import each other, by Tarjan's algorithm."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for other in graph[node]:
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in on_stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = []
            while not group or group[-1] != node:
                group.append(stack.pop())
                on_stack.discard(group[-1])
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_cycles_are_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b"}, "b": set()}) == []


def test_no_module_imports_itself_through_others():
    known = modules()
    graph = {name: imports_of(path, known) - {name} for name, path in known.items()}
    # The public names of the package are for paper/ and cli/, which lie above everything that it imports.
    users = {name for name, found in graph.items() if "onedraw" in found}
    assert {name.split(".")[1] for name in users if name != "onedraw.__main__"} <= {"paper", "cli"}
    below = {name: found - {"onedraw"} for name, found in graph.items() if name != "onedraw"}
    assert cycles(below) == []


def test_engines_know_nothing_of_what_runs_on_them():
    known = modules()
    lowest = {"onedraw.arguments", "onedraw.cost", "onedraw.failures"}
    for name, path in known.items():
        if name.startswith("onedraw.engines"):
            others = {one for one in imports_of(path, known) if not one.startswith("onedraw.engines")}
            assert others <= lowest, name


@pytest.mark.parametrize("path", sorted((SOURCE / "samplers").glob("*.py")), ids=lambda path: path.name)
def test_sampler_files_are_short(path):
    assert len(path.read_text().splitlines()) <= LONGEST_SAMPLER.get(path.name, 320)


def test_the_listing_of_samplers_is_the_algorithms():
    from onedraw import runs

    files = {path.stem for path in (SOURCE / "samplers").glob("*.py")} - {"__init__"}
    assert files == {module.__name__.rpartition(".")[2] for module in runs.BUILT_IN}
    assert files <= runs.samplers().keys()


def test_names_of_modules_say_something():
    assert not {name.rpartition(".")[2] for name in modules()} & NAMES_THAT_SAY_NOTHING


def test_every_class_name_has_one_meaning():
    places = {}
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    # What a chain carries from step to step is called State in every chain sampler.
    assert [name for name, found in places.items() if len(found) > 1] == ["State"]
