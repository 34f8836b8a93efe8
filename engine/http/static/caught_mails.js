/**
 * Mails that the engine caught in place of sending them, and a user who leaves for a minute to get one. Hidden where it catches none, or
 * where its rules have no category `demo`.
 */

import { byId, fromNow, make } from "./dom.js";
import { notification } from "./samples.js";

const CATEGORY = "demo"; // engine/cli/demo_rules.toml
const EMAIL = "you@example.org";
const WAITED = { type: "report.ready", priority: "normal", category: CATEGORY, title: "Your report is ready", body: "Nobody has seen this for a minute." };
const STEP_MS = 60_000;
const PATIENCE_MS = 20_000; // beyond the minute
const LOOK_MS = 1000;
const SHOWN = 5;
const LEAVE = "Leave for a minute, get a mail";
const LINK = /https?:\/\/\S+/g;

/** @typedef {{at: number, to: string, subject: string, text: string}} Mail */

export class CaughtMails {
  #button = byId("mail-leave");
  /** @type {(() => void) | null} */ #comeBack = null;

  /**
   * @param {import("./api.js").Api} api @param {import("./absence.js").Absence} absence @param {string} me @param {string} scope Of the token.
   * @param {(text: string) => void} log
   */
  constructor(api, absence, me, scope, log) {
    this.api = api;
    this.absence = absence;
    this.me = me;
    this.log = log;
    this.#button.addEventListener("click", () => (this.#comeBack ? this.#comeBack() : this.#leave()));
    this.#say(LEAVE);
    if (scope.split(" ").includes("operator")) this.#begin().catch(() => {}); // without a catcher the card stays hidden
  }

  async #begin() {
    const { available } = await this.api.preferences();
    if (!available[CATEGORY]) return;
    await this.#look();
    byId("mails").hidden = false;
  }

  /** Show what there is. @returns {Promise<number>} when the newest came */
  async #look() {
    const mails = await this.api.caughtMails();
    byId("mail-list").replaceChildren(...mails.slice(0, SHOWN).map(line));
    return mails[0]?.at ?? 0;
  }

  async #leave() {
    if (this.absence.away) return;
    let back = false;
    this.#comeBack = () => (back = true);
    this.absence.gone = true;
    try {
      const before = await this.#look();
      await this.api.addEmail(this.me, EMAIL);
      await this.api.publish(notification(this.me, WAITED));
      const began = Date.now();
      let came = false;
      while (!back && !came && Date.now() < began + STEP_MS + PATIENCE_MS) {
        this.#say(`Come back: ${Math.max(0, Math.ceil((began + STEP_MS - Date.now()) / 1000))} s to the mail`);
        await new Promise((resolve) => setTimeout(resolve, LOOK_MS));
        came = (await this.#look()) > before;
      }
      this.#note(came ? "The mail came. You are back: the notification is here too." : back ? "You came back before the minute was over: no mail comes." : "No mail came.");
    } catch (error) {
      this.#note(`Not possible: ${/** @type {any} */ (error).message}`);
    }
    this.#comeBack = null;
    this.#say(LEAVE);
    this.absence.gone = false;
  }

  /** @param {string} text */
  #say(text) {
    byId("mail-leave-text").textContent = text;
  }

  /** @param {string} text */
  #note(text) {
    byId("mail-note").textContent = text;
    this.log(text);
  }
}

/** A mail. Its links lead to the engine, or where the publisher says. @param {Mail} mail */
function line({ at, to, subject, text }) {
  const parts = [];
  let shown = 0;
  for (const { 0: href, index } of text.matchAll(LINK)) {
    parts.push(text.slice(shown, index), make("a", { href, target: "_blank", rel: "noopener noreferrer" }, href));
    shown = index + href.length;
  }
  return make(
    "li",
    {},
    make("p", {}, make("strong", {}, subject), ` to ${to}, ${fromNow(at - Date.now())}`),
    make("p", { className: "mail" }, ...parts, text.slice(shown).trimEnd()),
  );
}
