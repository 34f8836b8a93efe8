/** The elements in JSX, for React 19. An application says it once: `import type {} from "ray-notification-client/react";` */

import type { ClassAttributes, HTMLAttributes } from "react";

import type { NotificationBell, NotificationElementEvents, NotificationInbox } from "./elements.js";
import type { NotifyClient } from "./index.js";

interface NotificationProps<T> extends HTMLAttributes<T>, ClassAttributes<T> {
  client?: NotifyClient | null;
  /** React names the property after the event. */
  "onnotification-open"?: (event: NotificationElementEvents["notification-open"]) => void;
}

declare module "react" {
  namespace JSX {
    interface IntrinsicElements {
      "notification-bell": NotificationProps<NotificationBell> & { open?: boolean };
      "notification-inbox": NotificationProps<NotificationInbox>;
    }
  }
}
