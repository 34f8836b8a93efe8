/** Hooks and components for React 19, and the elements in JSX. */

import type { ClassAttributes, HTMLAttributes, ReactNode } from "react";

import type {
  InboxModel,
  NotificationBell as Bell,
  NotificationElementEvents,
  NotificationInbox as Inbox,
  NotificationPreferences as Settings,
} from "./elements.js";
import type { Message, NotifyClient, Options, Preferences, PreferencesChange, PushOptions, PushState, State } from "./index.js";

export interface NotificationProviderProps {
  /** Where the engine is; the page's own origin when left out. Another one makes another client. */
  url?: string | URL;
  /** Gives a token of the user who is signed in. Left out: the cookie `notify_token` carries it. */
  getToken?: () => string | Promise<string>;
  /** Further options, read when the client is made. Tabs share a connection and counts are asked for, unless they say otherwise. */
  options?: Omit<Options, "url" | "getToken">;
  children?: ReactNode;
}

type Opened = (event: NotificationElementEvents["notification-open"]) => void;
export type NotificationBellProps = HTMLAttributes<Bell> & { onOpen?: Opened; open?: boolean };
export type NotificationInboxProps = HTMLAttributes<Inbox> & { onOpen?: Opened };
export type NotificationPreferencesProps = HTMLAttributes<Settings>;

/** Makes one client for the components below it, and closes it when it is unmounted. */
export function NotificationProvider(props: NotificationProviderProps): ReactNode;

/** The client, null in the first render; `onMessage` is called once for each message, which is acknowledged when it returns. */
export function useNotifications(onMessage?: (message: Message) => void): { client: NotifyClient | null; state: State };

/** What the bell shows, for a list of your own. Actions reject with `Refused`. */
export function useInbox(): Pick<InboxModel, "entries" | "unread" | "hasMore" | "canArchive"> &
  Pick<InboxModel, "read" | "readAll" | "archive" | "snooze" | "more">;

/** The user's choices, null until they are read; `problem` says why they could not be. `change` rejects with `Refused`. */
export function usePreferences(): {
  preferences: Preferences | null;
  problem: Error | null;
  change: (changes: PreferencesChange) => Promise<void>;
};

/** Whether this browser is pushed to, null until it is known. Both reject with `Refused`; call `enable` when a button is pressed. */
export function usePush(): {
  state: PushState | null;
  enable: (options?: PushOptions) => Promise<void>;
  disable: () => Promise<void>;
};

/** `<notification-bell>` with the client of the provider. */
export function NotificationBell(props: NotificationBellProps): ReactNode;

/** `<notification-inbox>` with the client of the provider. */
export function NotificationInbox(props: NotificationInboxProps): ReactNode;

/** `<notification-preferences>` with the client of the provider. */
export function NotificationPreferences(props: NotificationPreferencesProps): ReactNode;

interface NotificationProps<T> extends HTMLAttributes<T>, ClassAttributes<T> {
  client?: NotifyClient | null;
  /** React names the property after the event. */
  "onnotification-open"?: Opened;
}

declare module "react" {
  namespace JSX {
    interface IntrinsicElements {
      "notification-bell": NotificationProps<Bell> & { open?: boolean };
      "notification-inbox": NotificationProps<Inbox>;
      "notification-preferences": Omit<NotificationProps<Settings>, "onnotification-open">;
    }
  }
}
