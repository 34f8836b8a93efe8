/** Parser of `text/event-stream` (WHATWG HTML, section 9.2.6); takes decoded text in pieces of any size. */
export class SseParser {
  #rest = "";
  #event = "";
  /** @type {string[]} */ #data = [];

  /** @param {string} text @returns {Generator<{event: string, data: string}>} */
  *push(text) {
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?=[^])/); // a final \r may be half of \r\n: it waits
    this.#rest = lines.pop() ?? "";
    for (const line of lines) {
      const [, field, value] = /^([^:]*):? ?([^]*)$/.exec(line) ?? [];
      if (field === "data") this.#data.push(value);
      else if (field === "event") this.#event = value;
      if (line !== "") continue;
      if (this.#data.length) yield { event: this.#event || "message", data: this.#data.join("\n") };
      this.#event = "";
      this.#data = [];
    }
  }
}
