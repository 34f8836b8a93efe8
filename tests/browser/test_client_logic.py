"""The browser client in a real browser, against an engine that misbehaves on demand."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from playwright.async_api import Page, Route

from tests.support.client_page import connect, events, shown, start, wait
from tests.support.scripted_engine import BEGIN_S, DIGEST, ScriptedEngine, token

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def run(page: Page, engine: ScriptedEngine, script: str) -> Any:
    """Run a function body that may use the parts of the client."""
    await page.goto(f"{engine.url}/blank")
    parts = ", ".join(f"...await import('/client/{name}.js')" for name in ("backoff", "cursor_store", "event_stream", "ledger"))
    return await page.evaluate(f"async () => {{ const client = {{ {parts} }}; {script} }}")


# -- the pure parts ----------------------------------------------------------------------------------------------------
async def test_reconnect_delays_climb_the_ladder_and_stay_within_their_jitter(page: Page, scripted: ScriptedEngine) -> None:
    delays = await run(
        page,
        scripted,
        """const low = new client.Backoff(), middle = new client.Backoff(), high = new client.Backoff();
        const five = (one, random) => Array.from({ length: 5 }, () => one.next(random));
        return [five(low, 0), five(middle, 0.5), five(high, 1)];""",
    )
    assert delays == [[700, 1400, 3500, 7000, 7000], [1000, 2000, 5000, 10000, 10000], [1300, 2600, 6500, 13000, 13000]]


async def test_ids_are_remembered_up_to_a_limit(page: Page, scripted: ScriptedEngine) -> None:
    verdicts = await run(
        page,
        scripted,
        """const ledger = new client.Ledger(null, { settledMax: 2 });
        const receive = (seq) => ledger.receive({ id: `m${seq}`, seq, event_id: `7-${seq}` });
        for (const seq of [1, 2, 3]) { receive(seq); ledger.settle(`m${seq}`); }
        return [receive(3), receive(2), receive(1), ledger.floor];""",
    )
    assert verdicts == ["settled", "settled", "new", 3]


async def test_an_id_that_comes_under_another_number_is_a_new_message(page: Page, scripted: ScriptedEngine) -> None:
    verdicts = await run(
        page,
        scripted,
        """const first = new client.Ledger();
        const receive = (ledger, seq) => ledger.receive({ id: "order-17", seq, event_id: `7-${seq}` });
        const before = [receive(first, 1), (first.settle("order-17"), receive(first, 1))];
        const nextPage = new client.Ledger(first.kept.cursor, first.kept);
        const expired = new client.Ledger("7-1");
        receive(expired, 2); expired.gap(2, 2); expired.settle("order-17");
        const replaced = new client.Ledger("7-1");
        replaced.settle("order-17", { seq: 7 });
        const after = [receive(expired, 3), receive(replaced, 6), receive(replaced, 8)];
        return [...before, receive(nextPage, 1), receive(nextPage, 9), receive(first, 9), ...after];""",
    )
    assert verdicts == ["new", "settled", "settled", "new", "new", "new", "settled", "new"]


async def test_a_new_epoch_starts_the_cursor_anew_and_still_drops_known_ids(page: Page, scripted: ScriptedEngine) -> None:
    result = await run(
        page,
        scripted,
        """const ledger = new client.Ledger("7-900");
        ledger.receive({ id: "a", seq: 901, event_id: "7-901" }); ledger.settle("a");
        ledger.welcome({ epoch: "8", resumed: "gap", from: 5 });
        const before = ledger.lastEventId;
        const receive = (id, seq) => ledger.receive({ id, seq, event_id: `8-${seq}` });
        return [before, receive("a", 5), receive("b", 6), ledger.lastEventId];""",
    )
    assert result == ["8-4", "settled", "new", "8-5"]


async def test_message_that_is_open_over_two_new_epochs_is_shown_once(page: Page, scripted: ScriptedEngine) -> None:
    verdicts = await run(
        page,
        scripted,
        """const ledger = new client.Ledger();
        const receive = (epoch) => ledger.receive({ id: "a", seq: 1, event_id: `${epoch}-1` });
        const verdicts = [receive("7")];
        for (const epoch of ["8", "9"]) ledger.welcome({ epoch, resumed: "gap", from: 1 });
        return [...verdicts, receive("9")];""",
    )
    assert verdicts == ["new", "open"]


async def test_the_event_stream_parser_does_not_care_how_the_text_is_cut(page: Page, scripted: ScriptedEngine) -> None:
    cuts = await run(
        page,
        scripted,
        """const text = ": hi\\r\\nretry: 10\\r\\n\\r\\nid: 1\\revent: message\\rdata: {\\rdata:  }\\r\\rdata:x\\n\\nevent: empty\\n\\n";
        const whole = [...new client.SseParser().push(text + "\\n")];
        const different = [];
        for (let a = 0; a <= text.length; a++) for (let b = a; b <= text.length; b++) {
          const parser = new client.SseParser();
          const parts = [text.slice(0, a), text.slice(a, b), text.slice(b) + "\\n"].flatMap((part) => [...parser.push(part)]);
          if (JSON.stringify(parts) !== JSON.stringify(whole)) different.push([a, b, parts]);
        }
        return [whole, different];""",
    )
    assert cuts == [[{"event": "message", "data": "{\n }"}, {"event": "message", "data": "x"}], []]


# -- delivery ----------------------------------------------------------------------------------------------------------
async def test_one_frame_of_many_messages_costs_one_acknowledgement(page: Page, scripted: ScriptedEngine) -> None:
    for _ in range(50):
        scripted.publish()
    await start(page, scripted)
    await scripted.until(lambda: not scripted.pending)
    assert [(ack["seq"], "ids" in ack) for ack in scripted.acks] == [(50, False)]
    assert await page.evaluate("[client.transport, client.connection, client.lastEventId, client.reconnects]") == [
        "websocket",
        "c1",
        "7-50",
        0,
    ]


async def test_the_token_travels_as_a_subprotocol_and_never_in_the_url(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted, token=token("eve"), device="phone")
    assert scripted.tokens == [token("eve")]
    assert scripted.urls[0].endswith("/v1/ws?device=phone")


async def test_a_message_that_another_replaces_is_settled_by_it(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted, ack="manual")
    scripted.publish("one")
    await wait(page, "events.some(([type]) => type === 'message')")
    scripted.publish("both", count=2, replaces="m1")
    await scripted.until(lambda: sorted(scripted.pending) == [2])
    assert await shown(page) == [1, 2]
    await page.evaluate("client.ack(events.findLast(([type]) => type === 'message')[1])")
    await scripted.until(lambda: not scripted.pending)
    assert await page.evaluate("client.lastEventId") == "7-2"


async def test_a_message_held_back_is_acknowledged_when_the_application_says_so(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate("window.hold = (type, event) => type === 'message' && event.detail.seq === 1 && event.preventDefault()")
    await connect(page, scripted)
    scripted.publish("slow")
    scripted.publish("fast")
    await scripted.until(lambda: 2 not in scripted.pending)
    assert sorted(scripted.pending) == [1]
    assert await page.evaluate("client.lastEventId") == "7-0"
    scripted.again(1)  # a retry meanwhile is not shown, and not acknowledged
    await wait(page, "events.some(([type]) => type === 'duplicate')")
    assert sorted(scripted.pending) == [1]
    await page.evaluate("client.ack(events.find(([type]) => type === 'message')[1])")
    await scripted.until(lambda: not scripted.pending)
    assert await page.evaluate("client.lastEventId") == "7-2"


async def test_a_message_whose_listener_raises_is_not_acknowledged(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted)
    await page.evaluate("addEventListener('error', (event) => event.preventDefault())")
    await page.evaluate("client.addEventListener('message', ({ detail }) => { if (detail.seq === 1) throw new Error('full'); })")
    scripted.publish()
    scripted.publish()
    await scripted.until(lambda: 2 not in scripted.pending)
    assert sorted(scripted.pending) == [1]
    assert await page.evaluate("client.lastEventId") == "7-0"


async def test_manual_acknowledgement_by_sequence_number(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted, ack="manual")
    for _ in range(3):
        scripted.publish()
    await wait(page, "events.filter(([type]) => type === 'message').length === 3")
    assert scripted.acks == []
    await page.evaluate("client.ack(2)")
    await scripted.until(lambda: sorted(scripted.pending) == [3])


async def test_a_refusal_is_said_on_every_connection_until_it_is_confirmed_and_the_cursor_waits_for_that(
    page: Page, scripted: ScriptedEngine
) -> None:
    nack = {"type": "nack", "ids": ["m1"], "reason": "no such post"}
    scripted.confirms = False
    await connect(page, scripted, ack="manual")
    scripted.publish()
    scripted.publish()
    await wait(page, "events.filter(([type]) => type === 'message').length === 2")
    await page.evaluate("client.nack(['m1'], 'no such post'); client.ack(2)")
    await scripted.until(lambda: list(scripted.pending) == [1])
    scripted.cut()
    await scripted.until(lambda: scripted.frames.count(nack) == 3)  # the new connection has it at once, and again for the repeated message
    assert scripted.connects[-1] == ("websocket", "7-0"), "a later cursor would say that it was handled"
    scripted.again(1)
    await scripted.until(lambda: scripted.frames.count(nack) == 4)
    scripted.confirms = True
    scripted.cut()
    await wait(page, "client.lastEventId === '7-2'")
    assert not any(ack.get("seq") == 1 or "m1" in ack.get("ids", ()) for ack in scripted.acks)
    assert len(await events(page, "message")) == 2, "it is shown once"


@pytest.mark.parametrize("says", ["nack([events.find(([type]) => type === 'message')[1].id])", "ack(1)"])
async def test_a_page_of_a_proxy_confirms_nothing(page: Page, scripted: ScriptedEngine, says: str) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(
        """() => {
          const real = fetch;
          window.pages = 1;
          window.fetch = async (url, init) => (init?.method === "POST" && pages-- > 0 ? new Response("<html>") : real(url, init));
        }"""
    )
    await connect(page, scripted, transports=["sse"], ack="manual")
    scripted.publish()
    await wait(page, "events.some(([type]) => type === 'message')")
    await page.evaluate(f"client.{says}")
    await scripted.until(lambda: not scripted.pending)
    assert len([one for one in scripted.frames if one["type"] == "nack"]) == says.startswith("nack")


async def test_refusing_a_message_while_it_is_shown_does_not_acknowledge_it(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted)
    await page.evaluate("client.addEventListener('message', ({ detail }) => client.nack([detail.id], 'no'))")
    scripted.publish()
    await wait(page, "client.lastEventId === '7-1'")
    assert {"type": "nack", "ids": ["m1"], "reason": "no"} in scripted.frames
    assert scripted.acks == []


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_a_client_that_asks_for_it_is_told_the_digest(page: Page, scripted: ScriptedEngine, transport: str) -> None:
    await connect(page, scripted, digest=True, transports=[transport])
    scripted.say({"type": "digest", **DIGEST})
    await wait(page, "events.some(([type]) => type === 'digest')")
    assert (await events(page, "digest"))[0] | {"type": "digest"} == {"type": "digest", **DIGEST}
    assert "digest=1" in scripted.urls[0]


async def test_the_digest_is_asked_for_without_the_option(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted)
    assert await page.evaluate("client.digest({ since: 5, limit: 3 })") == DIGEST
    assert not any("digest=1" in url for url in scripted.urls)
    assert scripted.urls[-1].endswith("/v1/digest?since=5&limit=3")


async def test_revokes_gaps_and_errors_become_events(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted, ack="manual")
    scripted.publish()
    await wait(page, "events.some(([type]) => type === 'message')")
    scripted.say({"type": "revoke", "ids": ["m1"]})
    scripted.say({"type": "gap", "from": 2, "to": 9})
    scripted.say({"type": "error", "code": "odd", "detail": "why"})
    scripted.say({"type": "of-the-future", "x": 1})
    await wait(page, "events.some(([type]) => type === 'error')")
    assert (await events(page, "revoke"))[0]["ids"] == ["m1"]
    assert (await events(page, "gap"))[0] | {"type": "gap"} == {"type": "gap", "from": 2, "to": 9}
    assert await page.evaluate("client.lastEventId") == "7-9"


async def test_what_this_client_acknowledged_itself_is_not_reported_as_revoked(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted)
    scripted.publish()
    await wait(page, "client.lastEventId === '7-1'")
    scripted.say({"type": "revoke", "ids": ["m1", "unknown"]})
    scripted.say({"type": "revoke", "ids": ["m1"]})
    scripted.say({"type": "error", "code": "odd", "detail": "why"})
    await wait(page, "events.some(([type]) => type === 'error')")
    assert await events(page, "revoke") == [{"ids": ["unknown"]}]


# -- coming back -------------------------------------------------------------------------------------------------------
async def test_a_cut_connection_comes_back_with_its_cursor_and_misses_nothing(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted)
    await scripted.publish_until_acknowledged()
    scripted.cut()
    await scripted.until(lambda: scripted.ended == 1)
    scripted.publish()
    await scripted.publish_until_acknowledged()
    assert await shown(page) == [1, 2, 3]
    assert scripted.connects[:2] == [("websocket", None), ("websocket", "7-1")]
    assert [one["state"] for one in await events(page, "state")] == ["connecting", "open", "reconnecting", "open"]
    assert await page.evaluate("client.reconnects") == 1


async def test_a_storage_that_cannot_be_read_keeps_no_message_away(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(
        """() => {
          const broken = { load: async () => { throw new Error("no longer readable"); }, save: async () => {} };
          window.more = () => ({ storage: broken });
        }"""
    )
    scripted.publish()
    await start(page, scripted)
    await wait(page, "client.lastEventId === '7-1'")
    assert [error["code"] for error in await events(page, "error")] == ["storage"]


async def test_a_storage_that_never_answers_keeps_no_message_away(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(
        """() => {
          const later = setTimeout;
          window.setTimeout = (run, ms, ...more) => later(run, ms / 100, ...more);
          window.more = () => ({ storage: { load: () => new Promise(() => {}), save: async () => {} } });
        }"""
    )
    await connect(page, scripted)
    await scripted.publish_until_acknowledged()
    assert [one["code"] for one in await events(page, "error")] == ["storage"]


async def test_the_cursor_outlives_the_page_in_storage(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate("window.more = () => ({ storage: sessionStorage })")
    await connect(page, scripted)
    await scripted.publish_until_acknowledged()
    await page.reload()
    await page.evaluate("window.more = () => ({ storage: sessionStorage })")
    await connect(page, scripted, token=token("demo"))
    assert scripted.connects[-1] == ("websocket", "7-1")
    await page.reload()
    await page.evaluate("window.more = () => ({ storage: sessionStorage })")
    await start(page, scripted, token=token("another"))  # has a cursor of its own
    await wait(page, "client.state === 'open'")
    assert scripted.connects[-1] == ("websocket", None)


async def test_engines_under_two_paths_of_a_host_have_cursors_of_their_own(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate("window.more = () => ({ storage: sessionStorage })")
    await connect(page, scripted)
    await scripted.publish_until_acknowledged()
    await page.evaluate("client.close()")
    await start(page, scripted, url=f"{scripted.url}/staging")
    await wait(page, "events.some(([type, { state }]) => type === 'state' && state === 'reconnecting')")
    assert await page.evaluate("client.lastEventId") is None, "it would acknowledge messages of the other engine that nobody saw"


async def test_a_user_of_a_cookie_leaves_the_next_no_cursor(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await connect(page, scripted, token="")
    await scripted.publish_until_acknowledged()
    await page.reload()
    await connect(page, scripted, token="")  # somebody else may have signed in
    assert scripted.connects[-1] == ("websocket", None)
    await page.reload()
    await connect(page, scripted, token="", share="user-17")  # the application knows who it is
    await scripted.publish_until_acknowledged()
    await page.evaluate("new Promise((resolve) => setTimeout(resolve, 100))")
    await page.reload()
    await connect(page, scripted, token="", share="user-17")
    assert scripted.connects[-1] == ("websocket", "7-2")


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_another_user_of_a_cookie_begins_anew_on_the_open_page(page: Page, scripted: ScriptedEngine, transport: str) -> None:
    await page.goto(f"{scripted.url}/blank")
    await connect(page, scripted, token="", ack="manual", transports=[transport])
    for _ in range(2):
        scripted.publish()
    await wait(page, "client.lastEventId === '7-0' && events.filter(([type]) => type === 'message').length === 2")
    await page.evaluate("client.ack(1)")
    await scripted.until(lambda: len(scripted.pending) == 1)
    scripted.cut()
    await wait(page, "client.reconnects === 1")
    await page.evaluate("client.ack(2)")
    await scripted.until(lambda: not scripted.pending)
    assert await events(page, "user") == [], "it is the same one"
    if transport == "sse":
        assert [ack["ids"] for ack in scripted.acks] == [["m1"], ["m2"]], "a number would be of whoever the cookie is by then"
    scripted.user, scripted.head, scripted.acks = "other", 0, []
    scripted.cut()
    await wait(page, "client.reconnects === 2")
    scripted.publish("of the other")
    await wait(page, "events.filter(([type]) => type === 'message').length === 3")
    assert scripted.connects == [(transport, None)] * 3, "a cursor would acknowledge what the other user has not seen"
    assert (await events(page, "user"), scripted.acks) == ([{"user": "other"}], [])
    assert await shown(page) == [1, 2, 1]


async def test_another_user_of_a_cookie_is_noticed_by_polling(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await connect(page, scripted, token="", transports=["poll"])
    await scripted.publish_until_acknowledged()
    scripted.user, scripted.head = "other", 0
    scripted.publish("of the other")
    await wait(page, "events.filter(([type]) => type === 'message').length === 2")
    await scripted.until(lambda: not scripted.pending)
    assert await events(page, "user") == [{"user": "other"}]
    assert {cursor for _, cursor in scripted.connects} == {None}
    assert all("seq" not in ack for ack in scripted.acks)


@pytest.mark.parametrize(("transport", "cursor"), [("websocket", "6-400"), ("poll", "7-400")], ids=["lost epoch", "from the future"])
async def test_a_cursor_of_a_lost_epoch_is_said_as_a_gap(page: Page, scripted: ScriptedEngine, transport: str, cursor: str) -> None:
    scripted.publish()
    await start(page, scripted, transports=[transport], lastEventId=cursor)
    await scripted.until(lambda: not scripted.pending)
    assert (await events(page, "gap")) == [{"from": None, "to": None}]
    assert await shown(page) == [1]
    assert await page.evaluate("client.lastEventId") == "7-1"


async def test_what_another_device_handled_meanwhile_is_revoked_on_return(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted, ack="manual")
    scripted.publish()
    await wait(page, "events.some(([type]) => type === 'message')")
    scripted.acknowledge({"seq": 1})
    scripted.cut()
    await wait(page, "events.some(([type]) => type === 'revoke')")
    assert await events(page, "revoke") == [{"ids": ["m1"]}]
    assert await page.evaluate("client.lastEventId") == "7-1"


async def test_a_client_that_came_back_waits_no_longer_as_it_was_told(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted)
    scripted.say({"type": "drain", "after_ms": 60_000})
    scripted.cut(1012)
    await wait(page, "client.state === 'reconnecting'")
    await page.evaluate("client.reconnect()")
    await wait(page, "client.state === 'open'")
    scripted.cut()
    await wait(page, "client.reconnects === 2")


SET_BACK = "{ const { now } = Date; Date.now = () => now() - 3_600_000; }"


async def test_a_silent_server_is_left_though_the_clock_was_set_back(page: Page, scripted: ScriptedEngine) -> None:
    scripted.welcome |= {"heartbeat_ms": 400, "timeout_ms": 1500}
    await connect(page, scripted)
    scripted.mute = True
    await page.evaluate(SET_BACK)
    await wait(page, "events.some(([type, { reason }]) => type === 'state' && reason === 'server silent')")


async def test_a_drained_client_waits_no_longer_where_the_clock_was_set_back(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted)
    scripted.say({"type": "drain", "after_ms": 5000})
    scripted.publish()
    await wait(page, "events.some(([type]) => type === 'message')")
    await page.evaluate(SET_BACK)
    scripted.cut(1012)
    await wait(page, "client.state === 'reconnecting'")
    assert (await events(page, "state"))[-1]["retryInMs"] <= 5000


async def test_a_page_that_wakes_up_does_not_wait_for_its_turn(page: Page, scripted: ScriptedEngine) -> None:
    scripted.welcome |= {"reconnect": {"delays_ms": [60_000], "jitter": 0}}
    await connect(page, scripted)
    scripted.cut()
    await wait(page, "client.state === 'reconnecting'")
    await page.evaluate("dispatchEvent(new Event('online'))")
    await wait(page, "client.state === 'open'")


async def test_a_page_without_a_network_says_so_and_returns_with_it(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted)
    await page.context.set_offline(True)
    scripted.cut()
    await wait(page, "client.state === 'offline'")
    scripted.publish()
    await page.context.set_offline(False)
    await scripted.until(lambda: not scripted.pending)
    assert await shown(page) == [1]


# -- refusals ----------------------------------------------------------------------------------------------------------
TOKENS = "(tokens) => { window.more = () => ({ getToken: async () => tokens.shift() }) }"


@pytest.mark.parametrize("transport", ["websocket", "sse"])
async def test_an_expired_token_is_renewed_and_the_connection_resumes(page: Page, scripted: ScriptedEngine, transport: str) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(TOKENS, [token("demo", n=1), token("demo", n=2)])
    await connect(page, scripted, getToken=True, transports=[transport])
    scripted.cut(4401, "the token has expired")
    await wait(page, "client.reconnects === 1")
    assert scripted.tokens == [token("demo", n=1), token("demo", n=2)]


async def test_without_a_fresh_token_an_expired_one_closes_the_client(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted)
    scripted.cut(4401, "the token has expired")
    await wait(page, "client.state === 'closed'")
    assert (await events(page, "state"))[-1]["code"] == 4401


async def test_a_token_is_renewed_on_the_open_connection_before_it_expires(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(TOKENS, [token("demo", ttl_s=int(time.time()) - BEGIN_S + 8), token("demo", n=2)])
    await start(page, scripted, getToken=True)
    await scripted.until(lambda: any(frame["type"] == "auth" for frame in scripted.frames))
    assert [frame["token"] for frame in scripted.frames if frame["type"] == "auth"] == [token("demo", n=2)]
    assert len(scripted.connects) == 1


async def test_a_renewal_that_failed_is_tried_again_before_the_token_expires(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    tokens = [token("demo", ttl_s=int(time.time()) - BEGIN_S + 8), None, token("demo", n=2)]
    await page.evaluate(
        "(tokens) => { window.more = () => ({ getToken: async () => tokens.shift() ?? Promise.reject(new Error('down')) }) }", tokens
    )
    await start(page, scripted, getToken=True)
    await scripted.until(lambda: any(frame["type"] == "auth" for frame in scripted.frames))
    assert len(scripted.connects) == 1


async def test_a_token_function_that_never_returns_is_asked_again(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(
        """(token) => {
          const later = setTimeout;
          window.setTimeout = (run, ms, ...more) => later(run, ms / 100, ...more);
          let asked = 0;
          window.more = () => ({ getToken: () => (++asked > 1 ? token : new Promise(() => {})) });
        }""",
        token(),
    )
    await start(page, scripted, getToken=True)
    await wait(page, "client.state === 'open'")
    assert "getToken" in next(one["reason"] for one in await events(page, "state") if one["state"] == "reconnecting")


async def test_a_token_function_that_throws_leaves_no_timer(page: Page, scripted: ScriptedEngine) -> None:
    """It would reject a promise that nobody awaits, which ends a process of Node.js."""
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(
        """(token) => {
          const { setTimeout: set, clearTimeout: clear } = window;
          window.timers = new Map();
          window.setTimeout = (run, ms) => { const id = set(run, ms); timers.set(id, ms); return id; };
          window.clearTimeout = (id) => { timers.delete(id); clear(id); };
          let asked = 0;
          window.more = () => ({ getToken: () => { if (!asked++) throw new Error("signed out"); return token; } });
        }""",
        token(),
    )
    await connect(page, scripted, getToken=True)
    assert "signed out" in next(one["reason"] for one in await events(page, "state") if one["state"] == "reconnecting")
    assert 30_000 not in await page.evaluate("[...timers.values()]")


async def test_a_page_of_a_proxy_is_no_inbox(page: Page, scripted: ScriptedEngine) -> None:
    async def page_of_a_proxy(route: Route) -> None:
        await route.fulfill(status=200, content_type="text/html", body="<title>Log in</title>")

    await page.route("**/v1/inbox?*", page_of_a_proxy)
    await connect(page, scripted)
    refused = await page.evaluate("client.inbox().catch(({ name, status, message }) => [name, status, message])")
    assert refused == ["Refused", 200, "the answer is not an engine's"]


@pytest.mark.parametrize("stands", ["before its answer", "within its answer"])
async def test_a_request_whose_connection_stands_still_ends(page: Page, scripted: ScriptedEngine, stands: str) -> None:
    await connect(page, scripted)
    await page.evaluate(
        """(within) => {
          const timeout = AbortSignal.timeout.bind(AbortSignal);
          AbortSignal.timeout = () => timeout(100);
          window.fetch = async (url, { signal }) => {
            const aborted = new Promise((_, reject) => signal?.addEventListener("abort", () => reject(signal.reason)));
            return within ? new Response(new ReadableStream({ pull: () => aborted })) : aborted;
          };
          client.inbox().catch(({ name, status }) => (window.refused = `${name} ${status}`));
        }""",
        stands == "within its answer",
    )
    await wait(page, "window.refused === 'Refused 0'")


async def test_a_clock_that_is_ahead_renews_no_token_without_end(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(
        """(token) => {
          const now = Date.now;
          Date.now = () => now() + 7_200_000;
          window.asked = 0;
          window.more = () => ({ getToken: async () => { asked += 1; return token; } });
        }""",
        token("demo", ttl_s=3600),
    )
    await connect(page, scripted, getToken=True)
    await page.evaluate("client.digest().then(() => client.digest())")
    await page.evaluate("new Promise((resolve) => setTimeout(resolve, 500))")
    assert await page.evaluate("asked") == 1
    assert not [frame for frame in scripted.frames if frame["type"] == "auth"]


async def test_a_renewed_token_of_another_user_begins_another_connection(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(TOKENS, [token("demo", ttl_s=int(time.time()) - BEGIN_S + 8), token("other")])
    scripted.publish()
    await start(page, scripted, getToken=True)
    await wait(page, "client.lastEventId === '7-1'")
    await wait(page, "client.reconnects === 1")
    assert scripted.tokens[-1] == token("other")
    assert scripted.connects[-1][1] is None, "the cursor of one user is none of another's"
    assert not [frame for frame in scripted.frames if frame["type"] == "auth"], "the engine ends a connection for good for this"


async def test_a_closed_client_renews_no_token(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(
        "(token) => { window.asked = 0; window.more = () => ({ getToken: async () => { asked += 1; return token; } }); }",
        token("demo", ttl_s=int(time.time()) - BEGIN_S + 8),
    )
    await start(page, scripted, getToken=True)
    await page.evaluate("client.close()")
    await page.evaluate("client.digest()")
    asked = await page.evaluate("asked")
    await page.evaluate("new Promise((resolve) => setTimeout(resolve, 6500))")
    assert await page.evaluate("asked") == asked


async def test_a_final_close_code_ends_the_client_with_its_reason(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted)
    scripted.cut(4409, "because")
    await wait(page, "client.state === 'closed'")
    last = (await events(page, "state"))[-1]
    assert (last["code"], last["reason"]) == (4409, "because")
    await page.evaluate("client.open()")  # the user may decide otherwise
    await wait(page, "client.state === 'open'")


async def test_a_bad_token_that_a_websocket_cannot_report_is_found_out(page: Page, scripted: ScriptedEngine) -> None:
    scripted.token = "good"
    await start(page, scripted, websocketAttempts=1)
    await wait(page, "client.state === 'closed'")
    last = (await events(page, "state"))[-1]
    assert (last["status"], last["reason"]) == (401, "unauthorized")


# -- the ladder --------------------------------------------------------------------------------------------------------
async def test_where_websockets_are_refused_messages_come_over_sse_and_are_acknowledged(page: Page, scripted: ScriptedEngine) -> None:
    scripted.refuse["websocket"] = 403
    scripted.publish("before")
    await start(page, scripted)
    await wait(page, "client.transport === 'sse'")
    await scripted.publish_until_acknowledged("after")
    assert await shown(page) == [1, 2]
    assert any(ack.get("post") for ack in scripted.acks)
    assert scripted.tokens.count(token()) == 3  # two WebSockets, then the stream


async def test_an_open_stream_has_the_name_of_its_connection(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate("window.hold = (type, { detail }) => { if (detail?.state === 'open') window.named = client.connection; }; 0")
    await connect(page, scripted, transports=["sse"])
    assert await page.evaluate("named") == "c1"


async def test_an_acknowledgement_without_an_answer_holds_up_no_other(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(
        """() => {
          const timeout = AbortSignal.timeout.bind(AbortSignal), real = fetch;
          AbortSignal.timeout = () => timeout(300);
          let first = true;
          window.fetch = (url, init) => {
            if (!String(url).endsWith("/v1/ack") || !first) return real(url, init);
            first = false;
            return new Promise((_, reject) => init.signal?.addEventListener("abort", () => reject(init.signal.reason)));
          };
        }"""
    )
    await connect(page, scripted, transports=["sse"])
    scripted.publish()
    await wait(page, "client.lastEventId === '7-1'")
    await scripted.publish_until_acknowledged()
    assert await shown(page) == [1, 2]


async def test_acknowledgement_waiting_for_one_of_an_earlier_link_is_sent(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(
        """() => {
          const real = fetch;
          window.fetch = (url, init) => {
            if (!String(url).endsWith("/v1/ack") || window.fail) return real(url, init);
            return new Promise((_, reject) => (window.fail = () => reject(new TypeError("lost"))));
          };
        }"""
    )
    await connect(page, scripted, transports=["sse"])
    scripted.publish()
    await wait(page, "window.fail")
    scripted.cut()
    await wait(page, "client.reconnects === 1")
    scripted.publish()
    await wait(page, "client.lastEventId === '7-2'")
    await page.evaluate("fail()")
    await scripted.until(lambda: not scripted.pending)


async def test_poll_presents_a_token_that_was_renewed_meanwhile(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    tokens = [token("demo", ttl_s=int(time.time()) - BEGIN_S + 8), token("demo", n=2), token("demo", n=3)]
    await page.evaluate(f"(tokens) => {{ window.tokens = tokens; ({TOKENS})(tokens); }}", tokens)
    await connect(page, scripted, getToken=True, transports=["poll"])
    await wait(page, "tokens.length === 1")
    scripted.token = tokens[1]
    for _ in range(2):
        await scripted.publish_until_acknowledged()
    await scripted.until(lambda: len(scripted.connects) >= 4)
    assert await page.evaluate("[client.reconnects, tokens.length]") == [0, 1]


async def test_a_gap_told_to_a_polling_client_moves_its_cursor(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted, transports=["poll"])
    scripted.head = 40
    scripted.gaps = [{"from": 1, "to": 40}]
    await wait(page, "client.lastEventId === '7-40'")
    assert (await events(page, "gap"))[0] | {"type": "gap"} == {"type": "gap", "from": 1, "to": 40}


async def test_polling_with_unsettled_messages_does_not_spin(page: Page, scripted: ScriptedEngine) -> None:
    scripted.publish()
    await start(page, scripted, transports=["poll"], ack="manual")
    await wait(page, "events.some(([type]) => type === 'message')")
    begin = time.monotonic()
    await scripted.until(lambda: len(scripted.connects) >= 4)  # the second only learns the cursor
    assert time.monotonic() - begin > 1.5
    await page.evaluate("client.ack(1)")
    await scripted.until(lambda: not scripted.pending)
    assert await shown(page) == [1]


async def test_a_websocket_takes_over_from_a_stream_when_it_gets_through_again(page: Page, scripted: ScriptedEngine) -> None:
    scripted.refuse["websocket"] = 403
    await start(page, scripted, websocketAttempts=1, upgradeAfterMs=300)
    await wait(page, "client.transport === 'sse'")
    await scripted.publish_until_acknowledged()
    del scripted.refuse["websocket"]
    await wait(page, "client.transport === 'websocket'")
    await scripted.publish_until_acknowledged()
    assert await shown(page) == [1, 2]
    await scripted.until(lambda: len(scripted.queues) == 1)  # the stream was let go
    states = [one["state"] for one in await events(page, "state")]
    assert "reconnecting" not in states[states.index("open") :]


@pytest.mark.parametrize("succeeds", [True, False])
async def test_a_stream_that_the_engine_closed_to_make_room_for_the_websocket_ends_the_client_only_if_that_fails(
    page: Page, scripted: ScriptedEngine, succeeds: bool
) -> None:
    scripted.refuse["websocket"] = 403
    await start(page, scripted, websocketAttempts=1, upgradeAfterMs=300)
    await wait(page, "client.transport === 'sse'")
    scripted.full = True
    if succeeds:
        del scripted.refuse["websocket"]
        await wait(page, "client.transport === 'websocket'")
        await scripted.publish_until_acknowledged()
        assert await shown(page) == [1]
    else:
        await wait(page, "client.state === 'closed'")
        assert (await events(page, "state"))[-1]["code"] == 4409


async def test_a_stream_takes_over_from_polling_where_websockets_stay_blocked(page: Page, scripted: ScriptedEngine) -> None:
    scripted.refuse |= {"websocket": 403, "sse": 502}
    await start(page, scripted, websocketAttempts=1, upgradeAfterMs=300)
    await wait(page, "client.transport === 'poll'")
    await scripted.publish_until_acknowledged()
    del scripted.refuse["sse"]
    await wait(page, "client.transport === 'sse'")
    await scripted.publish_until_acknowledged()
    del scripted.refuse["websocket"]
    await wait(page, "client.transport === 'websocket'")
    assert await shown(page) == [1, 2]


async def test_a_proxy_that_forbids_streams_does_not_keep_the_client_out(page: Page, scripted: ScriptedEngine) -> None:
    scripted.refuse |= {"websocket": 403, "sse": 403}
    await start(page, scripted, websocketAttempts=1)
    await wait(page, "client.transport === 'poll'")


async def test_a_client_that_is_not_admitted_comes_back_when_the_server_says(page: Page, scripted: ScriptedEngine) -> None:
    scripted.refuse["sse"] = 429
    scripted.retry_after = "2"
    await start(page, scripted, transports=["sse"])
    await scripted.until(lambda: len(scripted.tokens) == 1)
    scripted.refuse.clear()
    await wait(page, "client.state === 'open'")
    assert len(scripted.tokens) == 2
    (told_ms,) = [one["retryInMs"] for one in await events(page, "state") if one["state"] == "reconnecting"]
    assert 2000 <= told_ms <= 2600  # never earlier, and spread by the jitter


async def test_a_retry_after_of_zero_keeps_the_delays_of_the_client(page: Page, scripted: ScriptedEngine) -> None:
    scripted.refuse = {"poll": 503}
    await start(page, scripted, transports=["poll"])
    await wait(page, "client.state === 'reconnecting'")
    assert (await events(page, "state"))[-1]["retryInMs"] >= 700


async def test_an_overloaded_server_is_not_mistaken_for_a_proxy(page: Page, scripted: ScriptedEngine) -> None:
    scripted.refuse |= {"websocket": 503, "sse": 503}
    await start(page, scripted, websocketAttempts=1)
    await scripted.until(lambda: len(scripted.tokens) >= 3)
    scripted.refuse.clear()
    await wait(page, "client.state === 'open'")
    assert all(transport != "poll" for transport, _ in scripted.connects)


async def test_closing_acknowledges_first_and_stays_closed(page: Page, scripted: ScriptedEngine) -> None:
    await connect(page, scripted, ack="manual")
    scripted.publish()
    await wait(page, "events.some(([type]) => type === 'message')")
    await page.evaluate("client.ack(1); client.close()")
    await scripted.until(lambda: not scripted.pending and not scripted.queues)
    await page.evaluate("dispatchEvent(new Event('online'))")
    await page.evaluate("fetch('/blank').then((response) => response.text())")  # a new connection would have arrived before this
    assert len(scripted.connects) == 1
    assert await page.evaluate("client.state") == "closed"


async def test_a_client_that_is_closed_at_once_never_connects(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    made = "const { NotifyClient } = await import('/client.js'); const client = new NotifyClient({ token });"
    await page.evaluate(f"async (token) => {{ {made} client.close(); window.client = client; }}", token())
    await page.evaluate("fetch('/blank').then((response) => response.text())")
    assert scripted.connects == []
    await page.evaluate("client.close(); client.open()")
    await scripted.until(lambda: len(scripted.connects) == 1)


# -- requests ----------------------------------------------------------------------------------------------------------
async def test_a_message_of_a_lost_epoch_marks_no_other(page: Page, scripted: ScriptedEngine) -> None:
    scripted.publish()
    await start(page, scripted)
    await wait(page, "events.some(([type]) => type === 'message')")
    await page.evaluate("() => { window.old = events.find(([type]) => type === 'message')[1]; }")
    mark = "client.mark('read', { upto: old }).then(() => 200, ({ status }) => status)"
    assert (await page.evaluate(mark), [one["read"] for one in scripted.inbox]) == (200, [True])
    scripted.lose_data()
    scripted.inbox.clear()
    scripted.publish(id="n1")
    assert (await page.evaluate(mark), [one["read"] for one in scripted.inbox]) == (409, [False])


NEWER = """async (ask) => {
  const { Growing } = await import("/client/growing.js");
  window.parts = [];
  const growing = new Growing(eval(ask), ({ generation, text }) => parts.push([generation, text]));
  growing.part({ id: "g1", generation: 1, offset: 4, text: "old", message: { id: "g1" } });
}"""


async def test_a_text_that_began_anew_is_read_again_after_a_failure(page: Page, scripted: ScriptedEngine) -> None:
    failures: list[str] = []
    page.on("pageerror", lambda error: failures.append(str(error)))
    await page.goto(f"{scripted.url}/blank")
    ask = """(() => {
      const newer = { id: "g1", generation: 2, state: "growing", size: 3, offset: 0, text: "new", list: false, message: { id: "g1" } };
      const answers = [newer, new Error("no answer"), newer];
      return async (path) => {
        const answer = answers.shift();
        if (!answer || answer instanceof Error || !path.includes("/g1")) throw answer ?? new Error("no answer");
        return answer;
      };
    })()"""
    await page.evaluate(NEWER, ask)
    await page.wait_for_function("parts.some(([generation, text]) => generation === 2 && text === 'new')")
    assert failures == []


JOINED = """async () => {
  const { Growing } = await import("/client/growing.js");
  const stored = { id: "g1", generation: 1, state: "growing", list: false, message: { id: "g1" }, progress: { value: 0.5 } };
  const reads = [{ ...stored, size: 3, offset: 0, text: "one" }, { ...stored, size: 8, offset: 7, text: "," }];
  const shown = [];
  const growing = new Growing(async () => reads.shift(), ({ text, progress }) => shown.push([text, progress?.value ?? null]));
  const part = async (members) => {
    growing.part({ id: "g1", generation: 1, ...members });
    await new Promise((done) => setTimeout(done));
    return shown.at(-1);
  };
  const joined = await part({ offset: 3, text: " two" });
  await part({ offset: 7, text: "", progress: { value: 0.9 } });
  const later = await part({ offset: 8, text: " three" });
  growing.endAll();
  return [joined, later];
}"""


async def test_a_page_that_joins_a_growing_message_has_its_progress(page: Page, scripted: ScriptedEngine) -> None:
    await page.goto(f"{scripted.url}/blank")
    assert await page.evaluate(JOINED) == [["one two", 0.5], ["one two, three", 0.9]]


DRAINED = """async () => {
  const { Growing } = await import("/client/growing.js");
  const read = { id: "g1", generation: 1, state: "growing", size: 0, offset: 0, text: "", list: false, message: { id: "g1" } };
  let asked = 0;
  const growing = new Growing(() => new Promise((done) => setTimeout(done, 1, read, asked++)), () => {});
  growing.part({ id: "g1", generation: 1, offset: 4, text: "more", message: { id: "g1" } });
  await new Promise((done) => setTimeout(done, 200));
  growing.endAll();
  return asked;
}"""


async def test_a_page_does_not_spin_where_an_edge_answers_without_text(page: Page, scripted: ScriptedEngine) -> None:
    """An edge that drains waits for nothing."""
    await page.goto(f"{scripted.url}/blank")
    assert await page.evaluate(DRAINED) == 1


async def test_a_growing_message_that_ended_unseen_is_shown_no_more(page: Page, scripted: ScriptedEngine) -> None:
    """Its end was handled on another device, or was muted: it never arrives here."""
    asked: list[str] = []

    async def ended(route: Route) -> None:
        asked.append(route.request.url)
        grown = {"id": "g1", "generation": 1, "state": "ended", "size": 4, "offset": 4, "text": "", "list": False, "message": {"id": "g1"}}
        await route.fulfill(json=grown)

    await page.clock.install()
    await page.route("**/v1/growing/g1*", ended)
    await connect(page, scripted)
    scripted.say({"type": "part", "id": "g1", "generation": 1, "offset": 0, "text": "half", "message": {"id": "g1", "type": "t"}})
    await wait(page, "client.grows.length === 1")
    assert asked == []
    await page.clock.fast_forward("01:01")
    await wait(page, "client.grows.length === 0")


async def test_growing_messages_of_an_earlier_user_are_not_shown(page: Page, scripted: ScriptedEngine) -> None:
    asked, changed = asyncio.Event(), asyncio.Event()

    async def late(route: Route) -> None:
        asked.set()
        await changed.wait()
        grown = {"id": "g1", "generation": 1, "size": 0, "list": False, "message": {"id": "g1", "data": {"title": "private"}}}
        await route.fulfill(json={"growing": [grown]})

    await page.route("**/v1/growing", late)
    await page.goto(f"{scripted.url}/blank")
    await page.evaluate(
        "(first) => { window.next = first; window.more = () => ({ getToken: () => next }); }", token(ttl_s=time.time() - BEGIN_S + 4)
    )
    await connect(page, scripted)
    await page.evaluate("() => { window.grown = client.growing(); }")
    await asked.wait()
    await page.evaluate("(other) => { window.next = other; return client.preferences(); }", token("other"))
    changed.set()
    await page.evaluate("grown")
    assert await page.evaluate("client.grows") == []


@pytest.mark.parametrize("ends", ["before it closes", "after it closed"])
async def test_a_closed_client_asks_for_no_growing_message(page: Page, scripted: ScriptedEngine, ends: str) -> None:
    asked: list[str] = []
    failed, closed = asyncio.Event(), asyncio.Event()

    async def refuse(route: Route) -> None:
        asked.append(route.request.url)
        if ends == "after it closed":
            await closed.wait()
        await route.abort()

    page.on("requestfailed", lambda _: failed.set())
    await page.route("**/v1/growing/**", refuse)
    await connect(page, scripted)
    scripted.say({"type": "part", "id": "g1", "generation": 1, "offset": 5, "text": "late"})
    await scripted.until(lambda: asked)
    if ends == "before it closes":
        await failed.wait()
    await page.evaluate("""() => {
      client.close();
      const { setTimeout } = window;
      window.armed = 0;
      window.setTimeout = (...given) => { armed += 1; return setTimeout(...given); };
    }""")
    asked.clear()
    closed.set()
    await page.wait_for_timeout(2500)  # longer than until the next try
    assert asked == []
    assert await page.evaluate("armed") == 0


async def test_topics_are_subscribed_to_and_left_and_a_refusal_says_why(page: Page, scripted: ScriptedEngine) -> None:
    await start(page, scripted)
    assert await page.evaluate("client.subscribe('news', 'team a/b')") == ["news", "team a/b"]
    assert await page.evaluate("client.unsubscribe('news')") == ["team a/b"]
    refused = await page.evaluate("client.subscribe('secret').catch(({ name, status, message }) => [name, status, message])")
    assert refused == ["Refused", 403, "the token does not allow it"]
