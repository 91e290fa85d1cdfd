"""Break the library in one place at a time, and list the faults that no quick test finds: `make mutants`.

A fault is a small change of one function of layers 0, 3 or 4: a sign, a missing factor, a swapped pair, a generator not
used. It is made in memory, in a fork of a process that has imported everything and collected the tests: the code of the
function is replaced, and the quick tests that call it run until one fails: those that found several faults first, then
those of its own module, of the contract and of the identities.

    python -m tests.mutants                       # all; found ones are kept in out/mutants, and not looked for again
    python -m tests.mutants --only proposals      # of the modules whose name contains this
    python -m tests.mutants --out FOLDER --first FOLDER/other.json   # another suite, with what found the faults before

Which tests call a function is found once, by running them all.
"""

import argparse
import ast
import copy
import functools
import gc
import json
import math
import os
import signal
import sys
import threading
import time
import traceback
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

ROOT = Path.cwd()
SOURCE = ROOT / "src" / "scoremh"
MODULES = (
    *("types", "coordinates", "_shared/algebra", "_shared/counting", "_shared/rng"),
    *("proposals", "acceptance/rules", "acceptance/exact"),
    *("kernel/metropolis", "kernel/hamiltonian", "kernel/grouped", "balance_matching/losses", "balance_matching/fit"),
    *("sampling/sample", "sampling/chains", "sampling/tuning", "annealing/anneal", "annealing/replica_exchange"),
)
FILES = (  # of the tests that are looked at, where they exist: those of these layers, and those that cut across
    *(
        "types",
        "coordinates",
        "shared",
        "proposals",
        "acceptance",
        "kernel",
        "balance_matching",
        "sampling",
        "annealing",
    ),
    *(
        "identities",
        "contract",
        "stationarity",
        "errors",
        "targets",
        "diagnostics",
        "sampler",
        "pools",
        "rng",
        "algebra",
    ),
)
PER_FUNCTION = 2  # faults of one kind at most
SECONDS = 40  # that tests of one fault may take
TOO_LONG = 3  # exit code of a fork in which a test did not end; that finds a fault as well

# Faults that change nothing that a test could see, and why.
EQUIVALENT: dict[str, str] = {
    "coordinates: cholesky: exact.abs() -> exact": "the largest number of a covariance is on its diagonal",
    "balance_matching/fit: Anchors.loss: rows[0] + pairs -> rows[0] - pairs": "counted from the end, the same rows",
    "balance_matching/fit: try_network: 0 -> 1": "the seed of a trial whose values are not used",
    "kernel/hamiltonian: Trajectories.log_accept: log_density is not None and self.target.log_density is not None -> "
    "log_density is not None or self.target.log_density is not None": "a kernel drops a log density that no part needs",
    "sampling/sample: _run: time.monotonic() - written > SAVE_SECONDS -> time.monotonic() - written < SAVE_SECONDS": (
        "a stored run goes on from any state with the same bits; saving more often takes longer only"
    ),
    "sampling/tuning: StepSearch._bracket: 2 -> 3": "a search with other steps ends at the same rate",
}

WORDS_OF_CHECKS = ("check", "warn", "repr", "message", "describ", "require", "valid", "progress", "refuse", "post_init")


# Faults: each takes a node, and returns what stands in its place, or None.


def sign(node: ast.AST) -> ast.AST | None:
    """Change a sum into a difference, or lose a minus."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        return ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)
    return node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else None


def factor(node: ast.AST) -> ast.AST | None:
    """Lose the second factor, or the divisor."""
    return node.left if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div) else None


def number(node: ast.AST) -> ast.AST | None:
    """Take a number that is one larger."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return ast.Constant(node.value + 1)
    return None


def comparison(node: ast.AST) -> ast.AST | None:
    """Turn a comparison round."""
    others = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
    if isinstance(node, ast.Compare) and type(node.ops[0]) in others:
        return ast.Compare(node.left, [others[type(node.ops[0])](), *node.ops[1:]], node.comparators)
    return None


