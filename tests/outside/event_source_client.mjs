// node event_source_client.mjs NODE_MODULES URL: prints each event that the npm package `eventsource` gets from URL, one JSON object a line.

import { createRequire } from "node:module";

const [, , folder, url] = process.argv;
const { EventSource } = createRequire(`${folder}/`)("eventsource");
const tell = (told) => process.stdout.write(JSON.stringify(told) + "\n");

const source = new EventSource(url);
for (const kind of ["welcome", "message"]) {
  source.addEventListener(kind, (event) => tell({ kind, data: event.data, id: event.lastEventId }));
}
source.addEventListener("error", (event) => tell({ kind: "error", code: event.code ?? null, state: source.readyState }));
