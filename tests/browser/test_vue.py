"""The elements in Vue, as clients/js/README.md has them, with Vue's build for browsers and the scripted engine."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.async_api import Page, Route, expect

from tests.support.missing_programs import missing
from tests.support.scripted_engine import ScriptedEngine, token

pytestmark = pytest.mark.asyncio(loop_scope="session")

PACKAGE = Path(__file__).parents[2] / "clients" / "js"
VUE = PACKAGE / "node_modules" / "vue" / "dist" / "vue.esm-browser.js"

SAMPLE = re.compile(r"## Vue.*?```js\n(.*?)\n// (<notification-bell .*?/>)\n```", re.DOTALL)

PAGE = """<!doctype html>
<title>Vue</title>
<div id="app"></div>
<script type="module">
  import { createApp, markRaw } from "/vue/vue.js";
  import { NotifyClient } from "/client.js";
  import "/client/elements/index.js";

  const client = markRaw(new NotifyClient({ url: location.origin, getToken: () => location.hash.slice(1), counts: true }));
  const app = createApp({
    data: () => ({ client, opened: "nothing" }),
    template: `<p>{{ opened }}</p>TAG`,
    methods: { open({ detail }) { this.opened = detail.id; } },
  });
  SAMPLE
  app.mount("#app");
</script>
"""


async def test_the_bell_works_in_vue_without_a_warning(page: Page, scripted: ScriptedEngine) -> None:
    if not VUE.exists():
        missing("no Vue: the elements were not tried in it (cd clients/js && npm ci)")
    found = SAMPLE.search((PACKAGE / "README.md").read_text())
    assert found is not None
    sample, tag = found.groups()
    written = tag.replace("opened", "open").replace(" />", "></notification-bell>")

    async def answer(route: Route) -> None:
        if route.request.url.endswith("vue.js"):
            await route.fulfill(path=VUE)
        else:
            await route.fulfill(body=PAGE.replace("SAMPLE", sample).replace("TAG", written), content_type="text/html")

    await page.route("**/vue/*", answer)
    warnings: list[str] = []
    page.on("console", lambda message: warnings.append(message.text) if "[Vue warn]" in message.text else None)
    scripted.keeps_inbox = True
    await page.goto(f"{scripted.url}/vue/page#{token()}")
    scripted.publish("Hello from the engine")
    await page.get_by_role("button", name="Notifications, 1 unread").click()
    await page.locator("notification-bell").get_by_role("listitem").get_by_text("Hello from the engine").click()
    await expect(page.locator("p").first).to_have_text("m1")
    assert warnings == []