def logic(node: ast.AST) -> ast.AST | None:
    """Lose a negation, or take `or` for `and`."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
        return node.operand
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitAnd | ast.BitOr):
        return ast.BinOp(node.left, ast.BitOr() if isinstance(node.op, ast.BitAnd) else ast.BitAnd(), node.right)
    return None


def choice(node: ast.AST) -> ast.AST | None:
    """Swap what `where` chooses from, or an `if` of an expression."""
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.where" and len(node.args) == 3:
        return ast.Call(node.func, [node.args[0], node.args[2], node.args[1]], node.keywords)
    return None


LOSSES = (
    "clamp",
    "clamp_",
    "abs",
    "square",
    "sqrt",
    "log",
    "exp",
    "log1p",
    "expm1",
    "sigmoid",
    "neg_",
    "clone",
    "cumsum",
)


def step(node: ast.AST) -> ast.AST | None:
    """Leave out a step of a calculation: a clamp, a root, a copy."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOSSES:
        module = isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "math", "np")
        return (node.args[0] if node.args else None) if module else node.func.value
    return None


PAIRS = {"current": "proposed", "low": "high", "first": "last", "forth": "back", "here": "there", "before": "after"}
PAIRS |= {b: a for a, b in PAIRS.items()}


def swap(node: ast.AST) -> ast.AST | None:
    """Take the other one of a pair of names."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in PAIRS:
        return ast.Name(PAIRS[node.id], node.ctx)
    return None


def generator(node: ast.AST) -> ast.AST | None:
    """Do not use the generator that was given."""
    return ast.Constant(None) if isinstance(node, ast.Name) and node.id in ("generator", "g") and load(node) else None


def load(node: ast.Name) -> bool:
    """Return whether a name is read."""
    return isinstance(node.ctx, ast.Load)


def stale(node: ast.AST) -> ast.AST | None:
    """Do not update a part of a point or of a record."""
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("_replace", "replace")) and node.keywords:
        return ast.Call(node.func, node.args, node.keywords[1:])
    return None


FAULTS: tuple[Callable[[Any], ast.AST | None], ...] = (
    *(sign, factor, number, comparison, logic, choice, step, swap, generator, stale),
)


Place = tuple[tuple[str, int | None], ...]  # the way to a node: fields, and numbers in lists


@dataclass(frozen=True)
class Mutant:
    """One fault: where it is, and what stands there."""

    module: str
    function: str
    change: str
    tree: ast.Module = field(repr=False)
    place: Place
    new: ast.AST

    @property
    def name(self) -> str:
        """What it is called in records, whatever the number of its line."""
        return f"{self.module}: {self.function}: {self.change}"

    def code(self) -> CodeType:
        """Return the code of the broken function."""
        broken = compile(put(self.tree, self.place, copy.deepcopy(self.new)), self.filename, "exec")
        return next(code for code in codes(broken) if code.co_qualname == self.function)

    @property
    def filename(self) -> str:
        """Where the module is."""
        return str(SOURCE / f"{self.module}.py")


def codes(code: CodeType) -> Iterator[CodeType]:
    """Yield a code and all within."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from codes(part)


