"""Small changes of Python functions, made in their syntax trees: no source is copied or written."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_CALCULATED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Change(NamedTuple):
    """The change with this number in a function that stands by itself or in a class."""

    module: str
    function: str
    number: int
    line: int
    kind: str
    text: str

    @property
    def file(self) -> str:
        """The module, as the argument --only names it."""
        return self.module

    @property
    def words(self) -> tuple[str, ...]:
        """The function, the kind of change and the line as it is."""
        return self.function, self.kind, self.text


def changes(root: Path, package: str) -> Iterator[Change]:
    """Yield all changes of the modules of a package below ``root``."""
    for path in sorted((root / package.replace(".", "/")).rglob("*.py")):
        text = path.read_text()
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        lines = text.splitlines()
        for name, function in _functions(ast.parse(text)):
            for number, (line, kind) in enumerate(_Changer().numbered(function)):
                yield Change(module, name, number, line, kind, lines[line - 1].strip())


def changed_code(path: Path, change: Change) -> CodeType:
    """Return the code of the function with the change."""
    tree = ast.parse(path.read_text())
    for name, function in _functions(tree):
        if name == change.function:
            _Changer(change.number).numbered(function)
    code = compile(ast.fix_missing_locations(tree), str(path), "exec", dont_inherit=True)
    for part in change.function.split("."):
        code = next(
            constant
            for constant in code.co_consts
            if isinstance(constant, CodeType) and constant.co_name == part
        )
    return code


def _functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """Yield the functions of a module and of its classes, once each name."""
    seen: set[str] = set()

    def within(body: list[ast.stmt], before: str) -> Iterator[tuple[str, Function]]:
        for node in body:
            if isinstance(node, Function) and before + node.name not in seen:
                seen.add(before + node.name)
                yield before + node.name, node
            elif isinstance(node, ast.ClassDef):
                yield from within(node.body, f"{before}{node.name}.")

    yield from within(tree.body, "")


class _Changer(ast.NodeTransformer):
    """Numbers the changes of a function, and makes the one that is wanted."""

    def __init__(self, wanted: int = -1) -> None:
        self._wanted = wanted
        self._numbered: list[tuple[int, str]] = []

    def numbered(self, function: Function) -> list[tuple[int, str]]:
        """Return line and kind of each change of the body, in their order."""
        function.body = [self.visit(node) for node in function.body]
        return self._numbered

    def _is_wanted(self, node: ast.expr | ast.stmt, kind: str) -> bool:
        self._numbered.append((node.lineno, kind))
        return len(self._numbered) - 1 == self._wanted

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        for at, operator in enumerate(node.ops):
            other = _COMPARED[type(operator)]
            if self._is_wanted(node, f"{type(operator).__name__} to {other.__name__}"):
                node.ops[at] = other()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        self.generic_visit(node)
        if self._is_wanted(node, "and for or"):
            node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not) and self._is_wanted(node, "no negation"):
            return node.operand
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        other = _CALCULATED.get(type(node.op))
        if other and self._is_wanted(node, f"{type(node.op).__name__} to {other.__name__}"):
            node.op = other()
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, bool):
            if self._is_wanted(node, "the other truth"):
                return ast.copy_location(ast.Constant(not node.value), node)
        elif isinstance(node.value, int) and self._is_wanted(node, "a number more"):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        if isinstance(node.value, ast.Constant):
            return node
        if isinstance(node.value, ast.Call) and self._is_wanted(node, "no statement"):
            return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        if self._is_wanted(node, "no statement"):
            return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.stmt:
        if node.value:
            node.value = self.visit(node.value)
        return node

    def visit_arguments(self, node: ast.arguments) -> ast.arguments:
        """Leave the types of functions within the function as they are."""
        return node
