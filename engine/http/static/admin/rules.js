/** The rules: which version is in force where, what each rule made of events, and the versions, with staging and rollback. */

import { make } from "../dom.js";
import { bytes, count, moment, short } from "./format.js";
import { RulesEditor } from "./rules_editor.js";
import { card, chip, facts, table } from "./table.js";
import { attempt, noteElement, View, whileChosen } from "./view.js";

const SHARES = [0, 0.01, 0.1, 0.5, 1];
const SOURCES = /** @type {Record<string, string>} */ ({ stored: "a stored version", file: "the rules file", none: "there are none" });
const CHANGES = 20;
const EVENTS = 500;

/** Version 0 is the rules file. @param {number} version */
const named = (version) => (version ? `version ${version}` : "the file");
/** @param {number} share */
const percent = (share) => `${short(share * 100)} %`;

export class RulesView extends View {
  #revision = "";
  #tenant = ""; // whose own; "": the operator's

  #own; // the only tenant that the reader may see; "" for operators

  /** @param {import("./admin_api.js").AdminApi} api @param {string} [own] */
  constructor(api, own = "") {
    super("rules", "Rules", "What turns events into notifications: the version in force, what each rule did, and earlier versions.");
    this.api = api;
    this.#own = own;
    this.note = noteElement();
    this.whose = make("input", { id: "rules-tenant", maxLength: 64, autocomplete: "off", spellcheck: false, placeholder: "the operator's, for all" });
    const choose = make("form", { className: "card query" }, make("div", {}, make("label", { htmlFor: "rules-tenant" }, "Tenant, for its own rules"), this.whose), make("button", { type: "submit", className: "secondary" }, "Show"));
    choose.hidden = own !== "";
    choose.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      location.hash = `rules${this.whose.value.trim() && `/${encodeURIComponent(this.whose.value.trim())}`}`;
    });
    this.editor = new RulesEditor({
      dryRun: async (text) => this.#differences("Dry run of the text", await this.#asked(this.api.dryRunText(this.#tenant, text, EVENTS))),
      store: async (text, share) => {
        const { version } = await this.#asked(this.api.storeRules(this.#tenant, text, share, this.#revision));
        await this.#load();
        return `Stored as ${named(version)}.`;
      },
    });
    this.about = card("rules-about", "In force");
    this.rollback = make("button", { type: "button", className: "secondary small" }, "Roll back the newest step");
    this.about.card.append(this.note, make("div", { className: "actions" }, this.rollback));
    this.edges = card("rules-edges", "By edge");
    this.rules = card("rules-list", "Rules", { note: "Counts since the edges started." });
    this.versions = card("rules-versions", "Versions");
    this.changes = card("rules-changes", "Changes");
    this.shown = make("div", { className: "shown", hidden: true });
    this.versions.card.append(this.shown);
    this.element.append(choose, make("div", { className: "grid two" }, this.about.card, this.edges.card), this.rules.card, this.versions.card, this.editor.element, this.changes.card);
    this.rollback.addEventListener("click", () =>
      this.#change(this.rollback, () => this.api.rollBack(this.#tenant, this.#revision), (active) => `Rolled back: ${named(active)} is in force.`),
    );
  }

  get unsaved() {
    return this.editor.unsaved;
  }

  /** @param {string[]} words */
  open([chosen = ""] = []) {
    const tenant = this.#own || chosen;
    if (tenant !== this.#tenant) {
      this.editor.show("");
      for (const { body } of [this.about, this.rules, this.versions, this.changes]) body.replaceChildren();
    }
    this.#tenant = this.whose.value = tenant;
    this.edges.card.hidden = tenant !== "";
    this.shown.hidden = true;
    attempt(this.note, null, () => this.#load());
  }

  /** What the engine answers about the tenant. @template T @param {Promise<T>} answer */
  #asked(answer) {
    return whileChosen(() => this.#tenant, answer);
  }

  /** @param {string} [news] */
  async #load(news) {
    const found = await this.#asked(this.api.rules(this.#tenant));
    this.#revision = found.revision;
    this.rollback.disabled = found.changes.length === 0;
    this.about.body.replaceChildren(about(found));
    this.edges.body.replaceChildren(edges(found));
    this.rules.body.replaceChildren(rules(found));
    this.versions.body.replaceChildren(this.#versions(found.versions));
    this.changes.body.replaceChildren(changes(found.changes));
    return news;
  }

  /** @param {any[]} versions */
  #versions(versions) {
    if (!versions.length) return make("p", { className: "calm" }, "None is stored: write one below, or use engine rules push.");
    return table(
      "Versions",
      [
        { title: "Version", cell: ({ version }) => named(version), head: true },
        { title: "State", cell: ({ state }) => chip(state === "active" ? "good" : state === "staged" ? "warn" : "plain", state) },
        { title: "Stored", cell: ({ at }) => moment(at) },
        { title: "By", cell: ({ by }) => by },
        { title: "Rules", cell: (one) => count(one.rules), figure: true },
        { title: "Size", cell: (one) => bytes(one.bytes), figure: true },
        { title: "Look", cell: ({ version }) => this.#looks(version) },
        { title: "In force for", cell: ({ version, state }) => (state === "active" ? "everyone" : this.#staging(version)) },
      ],
      versions,
    );
  }

  /** Buttons that show a version's text, and what it would change. @param {number} version */
  #looks(version) {
    const button = (/** @type {string} */ word, /** @type {() => Promise<void>} */ act) => {
      const made = make("button", { type: "button", className: "name", ariaLabel: `${word} of ${named(version)}` }, word);
      made.addEventListener("click", () => attempt(this.note, made, act));
      return made;
    };
    return make("span", { className: "looks" }, button("Text", () => this.#text(version)), button("Edit", () => this.#edit(version)), button("Dry run", () => this.#dryRun(version)));
  }

  /** @param {number} version */
  async #text(version) {
    const text = await this.#asked(this.api.rulesText(this.#tenant, version));
    this.#show(`Text of ${named(version)}`, make("pre", { className: "json", tabIndex: 0, ariaLabel: `Text of ${named(version)}` }, text));
  }

  /** @param {number} version */
  async #edit(version) {
    this.editor.show(await this.#asked(this.api.rulesText(this.#tenant, version)));
    this.editor.text.focus();
  }

  /** @param {number} version */
  async #dryRun(version) {
    this.#differences(`Dry run of ${named(version)}`, await this.#asked(this.api.dryRun(this.#tenant, version, EVENTS)));
  }

  /** @param {string} title @param {any} found */
  #differences(title, { against, events, same, rules: counts, differences }) {
    const summary = `Of ${count(events)} recorded events ${count(same)} would come out as under ${against || !this.#tenant ? named(against) : "no rules"}.`;
    const rows = Object.entries(counts).map(([name, { now, then }]) => ({ name, now, then }));
    const lines = differences.map((/** @type {any} */ { event, added = [], removed = [], changed = [] }) =>
      make("li", {}, make("span", {}, `${moment(event.at)} ${event.type} of ${event.user}`), make("span", { className: "muted" }, `${added.length} added, ${removed.length} removed, ${changed.length} changed`)),
    );
    const shown = table("Notifications by rule", [
      { title: "Rule", cell: ({ name }) => name, head: true },
      { title: "Now", cell: ({ now }) => count(now), figure: true },
      { title: "Then", cell: ({ then }) => count(then), figure: true },
    ], rows);
    this.#show(title, make("div", {}, make("p", {}, summary), rows.length > 0 && shown, make("ul", { className: "plain small" }, ...lines)));
  }

  /** @param {string} title @param {Node} content */
  #show(title, content) {
    const heading = make("h3", { tabIndex: -1 }, title);
    this.shown.hidden = false;
    this.shown.replaceChildren(heading, content);
    heading.focus();
  }

  /** A share of the users, and a button that puts the version in force for it. @param {number} version */
  #staging(version) {
    const share = make("select", { ariaLabel: `Share of the users for ${named(version)}` }, ...SHARES.map((one) => make("option", { value: String(one) }, one === 1 ? "everyone" : one ? percent(one) : "nobody")));
    share.value = "0.1";
    const button = make("button", { type: "button", className: "secondary small", ariaLabel: `Stage ${named(version)}` }, "Stage");
    button.addEventListener("click", () => {
      const chosen = Number(share.value);
      this.#change(button, () => this.api.stage(this.#tenant, version, chosen, this.#revision), () => `${named(version)} is in force for ${chosen === 1 ? "everyone" : percent(chosen)}.`);
    });
    return make("span", { className: "looks" }, share, button);
  }

  /** @param {any} button @param {() => Promise<any>} act @param {(active: number) => string} news */
  #change(button, act, news) {
    return attempt(this.note, button, async () => this.#load(news((await this.#asked(act())).active)));
  }
}

