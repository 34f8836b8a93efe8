"""Texts of rules in Jinja2, sandboxed: for content that needs conditions and loops, which the placeholders of `templates` have not.

The author of a rule is trusted with its meaning, what an event brings is not trusted at all. So: no attribute that begins with an
underscore, nothing can be changed (`ImmutableSandboxedEnvironment`), nothing that reads a clock or a random source or makes
unbounded text, no call but `range`, and a text has at most `TEXT_CHARS_MAX` characters, the loops that write it at most as many turns as
`RANGE_MAX`. What an event does not have renders as nothing.

Names: `event` (the payload), `user`, `rule`, `type`, and the payload's own members by their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from jinja2 import ChainableUndefined, Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from msgspec import Struct

from engine.errors import Invalid

TEXT_CHARS_MAX: Final = 8192
RANGE_MAX: Final = 1000
_FILTERS_LEFT_OUT: Final = ("random", "pprint", "format", "batch", "slice", "center", "indent", "wordwrap", "xmlattr", "urlize")
"""Not a function of their input alone, or able to make much text from little."""


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(["*", "**", "%"])

    def is_safe_callable(self, obj: Any) -> bool:
        """Nothing but `range`: a method such as `ljust` makes a text of any size, and filters do what a text needs."""
        return obj is _range

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A member of an object of the payload is its member, also one that is called `items`; a mapping's methods are no business here."""
        if isinstance(obj, Mapping):
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Numbers only: `"x" * 10**9` is a text nobody wants, and powers grow as fast."""
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


def _environment() -> _Environment:
    made = _Environment(undefined=ChainableUndefined, autoescape=False, keep_trailing_newline=False, cache_size=0)
    made.globals.clear()
    made.globals["range"] = _range
    for name in _FILTERS_LEFT_OUT:
        del made.filters[name]
    return made


_jinja: Final = _environment()


class JinjaContent(Struct, frozen=True):
    """A compiled text."""

    source: str
    template: Template

    def render(self, names: Mapping[str, Any]) -> str:
        """The text, cut at `TEXT_CHARS_MAX`.

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
    """A text compiled.

    Raises:
        Invalid: it is no Jinja2 template, or uses what is left out here.
    """
    try:
        return JinjaContent(text, _jinja.from_string(text))
    except (TemplateError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        raise Invalid(f"{'' if line is None else f'line {line} of the text: '}{error}") from error
