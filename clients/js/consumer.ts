// What an application written in TypeScript may rely on; `npm run types` checks it against the declarations.
import "ray-notification-client/elements";

import { type Message, NotifyClient, Refused } from "ray-notification-client";

interface Order {
  order: number;
}

const client = new NotifyClient({ url: "https://notify.example.com", getToken: async () => "token", share: true, pauseHiddenMs: 60_000 });

client.addEventListener("message", (event) => {
  const message: Message<Order> = event.detail;
  const order: number | undefined = message.data?.order;
  if (order === undefined) event.preventDefault();
  else client.ack(message);
});
client.addEventListener("state", ({ detail: { state, retryInMs = 0 } }) => console.log(state, retryInMs));
client.addEventListener("gap", ({ detail: { from, to } }) => console.log(from === null ? "unknown" : `${from} to ${to}`));
client.subscribe("news").then(
  (topics: string[]) => console.log(topics.length),
  (error: unknown) => error instanceof Refused && console.log(error.status, error.retryAfterMs),
);
client.nack(["m1"], "no such order");
client.close();

// @ts-expect-error: there is no such transport
new NotifyClient({ transports: ["carrier pigeon"] });

const bell = document.createElement("notification-bell");
bell.client = client;
bell.addEventListener("notification-open", ({ detail }) => location.assign(detail.url ?? "/"));
client.addEventListener("counts", ({ detail: { unread } }) => console.log(unread));
client.inbox({ unread: true, limit: 10 }).then(({ messages }) => client.mark("read", { ids: messages.map(({ id }) => id) }));
client.inbox().then(({ messages: [newest] }) => newest && client.mark("seen", { upto: newest }));

// @ts-expect-error: exactly one of ids, upto and all
client.mark("read", {});

client.pushState().then((state) => (state === "off" ? client.enablePush({ worker: "/notify-worker.js" }) : client.disablePush()));
client.setPreferences({ categories: { news: "off", social: null }, zone: "Asia/Tokyo" }).then(({ available }) => console.log(available.news?.may));

// @ts-expect-error: the level is the application's
client.setPreferences({ level: "vip" });

client.addEventListener("digest", ({ detail: { lines } }) => console.log(lines.map(({ text, count }) => `${text} (${count})`)));
client.digest({ since: Date.now() - 3_600_000, limit: 5 }).then(({ lines, older }) => console.log(lines[0]?.intent, older));

// @ts-expect-error: an early copy has no cursor
client.addEventListener("message", ({ detail }) => detail.event_id.length);
