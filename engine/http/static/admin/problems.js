/** Clients that do not acknowledge, and stored records that could not be read. Loaded while the view is open. */

import { fromNow, make } from "../dom.js";
import { bytes, count, moment, span } from "./format.js";
import { card, chip, table } from "./table.js";
import { attempt, noteElement, redraw, userAddress, View } from "./view.js";

const EVERY_MS = 6000;

export class Problems extends View {
  #loadedMs = -Infinity;

  /** @param {import("./admin_api.js").AdminApi} api */
  constructor(api) {
    super("problems", "Problems", "Clients that do not acknowledge what they get, and stored records that could not be read.");
    this.api = api;
    this.slow = card("slow-clients", "Slow clients");
    this.slowNote = noteElement();
    this.slow.card.append(this.slowNote);
    this.quarantine = card("quarantine", "Quarantine", {
      note: "Kept for analysis, in Redis under the key shown. The users concerned were told of a gap.",
    });
    this.quarantineNote = noteElement();
    this.quarantine.card.append(this.quarantineNote);
    this.element.append(this.slow.card, this.quarantine.card);
  }

  show() {
    if (performance.now() - this.#loadedMs < EVERY_MS) return;
    this.#loadedMs = performance.now();
    attempt(this.slowNote, null, () => this.#showSlow());
    attempt(this.quarantineNote, null, () => this.#showQuarantine());
  }

  async #showSlow() {
    const { slow_ms: slowMs, clients } = await this.api.slowClients();
    const shown = table(
      "Slow clients",
      [
        { title: "User", cell: ({ tenant, user }) => make("a", { href: userAddress(tenant, user) }, user), head: true },
        { title: "Tenant", cell: ({ tenant }) => tenant },
        { title: "State", cell: ({ exhausted }) => (exhausted ? chip("bad", `${count(exhausted)} exhausted`) : chip("warn", "slow")) },
        { title: "Unacknowledged", cell: ({ unacknowledged }) => count(unacknowledged), figure: true },
        { title: "Oldest", cell: ({ oldest }) => (oldest ? fromNow(oldest - Date.now()) : "–"), figure: true },
        { title: "Not sent", cell: ({ behind }) => count(behind), figure: true },
        { title: "Round trip", cell: ({ rtt_ms }) => (rtt_ms ? span(rtt_ms) : "–"), figure: true },
        { title: "Connected by", cell: ({ transport, edge, device }) => [transport, edge, device].filter(Boolean).join(", ") },
        { title: "Since", cell: ({ since }) => moment(since) },
      ],
      clients,
    );
    const none = make("p", { className: "calm" }, `None: every client has acknowledged what it got more than ${span(slowMs)} ago.`);
    redraw(this.slow.body, clients.length ? shown : none);
  }

  async #showQuarantine() {
    const { total, records } = await this.api.quarantine();
    const shown = table(
      "Quarantined records",
      [
        { title: "Part", cell: ({ part }) => part, head: true },
        { title: "Where it was", cell: ({ origin }) => origin },
        { title: "Found", cell: ({ at }) => moment(at) },
        { title: "Size", cell: ({ bytes: size }) => bytes(size), figure: true },
        { title: "Begins with", cell: ({ beginning }) => make("code", {}, beginning) },
        { title: "Key", cell: ({ key }) => make("code", {}, key) },
      ],
      records,
    );
    redraw(this.quarantine.body, records.length ? shown : make("p", { className: "calm" }, "Empty: every stored record could be read."));
    return total > records.length ? `${count(records.length)} of ${count(total)} shown` : "";
  }
}
