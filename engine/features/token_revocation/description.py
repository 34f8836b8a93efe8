"""The description of the revocation of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.config import Config
from engine.http.description.json_schema import TIME_MS, Schema, object_of, printable, user_name
from engine.http.description.operation import Part, json_of, operation

by_admin = partial(operation, "operating", "admin")


def paths(_config: Config) -> Part:
    """The path."""
    return {
        "POST /v1/tokens/revoke": by_admin(
            "revokeTokens",
            "Revoke a token, or the tokens of a user, of the bearer's tenant. Repeating it changes nothing.",
            {200: ("Durable, in force on this edge and on every other one within a second.", json_of("Revoked"))},
            body=json_of("Revocation"),
        )
    }


def schemas(config: Config, _categories: Sequence[str]) -> dict[str, Schema]:
    """The schemas of its bodies, by name."""
    return {
        "Revocation": _revocation(config),
        "Revoked": object_of(
            "What is revoked, on every edge within a second.",
            required=("revoked", "until"),
            revoked={"enum": ["token", "jti", "user"]},
            before=TIME_MS,
            until=TIME_MS | {"description": "When the last of these tokens has expired by itself, milliseconds since the epoch."},
        ),
    }


def _revocation(config: Config) -> Schema:
    time = {"type": "string", "format": "date-time"}
    return {
        "type": "object",
        "description": "One token, itself or by its claim `jti`, or the tokens of a user that were issued (`iat`) before a time.",
        "properties": {
            "token": {"type": "string", "minLength": 1},
            "jti": printable(config),
            "exp": {"type": "integer", "minimum": 0, "description": "The token's `exp`, where it is known: kept no longer than that."},
            "user": user_name(config),
            "before": {"oneOf": [TIME_MS, time], "description": "Now, when left out; at most 300 s ahead."},
        },
        "oneOf": [{"required": ["token"]}, {"required": ["jti"]}, {"required": ["user"]}],
        "dependentRequired": {"exp": ["jti"], "before": ["user"]},
        "additionalProperties": False,
    }