def nodes(node: ast.AST, path: Place = ()) -> Iterator[tuple[Place, ast.AST]]:
    """Yield nodes that are worth a fault, and how to come to them: not annotations, texts, errors and their checks."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.AnnAssign):
        return
    if isinstance(node, ast.Call) and ast.unparse(node.func).startswith(("checks.", "warnings.", "logger.")):
        return
    yield path, node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
            continue
        parts = enumerate(value) if isinstance(value, list) else [(None, value)]
        for number, part in parts:
            if isinstance(part, ast.AST):
                yield from nodes(part, (*path, (name, number)))


def functions(node: ast.AST, path: Place = (), prefix: str = "") -> Iterator[tuple[str, Place, ast.FunctionDef]]:
    """Yield the functions of a module and the methods of its classes, by their qualified names."""
    for number, part in enumerate(getattr(node, "body", ())):
        here = (*path, ("body", number))
        if isinstance(part, ast.FunctionDef) and not any(word in part.name for word in WORDS_OF_CHECKS):
            yield f"{prefix}{part.name}", here, part
        if isinstance(part, ast.ClassDef):
            yield from functions(part, here, f"{prefix}{part.name}.")


def put(tree: ast.Module, path: Place, new: ast.AST) -> ast.Module:
    """Return a copy of a module with something else at one place."""
    tree = copy.deepcopy(tree)
    at: Any = tree
    for name, number in path[:-1]:
        at = getattr(at, name) if number is None else getattr(at, name)[number]
    name, number = path[-1]
    old = getattr(at, name) if number is None else getattr(at, name)[number]
    ast.copy_location(new, old)
    if number is None:
        setattr(at, name, new)
    else:
        getattr(at, name)[number] = new
    return ast.fix_missing_locations(tree)


def mutants() -> list[Mutant]:
    """Return all faults, a few of each kind in each function."""
    found: dict[str, Mutant] = {}
    for module in MODULES:
        tree = ast.parse((SOURCE / f"{module}.py").read_text())
        for function, where, body in functions(tree):
            several = defaultdict[str, list[tuple[Place, ast.AST, ast.AST]]](list)
            for path, node in nodes(body):
                for fault in FAULTS:
                    if path and (new := fault(node)) is not None:
                        several[fault.__name__].append((path, node, new))
            for places in several.values():
                places.sort(key=lambda place: zlib.crc32(f"{function} {ast.unparse(place[1])} {place[0]}".encode()))
                for path, node, new in places[:PER_FUNCTION]:
                    change = f"{ast.unparse(node)} -> {ast.unparse(new)}"[:160]
                    mutant = Mutant(module, function, change, tree, where + path, new)
                    found.setdefault(mutant.name, mutant)
    return list(found.values())


class Suite:
    """A plugin of pytest that runs the tests of each fault in a fork, in place of running all of them once.

    Args:
        faults: The faults to look for.
        out: File of what is known: which tests call a function and how long they take, and what found which fault.
        first: For a fault the test that found it in another suite.
        until: When to stop.
    """

    def __init__(self, faults: list[Mutant], out: Path, first: dict[str, str | None], until: float) -> None:
        self.faults, self.out, self.first, self.until = faults, out, first, until
        self.failed: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the name of a test that fails."""
        if report.failed:
            self.failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Find out which tests call what, then break one function after the other."""
        items = {item.nodeid: item for item in session.items}
        calls = self.out.with_suffix(".calls.json")
        if not calls.exists():
            forked(lambda: calls.write_text(json.dumps(self.traced(session.items))))
        tests = json.loads(calls.read_text())
        seconds = tests["seconds"]
        results = json.loads(self.out.read_text()) if self.out.exists() else {}
        targets, caches = in_memory()
        finders = Counter(name for name in results.values() if name)
        for fault in self.faults:
            if fault.name in results:
                continue
            if time.monotonic() > self.until:
                break
            functions = targets.get((fault.filename, fault.function), [])
            calling = [name for name in tests.get(f"{fault.filename}:{fault.function}", []) if name in items]
            hint = self.first.get(fault.name)
            near = f"tests/test_{fault.module.split('/')[0]}.py", "tests/test_contract.py", "tests/test_identities.py"
            calling.sort(
                key=lambda name: (name != hint, -min(finders[name], 3), not name.startswith(near), seconds[name])
            )
            began = time.monotonic()
            breaking = partial(self.first_failure, fault, functions, caches)
            found = breaking([items[name] for name in calling]) if functions else ""
            while found in items and not breaking([items[found]]):  # it failed after what other tests had left
                calling.remove(found)
                found = breaking([items[name] for name in calling])
            results[fault.name] = found or None
            finders.update(filter(None, [results[fault.name]]))
            self.out.write_text(json.dumps(results, indent=0))
            said = results[fault.name] or f"SURVIVED {len(calling)} tests"
            print(f"{time.monotonic() - began:5.1f} s  {fault.name}\n         {said}", flush=True)
        return True

    def first_failure(
        self, fault: Mutant, functions: list[FunctionType], caches: list[Any], items: list[pytest.Item]
    ) -> str:
        """Return the name of the first test that fails with this fault, or nothing."""
        place = self.out.with_suffix(".found")
        place.write_text("")
        ended = forked(lambda: place.write_text(self.broken(fault, functions, caches, items)))
        return "a test that does not end" if ended == TOO_LONG else place.read_text()

    def traced(self, items: list[pytest.Item]) -> dict[str, Any]:
        """Run all tests; return for every function those that call it, and for every test its seconds."""
        calls, seconds, now = defaultdict[str, list[str]](list), {}, set[CodeType]()
        source = str(SOURCE)

        def trace(frame: FrameType, event: str, arg: object) -> None:
            now.add(frame.f_code)

        for item, following in zip(items, [*items[1:], None], strict=False):
            self.failed, began = None, time.monotonic()
            now.clear()
            threading.settrace(trace)
            sys.settrace(trace)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            sys.settrace(None)
            if self.failed is None:
                seconds[item.nodeid] = time.monotonic() - began
                for code in now:
                    if code.co_filename.startswith(source):
                        outer = code.co_qualname.split(".<locals>")[0]
                        if item.nodeid not in calls[f"{code.co_filename}:{outer}"][-1:]:
                            calls[f"{code.co_filename}:{outer}"].append(item.nodeid)
        return {**calls, "seconds": seconds}

    def broken(self, fault: Mutant, functions: list[FunctionType], caches: list[Any], items: list[pytest.Item]) -> str:
        """Break a function and return the name of the first test that fails, or nothing."""
        signal.signal(signal.SIGALRM, lambda *_: os._exit(TOO_LONG))
        signal.alarm(4 * SECONDS)  # a fault may be a loop without an end
        code, began = fault.code(), time.monotonic()
        for function in functions:
            function.__code__ = code
        for cache in caches:
            cache.cache_clear()
        self.failed = None
        for item, following in zip(items, [*items[1:], None], strict=False):
            if time.monotonic() - began > SECONDS:
                break
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return item.nodeid
        return ""


def in_memory() -> tuple[dict[tuple[str, str], list[FunctionType]], list[Any]]:
    """Return the functions of the library, wrapped ones too, by file and name; and the caches to clear."""
    functions, caches = defaultdict[tuple[str, str], list[FunctionType]](list), []
    for thing in gc.get_objects():
        if type(thing) is FunctionType and thing.__code__.co_filename.startswith(str(SOURCE)):
            functions[thing.__code__.co_filename, thing.__code__.co_qualname].append(thing)
        elif type(thing) is functools._lru_cache_wrapper and thing.__module__.startswith("scoremh"):
            caches.append(thing)
    return functions, caches


def forked(work: Callable[[], object]) -> int:
    """Do something in a fork of this process, wait for it, and return its exit code."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, TOO_LONG):
        raise RuntimeError(f"expected a fork to end, got exit code {code}. Look at what it printed.")
    return code


