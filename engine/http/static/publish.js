/** The form that publishes, and what came of it. */

import { byId, fromNow, make, shellWord } from "./dom.js";
import { notification, SAMPLES } from "./samples.js";

const RESULTS_SHOWN = 3;

export class PublishForm {
  #form = byId("publish");
  #results = byId("results");
  /** @type {{dueMs: number, show: (text: string, final: boolean) => void}[]} */ #scheduled = [];

  /** @param {import("./api.js").Api} api @param {string} me */
  constructor(api, me) {
    this.api = api;
    this.me = me;
    byId("types").replaceChildren(...SAMPLES.map(({ type }) => make("option", { value: type })));
    this.#form.elements.user.value = me;
    this.#form.elements.type.value = SAMPLES[0].type;
    this.#suggest();
    this.#form.addEventListener("input", (/** @type {any} */ event) => {
      event.target.removeAttribute("aria-invalid");
      if (event.target.name === "type") this.#suggest();
      else if (event.target.name === "title" || event.target.name === "body") event.target.dataset.own = "yes";
      this.#showCommand();
    });
    this.#form.addEventListener("submit", (/** @type {Event} */ event) => {
      event.preventDefault();
      this.#submit();
    });
    setInterval(() => this.#countDown(), 500);
  }

  /** Texts that suit the type, unless the user has written their own. */
  #suggest() {
    const { type, title, body, priority } = this.#form.elements;
    const sample = SAMPLES.find((one) => one.type === type.value);
    if (sample) {
      if (!title.dataset.own) title.value = sample.title;
      if (!body.dataset.own) body.value = sample.body;
      priority.value = sample.priority;
    }
    this.#showCommand();
  }

  #read() {
    const { user, type, title, body, priority, delay } = this.#form.elements;
    const actor = SAMPLES.find((one) => one.type === type.value)?.actor;
    const fields = { type: type.value.trim(), ...(actor && { actor }), priority: priority.value, title: title.value, body: body.value };
    return { ...notification(user.value.trim(), fields), ...(Number(delay.value) > 0 && { delay: Number(delay.value) }) };
  }

  /** The same from a terminal. */
  #showCommand() {
    const { user, type, data, delay } = this.#read();
    const words = ["engine", "publish", shellWord(user || "USER"), shellWord(type || "TYPE"), "--data", shellWord(JSON.stringify(data))];
    byId("publish-command").textContent = [...words, ...(delay ? ["--delay", `${delay}s`] : [])].join(" ");
  }

  async #submit() {
    const wrong = [...this.#form.elements].filter((field) => field.willValidate && !field.checkValidity());
    for (const field of wrong) field.setAttribute("aria-invalid", "true");
    if (wrong.length) {
      wrong[0].focus();
      const label = wrong[0].labels[0].textContent;
      return this.#result("not sent", `${label}: ${wrong[0].validationMessage}`, true);
    }
    const began = performance.now();
    try {
      const asked = this.#read();
      const [result] = await this.api.publish(asked);
      const tookMs = Math.round(performance.now() - began);
      // The page's clock may be wrong: it counts only where something else than the form chose the time.
      if (result.scheduled_id) this.#showScheduled(result, asked.delay ? asked.delay * 1000 : result.scheduled_at - Date.now());
      else {
        const facts = [result.seq && `number ${result.seq}`, result.reason, `answered in ${tookMs} ms`];
        this.#result(result.status, facts.filter(Boolean).join(", "));
      }
    } catch (error) {
      this.#refused(error);
    }
  }

  /** @param {any} result @param {number} leftMs */
  #showScheduled({ status, scheduled_id }, leftMs) {
    const cancel = make("button", { type: "button", className: "quiet" }, "Cancel");
    const show = this.#result(status, "", false, cancel);
    const timer = { dueMs: performance.now() + leftMs, show };
    this.#scheduled.push(timer);
    this.#countDown();
    cancel.addEventListener("click", async () => {
      cancel.disabled = true;
      try {
        await this.api.cancel(scheduled_id);
        this.#scheduled = this.#scheduled.filter((one) => one !== timer);
        show("cancelled, it will not be delivered", true);
      } catch (error) {
        this.#refused(error);
      }
    });
  }

  #countDown() {
    for (const { dueMs, show } of this.#scheduled) {
      const left = dueMs - performance.now();
      show(left > 0 ? `due ${fromNow(Math.max(left, 1000))}` : "due now, delivered", left <= 0);
    }
    this.#scheduled = this.#scheduled.filter(({ dueMs }) => dueMs > performance.now());
  }

  /** @param {any} error */
  #refused(error) {
    this.#result(error.status ? `refused (${error.status})` : "not sent", error.message, true);
  }

  /** A line below the form; returns what changes its text.
   * @param {string} word @param {string} text @param {boolean} [wrong] @param {any} [button] */
  #result(word, text, wrong = false, button) {
    const rest = make("span", {}, text);
    const line = make("li", { className: wrong ? "result wrong" : "result" }, make("strong", {}, word), rest, button);
    this.#results.prepend(line);
    while (this.#results.children.length > RESULTS_SHOWN) this.#results.lastChild.remove();
    return (/** @type {string} */ now, /** @type {boolean} */ final) => {
      rest.textContent = now;
      if (final) button?.remove();
    };
  }
}
