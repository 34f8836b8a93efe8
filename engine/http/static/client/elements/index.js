/** Registers `<notification-bell>`, `<notification-inbox>` and `<notification-preferences>`: `import "/client/elements/index.js"`. */

import { NotificationBell } from "./notification_bell.js";
import { NotificationInbox } from "./notification_inbox.js";
import { NotificationPreferences } from "./notification_preferences.js";

const registry = globalThis.customElements;
if (registry && !registry.get("notification-bell")) {
  registry.define("notification-inbox", NotificationInbox);
  registry.define("notification-bell", NotificationBell);
  registry.define("notification-preferences", NotificationPreferences);
}

export { modelOf } from "./inbox_model.js";
export { NotificationBell, NotificationInbox, NotificationPreferences };
