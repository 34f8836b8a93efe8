"""Reads a JSON body of one shape, with the same problem for the same mistake everywhere. How long it may be, `BodyReader` decides."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from msgspec import Struct

from engine.errors import Invalid
from engine.http.problems import bad_request
from engine.publish import media_types

T = TypeVar("T")


def decode_body(decoder: msgspec.json.Decoder[T], body: bytes, kind: type[Struct]) -> T:
    """The body as what the decoder makes of it.

    Args:
        kind: the struct whose fields are named where one is unknown.

    Raises:
        Problem: 400, it is no JSON; 422, it has another shape: what is allowed, and where.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise media_types.unacceptable(media_types.invalid(error, kind)) from None
    except msgspec.DecodeError as error:
        raise bad_request(media_types.malformed(error)) from None
    except RecursionError:
        raise media_types.unacceptable(Invalid("nested too deeply")) from None
    except UnicodeDecodeError:
        raise bad_request("the body is not valid UTF-8") from None