def main() -> None:
    """Look for faults that no test finds."""
    parser = argparse.ArgumentParser(description="Break the library, and list the faults that no quick test finds.")
    parser.add_argument("--only", default="", help="part of the name of a module")
    parser.add_argument("--out", type=Path, default=ROOT / "out" / "mutants", help="folder of what was found")
    parser.add_argument("--first", type=Path, help="what another suite found")
    parser.add_argument("--every", type=int, default=1, help="take every n-th fault only")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop after so long; the same command goes on")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    first = json.loads(given.first.read_text()) if given.first else {}
    faults = [fault for fault in mutants()[:: given.every] if given.only in fault.module]
    files = [str(path) for name in FILES if (path := ROOT / "tests" / f"test_{name}.py").exists()]
    options = ["-m", "not slow", "-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:faulthandler"]
    options += ["-p", "no:unraisableexception"]  # it blames whichever test runs when garbage is collected
    results = given.out / "found.json"
    pytest.main([*options, *files], plugins=[Suite(faults, results, first, until)])
    found = json.loads(results.read_text()) if results.exists() else {}
    faults = [fault for fault in faults if fault.name in found]
    survivors = [fault for fault in faults if found[fault.name] is None]
    for fault in survivors:
        print(f"{fault.name}\n         {EQUIVALENT.get(fault.name, 'NOT FOUND')}")
    alike = sum(fault.name in EQUIVALENT for fault in survivors)
    missed = len(survivors) - alike
    print(f"{len(faults)} faults: {len(faults) - len(survivors)} found, {alike} equivalent, {missed} not found")


if __name__ == "__main__":
    main()
