"""The description of events for the rules, of versions of the rules, and of dry runs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from engine.config import Config
from engine.http.description.json_schema import COUNT, DURABILITY, TIME_MS, Schema, answer_of, closed_object, object_of, printable, ref
from engine.http.description.member_schemas import sent
from engine.http.description.operation import TENANT, Part, json_of, operation, parameter

_NAME: Schema = {"type": "string"}
_SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1, "description": "Of the users, by a stable hash."}
_VERSION: Schema = {"type": "integer", "minimum": 0, "description": "0 is the rules file, or no rules."}

by_publisher = partial(operation, "publishing", "publish")


def paths(config: Config) -> Part:
    """See `Description`."""
    return {
        "POST /v1/events": by_publisher(
            "event",
            "An event for the rules, which publish, schedule and cancel. Sending it again under its id changes nothing.",
            {202: ("What the rules made of it is on durable storage.", json_of("EventAnswer"))},
            (409,),
            body=json_of("Event"),
        ),
        **_versions(config, "/v1/rules", "operator", "", ()),
        **_versions(config, "/v1/tenant-rules", "admin", "OfTenant", (TENANT,)),
    }


def _versions(config: Config, path: str, scope: str, suffix: str, whose: tuple[Part, ...]) -> Part:
    """The paths of versions: the operator's, or a tenant's own, which are named by a `suffix` and the parameter of `whose`."""
    toml = {"application/toml": {"schema": ref("RulesText")}}
    if_match = parameter("If-Match", "header", "The `revision` that was read, in double quotes; `*`: whatever it is.", required=True)
    limit: Schema = {"type": "integer", "minimum": 1, "maximum": config.dry_run_events_max, "default": 100}
    share: Schema = {"type": "number", "minimum": 0, "maximum": 1, "default": 1}
    changed = {200: ("Durable, and in force on this edge; the others follow within a second.", json_of("RulesChanged"))}
    tenant = whose or (parameter("tenant", "query", "Only events of this tenant."),)
    off = (404,) if whose else ()
    asked = partial(operation, "operating", scope)
    paths: Part = {
        f"GET {path}": asked(
            f"rules{suffix}",
            "Versions of the rules, which are in force on which edge, and counts by rule.",
            {200: ("All.", json_of("RulesOverview"))},
            off,
            parameters=whose,
        ),
        f"PUT {path}": asked(
            f"storeRules{suffix}",
            "Store a new version and put it in force, for everyone or for a share of the users. Repeating it changes nothing.",
            changed,
            (*off, 412, 428),
            parameters=(*whose, if_match, parameter("share", "query", "Of the users; 0: it is stored and not in force.", share)),
            body=toml,
        ),
        f"{path}/versions/{{version}}": [parameter("version", "path", "Its number.", required=True)],
        f"GET {path}/versions/{{version}}": asked(
            f"rulesVersion{suffix}", "The text of a version.", {200: ("It.", toml)}, (404,), parameters=whose
        ),
        f"POST {path}/stage": asked(
            f"stageRules{suffix}",
            "Put a stored version in force for a share of the users.",
            changed,
            (*off, 409, 412, 428),
            parameters=(*whose, if_match),
            body=json_of("RulesStage"),
        ),
        f"POST {path}/rollback": asked(
            f"rollRulesBack{suffix}",
            "Take the newest step back, or put an earlier version in force again.",
            changed,
            (*off, 409, 412, 428),
            parameters=(*whose, if_match),
            body=json_of("RulesRollback"),
        ),
        f"POST {path}/dry-run": asked(
            f"tryRules{suffix}",
            "How the outcomes of recent events would differ under other rules: those of the body, or a stored version. Sends nothing.",
            {200: ("The differences.", json_of("DryRun"))},
            (404,),
            parameters=(
                parameter("version", "query", "A stored version, in place of a body."),
                *tenant,
                parameter("type", "query", "Only events of this type."),
                parameter("limit", "query", "The newest so many.", limit),
            ),
            body=toml,
        ),
    }
    if whose:
        for described in paths.values():
            if isinstance(described, dict):
                described["summary"] = f"Of a tenant's own rules. {described['summary']}"
    return paths


def schemas(config: Config, categories: Sequence[str]) -> dict[str, Schema]:
    """See `Description`."""
    state: Schema = {"enum": ["active", "staged", "stored"]}
    version = answer_of("A version.", version=_VERSION, at=TIME_MS, by=_NAME, rules=COUNT, bytes=COUNT, state=state)
    differences: Schema = {"type": "array", "items": {"type": "object"}}
    staged = answer_of("In force for a share of the users instead.", version=_VERSION, share=_SHARE)
    return {
        "Event": closed_object(
            "Something that happened to or by a user.",
            required=("type", "user"),
            **sent(config, categories, "type", "user", "actor", "target", "context", "ts", "data"),
            id=printable(config, "Idempotency key."),
        ),
        "EventAnswer": object_of(
            "What the rules made of an event.",
            required=("matched", "results", "scheduled", "cancelled"),
            matched={"type": "array", "items": {"type": "string"}, "description": "Names of the rules."},
            results={"type": "array", "items": ref("Result")},
            scheduled={"type": "array", "items": {"type": "string"}, "description": "Scheduled ids."},
            cancelled={"type": "integer", "description": "Scheduled notifications that the event ended."},
            durability=DURABILITY,
        ),
        "RulesText": {"type": "string", "maxLength": config.rules_bytes_max, "description": "Rules in TOML, see docs/RULES.md."},
        "RulesOverview": answer_of(
            "Which versions there are, which are in force, and on which edge.",
            optional=("staged", "file"),
            revision={"type": "string", "description": "Changes with every change; for `If-Match`."},
            source={"enum": ["stored", "file", "none"]},
            active=_VERSION,
            staged=staged,
            file=answer_of("The rules file.", path=_NAME, refused={"type": "string", "description": "Why it cannot be used."}),
            versions={"type": "array", "items": version},
            changes={
                "type": "array",
                "items": answer_of(
                    "A change.",
                    at=TIME_MS,
                    by=_NAME,
                    what={"enum": ["stored", "staged", "unstaged", "activated", "rolled back"]},
                    version=_VERSION,
                    share=_SHARE,
                ),
            },
            edges={
                "type": "array",
                "items": answer_of("What an edge runs.", edge=_NAME, version=_VERSION, staged=_VERSION, share=_SHARE, refused=_NAME),
            },
            rules={
                "type": "array",
                "items": answer_of(
                    "A rule in force, and what it did on all edges since they started; a tenant's own is not counted.",
                    optional=("matched", "sent", "skipped"),
                    name=_NAME,
                    events={"type": "array", "items": _NAME},
                    type=_NAME,
                    category=_NAME,
                    matched=COUNT,
                    sent=COUNT,
                    skipped=COUNT,
                ),
            },
        ),
        "RulesChanged": answer_of(
            "What is in force now.", optional=("staged",), version=_VERSION, revision=_NAME, active=_VERSION, staged=staged
        ),
        "RulesStage": {
            **answer_of("Which version, for how many users: 0 for none any more, 1 for all.", version=_VERSION, share=_SHARE),
            "additionalProperties": False,
        },
        "RulesRollback": {
            **answer_of("Which version; without one, the newest step is taken back.", optional=("version",), version=_VERSION),
            "additionalProperties": False,
        },
        "DryRun": answer_of(
            "How the outcomes of recorded events would differ from those under the version in force.",
            optional=("since",),
            against=_VERSION,
            events=COUNT,
            same=COUNT,
            since=TIME_MS,
            rules={
                "type": "object",
                "additionalProperties": answer_of(
                    "Notifications of a rule under the version in force, and under the other.", now=COUNT, then=COUNT
                ),
            },
            differences={
                "type": "array",
                "items": answer_of(
                    "An event, and how its outcome would differ.",
                    optional=("added", "removed", "changed", "cancels", "spares"),
                    event=answer_of("It.", tenant=_NAME, type=_NAME, user=_NAME, id=_NAME, at=TIME_MS),
                    added=differences,
                    removed=differences,
                    changed=differences,
                    cancels=differences,
                    spares=differences,
                ),
            },
        ),
    }
