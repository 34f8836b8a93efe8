"""How far notifications of each rule get: triggered, suppressed and why, sent, acknowledged, acted upon. Reads the history with Ray Data.

    python examples/history/funnel.py sqlite:///.engine/history.db --acted order.paid
    python examples/history/funnel.py postgresql://engine@db/history --since 2026-11-01 --acted order.paid

`--acted EVENT` counts notifications whose user published this event after they were sent: those that led to something.

The history has one row per outcome (docs/HISTORY.md). A `triggered` row has the rule and the id of the notification, under which all
further rows of that notification are: so the funnel is a group per notification, and then a group per rule.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pandas as pd
import ray
from sqlalchemy import create_engine

OUTCOMES = ("triggered", "scheduled", "cancelled", "suppressed", "accepted", "sent", "acknowledged")
COLUMNS = "at_ms, tenant, user_id, event, message, rule, type, reason"


def connect(url: str) -> Any:
    """A connection as Python's database interface has it. Called on the workers: what reads may be on any machine."""
    return create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1)).raw_connection()


def journeys(of_user: pd.DataFrame, acted: str) -> pd.DataFrame:
    """One row for each notification of a rule to this user: how far it got, why not further, and whether the user acted after it."""
    made = []
    actions = of_user[(of_user.event == "event") & (of_user.type == acted)].at_ms
    for (rule, message), _ in of_user[of_user.event == "triggered"].groupby(["rule", "message"]):
        own = of_user[of_user.message == message]
        seen = set(own.event)
        sent_ms = own[own.event == "sent"].at_ms.min()
        reasons = own[own.event == "suppressed"].reason
        made.append(
            {
                "rule": rule,
                "reason": reasons.iloc[0].partition(":")[0] if len(reasons) else "",
                **{outcome: outcome in seen for outcome in OUTCOMES},
                "acted": bool((actions > sent_ms).any()),
            }
        )
    return pd.DataFrame(made, columns=["rule", "reason", *OUTCOMES, "acted"])


def of_rule(of_rule: pd.DataFrame) -> pd.DataFrame:
    """The funnel of one rule."""
    numbers = {name: int(of_rule[name].sum()) for name in (*OUTCOMES, "acted")}
    why = of_rule[of_rule.reason != ""].reason.value_counts()
    return pd.DataFrame([{"rule": of_rule.rule.iloc[0], **numbers, "why": ", ".join(f"{reason} {count}" for reason, count in why.items())}])


def funnel(url: str, acted: str = "", since_ms: int = 0, tenant: str = "default") -> pd.DataFrame:
    """The funnels of all rules of a tenant, by name."""
    factory: Callable[[], Any] = partial(connect, url)
    sql = f"SELECT {COLUMNS} FROM history WHERE tenant = '{tenant}' AND at_ms >= {int(since_ms)} AND user_id <> ''"
    rows = ray.data.read_sql(sql, factory)
    by_notification = rows.groupby("user_id").map_groups(partial(journeys, acted=acted), batch_format="pandas")
    found = by_notification.groupby("rule").map_groups(of_rule, batch_format="pandas").to_pandas()
    return found.sort_values("rule").reset_index(drop=True) if len(found) else found


def main() -> None:
    """Print the funnels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="history_url of the engine; the file's whole path for SQLite")
    parser.add_argument("--acted", default="", metavar="EVENT")
    parser.add_argument("--since", default="1970-01-01", metavar="DATE")
    parser.add_argument("--tenant", default="default")
    given = parser.parse_args()
    since = datetime.fromisoformat(given.since).replace(tzinfo=UTC)
    print(funnel(given.url, given.acted, int(since.timestamp() * 1000), given.tenant).to_string(index=False))


if __name__ == "__main__":
    main()