/** @param {any} found */
function about({ source, active, staged, file }) {
  const shown = facts([
    ["From", SOURCES[source] ?? source],
    ["For everyone", source === "none" ? "–" : named(active)],
    ["Staged", staged ? `${named(staged.version)} for ${percent(staged.share)}` : "nothing"],
    ...(file ? [/** @type {[string, any]} */ (["File", file.path])] : []),
  ]);
  return make("div", {}, shown, file?.refused && make("p", { className: "problem" }, `The file is not used: ${file.refused}`));
}

/** @param {any} found */
function edges({ edges: rows }) {
  return table(
    "Rules by edge",
    [
      { title: "Edge", cell: ({ edge }) => edge, head: true },
      { title: "In force", cell: ({ version }) => named(version) },
      { title: "Staged", cell: ({ staged, share }) => (staged ? `${named(staged)}, ${percent(share)}` : "–") },
      { title: "State", cell: ({ refused }) => (refused ? make("span", { className: "reason" }, refused) : chip("good", "fine")) },
    ],
    rows,
  );
}

/** @param {any} found */
function rules({ rules: rows }) {
  if (!rows.length) return make("p", { className: "calm" }, "No rule is in force.");
  return table(
    "Rules in force",
    [
      { title: "Rule", cell: ({ name }) => name, head: true },
      { title: "Events", cell: ({ events }) => events.join(", ") },
      { title: "Makes", cell: ({ type }) => type || "–" },
      { title: "Category", cell: ({ category }) => category || "–" },
      { title: "Matched", cell: ({ matched = null }) => (matched === null ? "–" : count(matched)), figure: true },
      { title: "Sent", cell: ({ sent = null }) => (sent === null ? "–" : count(sent)), figure: true },
      { title: "Skipped", cell: ({ skipped = null }) => (skipped === null ? "–" : count(skipped)), figure: true },
    ],
    rows,
  );
}

/** @param {any[]} rows */
function changes(rows) {
  if (!rows.length) return make("p", { className: "calm" }, "None yet.");
  const lines = rows.slice(0, CHANGES).map(({ at, by, what, version, share }) =>
    make("li", {}, make("span", { className: "muted" }, moment(at)), make("span", {}, `${by}: ${what} ${named(version)}${share > 0 && share < 1 ? ` for ${percent(share)}` : ""}`)),
  );
  return make("ul", { className: "plain" }, ...lines);
}
