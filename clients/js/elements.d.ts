/** `<notification-bell>` and `<notification-inbox>`; importing this module registers them. */

import type { Message, NotifyClient } from "./index.js";

export interface NotificationElementEvents {
  /** A message was opened. Cancelable: `preventDefault()` keeps the browser from following its link. Bubbles out of the bell. */
  "notification-open": CustomEvent<Message>;
}

/** The newest notifications of a client. English, or Chinese where `lang` says so. */
export class NotificationInbox extends HTMLElement {
  client: NotifyClient | null;
  addEventListener<K extends keyof NotificationElementEvents>(
    type: K,
    listener: (event: NotificationElementEvents[K]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
}

/** A button with the number of unread notifications, which opens an inbox. */
export class NotificationBell extends HTMLElement {
  client: NotifyClient | null;
  /** Whether the inbox is shown. */
  open: boolean;
  toggle(): void;
  addEventListener<K extends keyof NotificationElementEvents>(
    type: K,
    listener: (event: NotificationElementEvents[K]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
}

declare global {
  interface HTMLElementTagNameMap {
    "notification-bell": NotificationBell;
    "notification-inbox": NotificationInbox;
  }
}
