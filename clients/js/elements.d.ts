/** `<notification-bell>`, `<notification-inbox>` and `<notification-preferences>`; importing this module registers them. */

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

/** What the user wants to get, by category and channel, and quiet hours. English, or Chinese where `lang` says so. */
export class NotificationPreferences extends HTMLElement {
  client: NotifyClient | null;
}

/** What the elements of a client show, for an interface of your own. Fires `change`, and `arrived` with a message that was not known. */
export interface InboxModel extends EventTarget {
  readonly client: NotifyClient;
  /** Newest first. */
  readonly entries: { message: Message; read: boolean }[];
  readonly unread: number;
  readonly hasMore: boolean;
  /** Whether messages can be put away: only an inbox that the engine keeps has an archive. */
  readonly canArchive: boolean;
  /** Read the messages, which an application that shows only their number leaves out. */
  show(): void;
  read(ids: string[]): Promise<void>;
  readAll(): Promise<void>;
  archive(id: string): Promise<void>;
  snooze(id: string, until: Date): Promise<void>;
  /** One more page. */
  more(): Promise<void>;
}

/** The one model of a client, which its elements share. */
export function modelOf(client: NotifyClient): InboxModel;

declare global {
  interface HTMLElementTagNameMap {
    "notification-bell": NotificationBell;
    "notification-inbox": NotificationInbox;
    "notification-preferences": NotificationPreferences;
  }
}
