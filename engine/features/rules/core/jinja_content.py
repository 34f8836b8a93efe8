"""Texts of rules in sandboxed Jinja2, for content with conditions and loops, which `engine.core.model.placeholders` does not have.

A rule's author is trusted, an event's payload is not. So a template has no access to attributes that begin with an underscore, cannot
change its values (`ImmutableSandboxedEnvironment`), reads no clock and no random source, calls nothing but `range`, which has at most
`RANGE_MAX` steps, and renders at most `TEXT_CHARS_MAX` characters. A member that the payload does not have renders as nothing.

Names: `event` (the payload), `user` (or `topic`), `rule`, `type`, and the members of the payload.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from jinja2 import ChainableUndefined, Template, TemplateError, filters, nodes, pass_eval_context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct

from engine.errors import Invalid

TEXT_CHARS_MAX: Final = 8192
RANGE_MAX: Final = 1000
_MADE_CHARS_MAX: Final = 1 << 20
"""That a filter makes: far above what is rendered."""

_FILTERS_LEFT_OUT: Final = ("random", "pprint", "format", "batch", "slice", "center", "indent", "wordwrap", "xmlattr", "urlize")
"""Not pure functions of their input, or their output is not bounded by it."""


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**", "%"])

    def is_safe_callable(self, obj: Any) -> bool:
        """Allow `range` alone: the output of a method such as `ljust` has no bound, and filters cover what texts need."""
        return obj is _range

    def getattr(self, obj: Any, attribute: str) -> Any:
        """Look members of an object up before anything else, also one called `items`; methods of mappings are not accessible."""
        if isinstance(obj, Mapping):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Allow numbers only, and small powers: `"x" * 10**9` has no useful bound."""
        if not (isinstance(left, int | float) and isinstance(right, int | float)):
            raise TemplateError(f"{operator} is for numbers")
        if operator == "**" and (abs(left) > RANGE_MAX or abs(right) > 10):
            raise TemplateError("a power this large")
        return super().call_binop(context, operator, left, right)


def _range(*bounds: int) -> range:
    made = range(*bounds)
    if len(made) > RANGE_MAX:
        raise TemplateError(f"a range has at most {RANGE_MAX} steps")
    return made


def _replace(text: Any, old: Any, new: Any, count: int | None = None) -> str:
    """Jinja2's, bounded: an event may give both the text and what is put into it."""
    text, old, new = str(text), str(old), str(new)
    if len(text) + text.count(old) * len(new) > _MADE_CHARS_MAX:
        raise TemplateError("the replaced text is too long")
    return str(text.replace(old, new, -1 if count is None else count))


@pass_eval_context
def _join(context: nodes.EvalContext, values: Iterable[Any], between: Any = "", attribute: str | int | None = None) -> str:
    """Jinja2's, likewise."""
    joined = list(values)
    if len(joined) * len(str(between)) > _MADE_CHARS_MAX:
        raise TemplateError("the joined text is too long")
    return str(filters.do_join(context, joined, between, attribute))


def _environment() -> _Environment:
    made = _Environment(undefined=ChainableUndefined, autoescape=False, keep_trailing_newline=False, cache_size=0)
    made.globals.clear()
    made.globals["range"] = _range
    for name in _FILTERS_LEFT_OUT:
        del made.filters[name]
    made.filters |= {"replace": _replace, "join": _join}
    return made


_jinja: Final = _environment()


class JinjaContent(Struct, frozen=True):
    """A compiled template."""

    source: str
    template: Template

    def render(self, names: Mapping[str, Any]) -> str:
        """The rendered text, cut at `TEXT_CHARS_MAX` characters.

        Raises:
            Invalid: it cannot be rendered with these values.
        """
        try:
            return "".join(_bounded(self.template.generate(dict(names))))
        except (TemplateError, ArithmeticError, TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
            raise Invalid(f"the text cannot be rendered: {error}") from error


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    left = TEXT_CHARS_MAX
    for piece in pieces:
        yield piece[:left]
        left -= len(piece)
        if left <= 0:
            return


def parse_content(text: str) -> JinjaContent:
    """Compile a template.

    Raises:
        Invalid: it is not a Jinja2 template, or uses what the sandbox does not have.
    """
    try:
        return JinjaContent(text, _jinja.from_string(text))
    except (TemplateError, SyntaxError, RecursionError, MemoryError) as error:  # Python compiles it too, and has limits of its own
        line = getattr(error, "lineno", None)
        raise Invalid(f"{'' if line is None else f'line {line} of the text: '}{error}") from error
