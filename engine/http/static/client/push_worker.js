/**
 * The service worker that shows pushes: one notification for a message, whose tag is the message's id, and which opens the message's link.
 *
 * A page of another origin than the engine's needs a file of its own, for browsers want a worker from the origin of its page:
 * `importScripts("https://notify.example.com/client/push_worker.js");`. It has a scope of its own and controls no page.
 */

/** @typedef {{id: string, title: string, body: string, url: string, ts?: number}} Pushed */

/** @type {any} */ const worker = self;

worker.addEventListener("install", () => worker.skipWaiting());

worker.addEventListener("push", (/** @type {any} */ event) => {
  /** @type {Pushed} */ const { id, title, body, url, ts } = event.data.json();
  event.waitUntil(worker.registration.showNotification(title, { body, tag: id, data: { url }, ...(ts && { timestamp: ts }) }));
});

worker.addEventListener("notificationclick", (/** @type {any} */ event) => {
  event.notification.close();
  event.waitUntil(show(event.notification.data.url));
});

/** A window that has the link open, or a new one; without a link any window of the application. @param {string} link */
async function show(link) {
  const home = new URL("/", worker.location.href).href;
  const url = URL.canParse(link, home) ? new URL(link, home) : null;
  const target = link && url && /^https?:$/.test(url.protocol) ? url.href : "";
  const windows = await worker.clients.matchAll({ type: "window", includeUncontrolled: true });
  const found = windows.find((/** @type {any} */ one) => !target || one.url === target);
  return found ? found.focus() : worker.clients.openWindow(target || home);
}
