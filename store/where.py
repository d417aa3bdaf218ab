"""The filter language of `verge state list --where`: comparisons of columns, joined by and, or, not.

    posterior_mean < 0.1 and attempts >= 16
    0.2 <= solve_rate <= 0.8 and not successes == 1
    "algebra" in id or (gate > 2 * posterior_mean)

It is a subset of Python's expressions, parsed by `ast` and evaluated on numpy columns by the functions below alone:
there are no calls, no attributes, no subscripts, and no names but the columns.
"""

import ast
import operator
import warnings
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.errors import VergeError

MAX_LENGTH = 2000
_MAX_DEPTH = 50
_LARGEST = 1e300

_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
}


def select(where: str, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.bool_]:
    """Which rows a filter keeps.

    Args:
        columns: equally long arrays by name; text columns have dtype object or str.

    Raises:
        VergeError: the filter is not of this language, or it names no column.
    """
    rows = len(next(iter(columns.values())))
    if len(where) > MAX_LENGTH:
        raise VergeError(f"the filter has {len(where)} characters, at most {MAX_LENGTH} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(where.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise VergeError(f"the filter {where!r} is not an expression: {getattr(error, 'msg', error)}") from None
    found = _Evaluation(columns).value(tree, 0)
    if np.asarray(found).dtype != np.bool_:
        raise VergeError(f"the filter {where!r} is not a condition; compare it with something, as in attempts >= 16")
    return np.broadcast_to(np.asarray(found), rows)


class _Evaluation:
    def __init__(self, columns: Mapping[str, NDArray[Any]]) -> None:
        self._columns = columns

    def value(self, node: ast.expr, depth: int) -> Any:
        """The array or number that a node stands for."""
        if depth > _MAX_DEPTH:
            raise VergeError(f"the filter is nested more than {_MAX_DEPTH} deep")
        inner = [self.value(child, depth + 1) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        match node:
            case ast.Name(id=name):
                return self._column(name)
            case ast.Constant(value=bool()):
                pass
            case ast.Constant(value=str() as text):
                return text
            case ast.Constant(value=int() | float() as number) if abs(number) < _LARGEST:
                return float(number)
            case ast.BoolOp(op=ast.And()):
                return np.logical_and.reduce([_condition(item) for item in np.broadcast_arrays(*inner)])
            case ast.BoolOp(op=ast.Or()):
                return np.logical_or.reduce([_condition(item) for item in np.broadcast_arrays(*inner)])
            case ast.UnaryOp(op=ast.Not()):
                return np.logical_not(_condition(inner[0]))
            case ast.UnaryOp(op=ast.USub()):
                return np.negative(_number(inner[0]))
            case ast.BinOp(op=operation) if type(operation) in _ARITHMETIC:
                with np.errstate(divide="ignore", invalid="ignore"):
                    return _ARITHMETIC[type(operation)](_number(inner[0]), _number(inner[1]))
            case ast.Compare(ops=operations):
                return np.logical_and.reduce(
                    np.broadcast_arrays(*(_compare(*item) for item in zip(operations, inner, inner[1:], strict=False)))
                )
        raise VergeError(f"the filter may not contain {ast.unparse(node)!r}: it knows columns, numbers, text, "
                         "comparisons, + - * /, and, or, not, in")  # fmt: skip

    def _column(self, name: str) -> NDArray[Any]:
        if name not in self._columns:
            raise VergeError(unknown_column(name, self._columns))
        return self._columns[name]


def unknown_column(name: str, columns: Mapping[str, object]) -> str:
    """What to say of a column that there is not."""
    near = get_close_matches(name, columns, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no column {name!r}; {hint}the columns are {', '.join(columns)}"


def _compare(operation: ast.cmpop, left: Any, right: Any) -> Any:
    if isinstance(operation, ast.In | ast.NotIn):
        if not (isinstance(left, str) and _is_text(right)):
            raise VergeError('"in" looks for text in a text column, as in "algebra" in id')
        found = np.array([left in text for text in np.atleast_1d(np.asarray(right, object))])
        return ~found if isinstance(operation, ast.NotIn) else found
    if type(operation) not in _COMPARE:
        raise VergeError("the filter may compare with < <= > >= == != and in")
    if _is_text(left) != _is_text(right):
        raise VergeError("the filter compares text with a number")
    return np.asarray(_COMPARE[type(operation)](left, right), np.bool_)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, np.ndarray) and value.dtype.kind in "OU")


def _number(value: Any) -> Any:
    if _is_text(value) or np.asarray(value).dtype == np.bool_:
        raise VergeError("the filter calculates with something that is not a number")
    return value


def _condition(value: Any) -> NDArray[np.bool_]:
    if np.asarray(value).dtype != np.bool_:
        raise VergeError("the filter joins something that is not a condition; compare it, as in attempts >= 16")
    return np.asarray(value)
