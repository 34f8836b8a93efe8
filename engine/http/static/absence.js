/** A user who leaves for some seconds: nothing reaches the page, others go on, and on return the engine tells what was missed. */

import { byId, make } from "./dom.js";
import { MISSED, notification } from "./samples.js";

const AWAY_MS = 5000;

export class Absence {
  #button = byId("leave");
  #panel = byId("digest");
  away = false;

  /**
   * @param {import("./api.js").Api} api @param {import("./bad_network.js").BadNetwork} network @param {string} me
   * @param {(text: string) => void} log
   */
  constructor(api, network, me, log) {
    this.api = api;
    this.network = network;
    this.me = me;
    this.log = log;
    this.#button.addEventListener("click", () => this.#leave());
    byId("digest-close").addEventListener("click", () => (this.#panel.hidden = true));
  }

  /** Whether nothing reaches the page. @param {boolean} gone */
  set gone(gone) {
    this.#button.disabled = this.away = gone;
    this.network.gone = gone; // what may pass then was chosen before, or meanwhile
  }

  async #leave() {
    this.#panel.hidden = true;
    this.gone = true;
    const left = new Promise((resolve) => setTimeout(resolve, AWAY_MS));
    try {
      await this.api.publish(...MISSED.map((sample) => notification(this.me, sample)));
      await left;
      this.#tell(await this.api.digest());
    } catch (error) {
      this.log(`No digest: ${/** @type {any} */ (error).message}`);
      await left;
    }
    this.gone = false;
  }

  /** @param {{messages: number, lines: {text: string, count: number, priority: string}[]}} digest */
  #tell({ messages, lines }) {
    if (!lines.length) return this.log("Nothing was missed: another device has it");
    byId("digest-count").textContent = `${messages} notifications, ${lines.length} lines`;
    byId("digest-lines").replaceChildren(
      ...lines.map(({ text, count, priority }) =>
        make(
          "li",
          {},
          make("span", {}, text),
          priority === "high" && make("span", { className: "chip", data: { kind: "high" } }, "high"),
          count > 1 && make("span", { className: "chip" }, `${count} in one`),
        ),
      ),
    );
    this.#panel.hidden = false;
    this.#panel.scrollIntoView({ block: "nearest" }); // the button is a screen or two further down
  }
}
