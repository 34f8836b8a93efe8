/** Registers `<notification-bell>` and `<notification-inbox>`: `import "/client/elements/index.js"`. */

import { NotificationBell } from "./notification_bell.js";
import { NotificationInbox } from "./notification_inbox.js";

const registry = globalThis.customElements;
if (registry && !registry.get("notification-bell")) {
  registry.define("notification-inbox", NotificationInbox);
  registry.define("notification-bell", NotificationBell);
}

export { modelOf } from "./inbox_model.js";
export { NotificationBell, NotificationInbox };
