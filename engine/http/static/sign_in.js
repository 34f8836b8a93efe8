/**
 * Signing in to a page of the engine with a token, which stays in this tab.
 *
 * The token comes in the fragment (`#token=...`), which browsers do not send to servers; it is moved to the tab's session
 * storage and removed from the address bar at once. The page has the elements `sign-in`, `sign-in-form`, `sign-in-reason`,
 * `sign-in-problem` and `token`.
 */

import { readClaims } from "./client.js";
import { byId } from "./dom.js";

const TOKEN_KEY = "engine.token";
const REASON_KEY = "engine.reason";

/** The token of this tab, null without one. */
export function takeToken() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) {
    if (token !== sessionStorage.getItem(TOKEN_KEY)) sessionStorage.clear();
    sessionStorage.setItem(TOKEN_KEY, token);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(TOKEN_KEY);
}

/** Show the form. Its reason is the one that `leave` was given, when there is one. */
export function signIn() {
  const reason = sessionStorage.getItem(REASON_KEY);
  sessionStorage.removeItem(REASON_KEY);
  byId("sign-in").hidden = false;
  if (reason) byId("sign-in-reason").textContent = reason;
  byId("sign-in-form").addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    const pasted = byId("token").value.trim();
    const token = /#token=([^&\s]+)/.exec(pasted)?.[1] ?? pasted; // the whole link is fine too
    if (readClaims(token).sub) {
      location.hash = `token=${token}`; // as if it had come in the address
      return;
    }
    byId("sign-in-problem").hidden = false;
    byId("sign-in-problem").textContent = "This is not a token: one has three parts with dots between them, and names a user.";
  });
}

/** Forget the token, and say why on the form. @param {string} [reason] */
export function leave(reason) {
  sessionStorage.clear();
  if (reason) sessionStorage.setItem(REASON_KEY, reason);
  location.reload();
}

/** Take a token that is put into the address while the page is open. */
export function followAddress() {
  window.addEventListener("hashchange", () => location.hash.startsWith("#token=") && takeToken() && location.reload());
}

/** Let the buttons with `data-copy` copy the text of the element they name. */
export function wireCopyButtons() {
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", async () => {
      const label = /** @type {any} */ (button.querySelector("span"));
      const text = byId(/** @type {any} */ (button).dataset.copy).textContent;
      const copied = await navigator.clipboard?.writeText(text).then(() => true, () => false); // absent on plain http from elsewhere
      label.textContent = copied ? "Copied" : "Select and copy";
      setTimeout(() => (label.textContent = "Copy"), 1600);
    });
  }
}
