"""The mutants of one function: small changes of its syntax tree, in a fixed order.

The order depends on the tree alone, never on names, so that a rename leaves every mutant where it was.
Text for people is never changed: f-strings, docstrings, calls of a logger, and the values of annotations. Decorators
and the defaults of arguments are not part of the code that is exchanged, and are left alone too.
"""

import ast
from collections.abc import Callable, Iterator
from copy import copy, deepcopy
from dataclasses import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef

BOUNDARIES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip
CHOOSERS = {"min": "max", "max": "min", "any": "all", "all": "any"}
COPIERS = {"replace"}
"""Calls that copy a row with changes: each change may be forgotten."""
LOGGERS = {"log", "logger", "logging", "warnings"}
DROPPED = (
    ast.Raise, ast.Continue, ast.Break, ast.AugAssign, ast.Delete,
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change of one function."""

    number: int
    operator: str
    first_line: int
    last_line: int
    """The lines that a test has to execute in order to notice."""
    before: str
    after: str
    old: ast.AST
    """A node of the function's tree, and what takes its place."""
    new: ast.AST

    @property
    def change(self) -> str:
        return f"{self.operator}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class Site:
    """A node of the tree and what may be put in its place."""

    node: ast.AST
    operator: str
    make: Callable[[ast.AST], ast.AST]
    """Gets a copy of the node, and gives what replaces it."""


def mutants(function: Function) -> list[Mutant]:
    """All mutants of a function, numbered. A change that another one has made already is left out."""
    seen: set[tuple[int, str]] = set()
    found: list[Mutant] = []
    for site in _sites(function):
        whole = site.node is function
        new = site.make(copy(function) if whole else deepcopy(site.node))
        ast.fix_missing_locations(ast.copy_location(new, site.node))
        key = (id(site.node), ast.dump(new))
        if key in seen or key[1] == ast.dump(site.node):
            continue
        seen.add(key)
        first, last = _lines(site.node, function)
        before, after = ("body", "pass") if whole else (_text(site.node), _text(new))
        found.append(Mutant(len(found), site.operator, first, last, before, after, site.node, new))
    return found


def put(mutant: Mutant, tree: ast.AST) -> None:
    """Make the change in the tree that holds the function."""
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is mutant.old:
                setattr(parent, name, mutant.new)
                return
            if isinstance(value, list) and any(item is mutant.old for item in value):
                setattr(parent, name, [mutant.new if item is mutant.old else item for item in value])
                return
    raise LookupError(f"the tree does not hold this function: {mutant.change}")


def _lines(node: ast.AST, function: Function) -> tuple[int, int]:
    if isinstance(node, Function):
        body = node.body
        return body[0].lineno, body[-1].end_lineno or body[-1].lineno
    if isinstance(node, ast.match_case):
        return node.pattern.lineno, node.body[0].lineno
    first = getattr(node, "lineno", function.lineno)
    return first, getattr(node, "end_lineno", None) or first


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.match_case):
        return f"case {ast.unparse(node.pattern)} if {ast.unparse(node.guard) if node.guard else True}"
    return " ".join(ast.unparse(node).split())[:120]


# --- where a function can be changed ---


def _sites(function: Function) -> Iterator[Site]:
    if not _is_trivial(function):
        yield Site(function, "early return", _empty)
    for statement in function.body:
        if not _is_logging(statement) and not isinstance(statement, ast.Assert):
            yield from _of(statement)
            for node in _walk(statement):
                yield from _of(node)


def _is_trivial(function: Function) -> bool:
    """A body that is already nothing: a protocol's method, or only a docstring."""
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return not body or (len(body) == 1 and isinstance(body[0], ast.Pass | ast.Raise))


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node that decides something, in order; prose, logging and annotations are passed over."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.JoinedStr | ast.Assert) or _is_logging(child):
            continue
        if isinstance(node, ast.AnnAssign) and child is node.annotation:
            continue
        if isinstance(node, ast.arg) or (isinstance(node, Function) and child is node.returns):
            continue
        yield child
        yield from _walk(child)


def _is_logging(node: ast.AST) -> bool:
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    called = node.value.func
    return isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id in LOGGERS


