/**
 * The browser client: `import { NotifyClient } from "/client.js"`, or from the npm package, which has these files. No dependency.
 *
 * One message passes `transports.js` (WebSocket, SSE, polling; or `tabs.js`, from the tab that holds the connection), `notify_client.js`
 * (which of them is used, and when the next one is tried), and `ledger.js` (was it shown before, what is acknowledged). Its cursor is kept
 * in `cursor_store.js` across page loads.
 */

export { IndexedDbStore, MemoryStore } from "./cursor_store.js";
export { parseEventId } from "./ledger.js";
export { NotifyClient } from "./notify_client.js";
export { Refused } from "./requests.js";
export { readClaims } from "./token.js";