def _of(node: ast.AST) -> Iterator[Site]:
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            yield Site(node.test, "condition negated", _negate)
        case ast.comprehension():
            for test in node.ifs:
                yield Site(test, "condition negated", _negate)
        case ast.match_case(guard=ast.expr()):
            yield Site(node, "guard dropped", _without_guard)
        case ast.BoolOp():
            yield Site(node, "and/or", _other_connective)
            for index in range(len(node.values)):
                yield Site(node, "operand dropped", _without_operand(index))
        case ast.Compare():
            yield from _of_compare(node)
        case ast.BinOp() if type(node.op) in ARITHMETIC and not _is_text(node):
            yield Site(node, "arithmetic", _other_arithmetic)
        case ast.Call(func=ast.Name(id=name)) if name in CHOOSERS:
            yield Site(node, "other chooser", _other_chooser)
        case ast.Call(func=ast.Name(id=name)) if name in COPIERS:
            for index in range(len(node.keywords)):
                yield Site(node, "field not copied", _without_keyword(index))
        case ast.Constant(value=bool() | int() | float()):
            yield Site(node, "constant changed", _other_constant)
        case ast.Expr(value=ast.Call() | ast.Await() | ast.YieldFrom()):
            yield Site(node, "call dropped", _nothing)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield Site(node, "assignment dropped", _nothing)
        case ast.Return(value=None):
            yield Site(node, "return dropped", _nothing)
        case ast.Return(value=ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not())):
            yield Site(node.value, "condition negated", _negate)
        case _ if isinstance(node, DROPPED):
            yield Site(node, "statement dropped", _nothing)
        case _:
            pass


def _of_compare(node: ast.Compare) -> Iterator[Site]:
    for index, op in enumerate(node.ops):
        if type(op) in BOUNDARIES:
            yield Site(node, "boundary moved", _with_operator(index, BOUNDARIES))
        elif type(op) in OPPOSITES:
            yield Site(node, "comparison negated", _with_operator(index, OPPOSITES))


def _is_text(node: ast.BinOp) -> bool:
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )


# --- changes ---


def _empty(node: ast.AST) -> ast.AST:
    assert isinstance(node, Function)
    yields = any(isinstance(inner, ast.Yield | ast.YieldFrom) for inner in ast.walk(node))
    done: list[ast.stmt] = [ast.Return(value=None)]
    if yields:
        # It stays a generator, one that yields nothing.
        done.append(ast.Expr(ast.Yield(value=None)))
    node.body = done
    return ast.fix_missing_locations(node)


def _nothing(node: ast.AST) -> ast.AST:
    return ast.Pass()


def _negate(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.expr)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in OPPOSITES:
        node.ops[0] = OPPOSITES[type(node.ops[0])]()
        return node
    return ast.UnaryOp(ast.Not(), node)


def _without_guard(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.match_case)
    node.guard = None
    if isinstance(node.pattern, ast.MatchAs) and node.pattern.pattern is None:
        node.guard = ast.Constant(True)  # a bare name or `_` without a guard may stand last only
    return ast.fix_missing_locations(node)


def _other_connective(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.BoolOp)
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    return node


def _without_operand(index: int) -> Callable[[ast.AST], ast.AST]:
    def make(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.BoolOp)
        left = [value for i, value in enumerate(node.values) if i != index]
        if len(left) == 1:
            return left[0]
        node.values = left
        return node

    return make


def _with_operator(index: int, table: dict[type[ast.cmpop], type[ast.cmpop]]) -> Callable[[ast.AST], ast.AST]:
    def make(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Compare)
        node.ops[index] = table[type(node.ops[index])]()
        return node

    return make


def _other_arithmetic(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.BinOp)
    node.op = ARITHMETIC[type(node.op)]()
    return node


def _other_chooser(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    node.func.id = CHOOSERS[node.func.id]
    return node


def _without_keyword(index: int) -> Callable[[ast.AST], ast.AST]:
    def make(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Call)
        node.keywords = [keyword for i, keyword in enumerate(node.keywords) if i != index]
        return node

    return make


def _other_constant(node: ast.AST) -> ast.AST:
    assert isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float)
    node.value = (not node.value) if isinstance(node.value, bool) else node.value + 1
    return node
