/** Browser client of ray-notification-engine. The interface it speaks is PROTOCOL.md. Times are milliseconds unless a name says otherwise. */

export type State = "connecting" | "open" | "reconnecting" | "offline" | "paused" | "closed";
export type Transport = "websocket" | "sse" | "poll";

/** A notification as the engine delivers it. */
export interface Message<Data = any> {
  // members, made by docs/members.py
  /** What happened. */
  type: string;
  /** Idempotency key, kept 24 h per user. The engine makes one when it is absent. */
  id: string;
  /** Which goes first under load; normal unless given. */
  priority: "high" | "normal" | "low";
  /** Who did it. */
  actor?: any;
  /** To what. */
  target?: any;
  /** Where. */
  context?: any;
  /** The link that a client opens. */
  url?: string;
  /** The picture that a client shows beside it. */
  image?: string;
  /** The payload. */
  data: Data;
  /** When it happened; when it was accepted, unless given. */
  ts: number;
  /** A question to the user, which is answered once. */
  ask?: Question;
  /** The trace it belongs to (W3C Trace Context). */
  traceparent?: string;
  /** Its number in the user's mailbox. A repeat has the same. */
  seq: number;
  /** The cursor after this message, `<epoch>-<seq>`. An early copy has none. */
  event_id?: string;
  /** It came ahead of lower numbers. */
  early?: true;
  /** When it was due, if it was delayed. */
  due?: number;
  /** How often it was sent on this connection. */
  attempt: number;
  /** How many messages it stands for. */
  count?: number;
  /** The first different actors of a summary. */
  actors?: any[];
  /** The first time of a summary's messages. */
  first_ts?: number;
  /** The last time of a summary's messages. */
  last_ts?: number;
  /** The key of a summary. */
  collapse?: string;
  /** The text of a summary, by the publisher's template. */
  text?: string;
  /** The id of the message that a summary replaces. Acknowledge both. */
  replaces?: string;
  /** The answer to the question that it replaces: `answer`, `label`, `text`, `by`, `at`. */
  answer?: Answer;
  /** The path that turns its category off for this user, where the category has one. */
  unsubscribe?: string;
  // end of members
}

/** What a message asks: a client shows `answers` as buttons, and a field where it takes a `text`. */
export interface Question {
  answers: { id: string; label: string; style?: "plain" | "primary" | "danger" }[];
  /** Milliseconds since the epoch; then the default is the answer. */
  deadline: number;
  text?: boolean;
  default?: string;
  /** Whose members are asked; give it with the answer. */
  topic?: string;
  /** So many members give the same answer. */
  needed?: number;
  everyone?: boolean;
}

/** The answer to a question. `by` is null, and `reason` is set, when it is the default, or the question was withdrawn. */
export interface Answer {
  answer: string | null;
  by: string | null;
  at: number;
  label?: string;
  text?: string;
  device?: string;
  reason?: "deadline" | "split" | "withdrawn";
}

/** A message that grows. */
export interface Growth {
  id: string;
  /** Grows when the message is begun anew. */
  generation: number;
  /** Its members, without the text. */
  message: Partial<Message>;
  /** The text is a list of JSON values, one a line. */
  list: boolean;
  /** So far. */
  text: string;
  /** `value` 0 to 1, absent where it is not known. */
  progress: { value?: number; text?: string; step?: string } | null;
  ended: boolean;
}

/** The counts of a user's inbox; a higher revision is newer. */
export interface Counts {
  unread: number;
  unseen: number;
  revision: number;
}

/** A message as it is kept in the inbox. */
export interface InboxMessage<Data = any> extends Omit<Message<Data>, "attempt" | "early"> {
  event_id: string;
  accepted_at: number;
  acknowledged: boolean;
  read: boolean;
  seen: boolean;
  archived: boolean;
  pinned: boolean;
}

export interface InboxPage extends Counts {
  /** The newest first. */
  messages: InboxMessage[];
  /** Begins the next page; absent at the end. */
  before?: number;
}

/** Messages of one intent. */
export interface DigestLine {
  /** In the language of the user's profile. */
  text: string;
  /** `liked`, `commented`, `failed`, `changed`, `said`, `other`, ... */
  intent: string;
  priority: "high" | "normal";
  /** How many messages it stands for. */
  count: number;
  /** When the first and the last happened, ms since the epoch. */
  from: number;
  to: number;
  messages: { id: string; seq: number; event_id: string }[];
}

/** What a user has missed, the most important first. */
export interface Digest {
  since: number;
  until: number;
  messages: number;
  lines: DigestLine[];
  /** How many were left out, by reason. */
  skipped: Record<string, number>;
  /** More are pending than a digest tells of. */
  older: boolean;
  /** A model grouped what no rule settles. */
  model: boolean;
}

export interface DigestQuery {
  /** Ms since the epoch: also what is acknowledged and unread from then on. */
  since?: number;
  /** Lines at most; 20 by default, up to 100. */
  limit?: number;
}

export interface InboxQuery {
  before?: number;
  limit?: number;
  unread?: boolean;
  archived?: boolean;
  /** `post.liked`, or `post.*`. */
  type?: string;
  /** Text in any value. */
  q?: string;
}

export type Mark = "read" | "unread" | "seen" | "archive" | "unarchive" | "pin" | "unpin";

/** One by one, into the inbox without being sent, together with others in the digest, or not at all. */
export type Choice = "on" | "inbox" | "digest" | "off";

export interface QuietHours {
  /** Local times, `22:00`. */
  from: string;
  to: string;
  /** On which it begins; every day when left out. */
  days?: ("mon" | "tue" | "wed" | "thu" | "fri" | "sat" | "sun")[];
}

/** A digest by mail of what is unread: at this local time, on these days, all when left out. */
export interface MailDigest {
  at: string;
  days?: QuietHours["days"];
}

export interface AvailableCategory {
  title?: string;
  may: Choice[];
  default: Choice;
  choice: Choice;
  channels?: Record<string, "on" | "off">;
}

export interface Preferences {
  user: string;
  /** IANA time zone, of the quiet hours. */
  zone: string;
  /** Language tag of BCP 47; "" for none. */
  locale: string;
  quiet: QuietHours[];
  categories: Record<string, Choice>;
  /** By event type, or beginning of some: `post.*`. */
  types: Record<string, Choice>;
  /** Muted ones. */
  targets: Record<string, "off">;
  /** By `category/channel`: how its steps tell the user by this channel, `digest` by mail only. `*` stands for all other categories. */
  channels: Record<string, "on" | "off" | "digest">;
  /** Quiet hours of a category, in place of `quiet`. */
  quiet_categories: Record<string, QuietHours[]>;
  mail_digest: MailDigest | null;
  /** The categories of the application: what the user may choose, and what holds now; `channels` are those of its steps. */
  readonly available: Record<string, AvailableCategory>;
}

/** What changes; null removes a choice, or a whole member. */
export interface PreferencesChange {
  zone?: string | null;
  locale?: string | null;
  quiet?: QuietHours[] | null;
  categories?: Record<string, Choice | null> | null;
  types?: Record<string, Choice | null> | null;
  targets?: Record<string, "off" | null> | null;
  channels?: Record<string, "on" | "off" | "digest" | null> | null;
  quiet_categories?: Record<string, QuietHours[] | null> | null;
  mail_digest?: MailDigest | null;
}

/** The cursor, and [id, event id] of the messages settled last. */
export interface Kept {
  cursor: string | null;
  settled: [string, string][];
}

/** Keeps the cursor of each user across page loads. */
export interface CursorStore {
  load(key: string): Promise<Kept | null>;
  save(key: string, kept: Kept): Promise<void>;
}

export class MemoryStore implements CursorStore {
  load(key: string): Promise<Kept | null>;
  save(key: string, kept: Kept): Promise<void>;
}

/** The default. Where the browser refuses its database, memory. */
export class IndexedDbStore implements CursorStore {
  static readonly available: boolean;
  load(key: string): Promise<Kept | null>;
  save(key: string, kept: Kept): Promise<void>;
}

export interface Options {
  /** Where the engine is; the page's own origin when left out. A path is kept as a prefix. */
  url?: string | URL;
  /** A JWT. Neither token nor getToken: the cookie `notify_token` carries it. */
  token?: string;
  /** Asked before the first connection, before expiry and after a refusal. */
  getToken?: () => string | Promise<string>;
  /** Name of this device. */
  device?: string;
  /** Cursor to start from, when the application keeps its own. */
  lastEventId?: string;
  /** Keeps the cursor across page loads; IndexedDB when left out. */
  storage?: CursorStore | Pick<Storage, "getItem" | "setItem">;
  /**
   * One connection for all tabs that have the same user, engine and device. A string names who shares, which is needed where the user is
   * not known from a token (cookies, opaque tokens). Default false. Without Web Locks (insecure contexts) each tab has its own.
   */
  share?: boolean | string;
  /** Disconnects a page that has been hidden for so long, until it is visible. Default: never. */
  pauseHiddenMs?: number;
  /** Ask for the counts of the inbox: the event `counts`. Not with polling. Default false. */
  counts?: boolean;
  /** After an absence, ask for a digest of what was missed: the event `digest`. Not with polling. Default false. */
  digest?: boolean;
  /** "auto" (default): when the `message` listeners have returned. */
  ack?: "auto" | "manual";
  /** The ladder, best first; default websocket, sse, poll. */
  transports?: Transport[];
  /** WebSockets in a row that never open before the next transport is tried; default 2. One that is not answered at all is enough. */
  websocketAttempts?: number;
  /** On a lesser transport: when to try a better one again (doubles up to 10 min); default 60 000. */
  upgradeAfterMs?: number;
}

export type PushState = "on" | "off" | "denied" | "unavailable";

export interface PushOptions {
  /** URL of the service worker, on the page's origin. Default: `client/push_worker.js` of the engine, which does for pages of its origin. */
  worker?: string;
}

export interface StateDetail {
  state: State;
  transport: Transport | null;
  reason?: string;
  /** WebSocket close code, or HTTP status, that ended the connection. */
  code?: number;
  status?: number;
  retryInMs?: number;
}

export interface Welcome {
  connection?: string;
  user?: string;
  epoch: string;
  seq?: number;
  resumed: "new" | "ok" | "gap";
  from: number;
}

export interface NotifyEvents {
  /** Shown once. Acknowledged when the listeners have returned, unless one called `preventDefault()` or raised. */
  message: CustomEvent<Message>;
  /** One that came again and was dropped. */
  duplicate: CustomEvent<Message>;
  state: CustomEvent<StateDetail>;
  welcome: CustomEvent<Welcome>;
  /** Handled on another device, or in another tab. */
  revoke: CustomEvent<{ ids: string[] }>;
  /** These numbers are gone; nulls when the cursor was unknown, and so is the extent. */
  gap: CustomEvent<{ from: number | null; to: number | null }>;
  /** The counts of the inbox, at first and whenever they change; with the option `counts`. */
  counts: CustomEvent<Counts>;
  /** What was missed, once after an absence, beside the messages themselves; with the option `digest`. */
  digest: CustomEvent<Digest>;
  /** A message that grows has changed: its text so far. At the end `ended`, when its message has arrived. */
  part: CustomEvent<Growth>;
  /** The token is another user's, who must not see what was shown before. */
  user: CustomEvent<{ user: string }>;
  error: CustomEvent<{ code: string; detail: string }>;
}

/** A connection of one user that keeps itself up. Opens when the current task has ended, so that listeners can be put in place. */
export class NotifyClient extends EventTarget {
  constructor(options?: Options);
  readonly options: Options;
  readonly url: URL;
  readonly transports: Transport[];
  readonly state: State;
  /** The transport in use, null while not open. */
  readonly transport: Transport | null;
  /** Id of the connection at the engine, null while there is none or the transport has none. */
  readonly connection: string | null;
  /** Connections established after the first one; -1 before it. */
  readonly reconnects: number;
  /** The cursor: everything up to it is handled. */
  readonly lastEventId: string | null;
  /** The newest counts of the inbox, null before any. */
  readonly counts: Counts | null;
  /** Connect, also after `close()`. */
  open(): void;
  /** Disconnect for good; what was handled is acknowledged first. */
  close(): void;
  /** Drop the connection and open a new one `afterMs` later. */
  reconnect(afterMs?: number): void;
  /** Acknowledge a message, or everything up to and including a sequence number. */
  ack(target: number | Message): void;
  /** These cannot be handled: to the dead-letter queue. It is said until the engine confirms it. */
  nack(ids: string[], reason?: string): void;
  /** Become a subscriber of topics, for good; all topics of the user. Rejects with {@link Refused}. */
  subscribe(...topics: string[]): Promise<string[]>;
  /** Be no subscriber any more; the topics that are left. */
  unsubscribe(...topics: string[]): Promise<string[]>;
  /** A page of what is kept for the user. Needs no connection, and acknowledges nothing. Rejects with {@link Refused}. */
  inbox(query?: InboxQuery): Promise<InboxPage>;
  /** What the user has missed, in a few lines. Acknowledges nothing. Rejects with {@link Refused}. */
  digest(query?: DigestQuery): Promise<Digest>;
  /** The messages that grow, as far as this page knows. */
  readonly grows: Growth[];
  /** Learn which messages grow, also those that began before this page; each comes as `part`. Rejects with {@link Refused}. */
  growing(): Promise<void>;
  /**
   * Mark messages of the inbox, for all devices; `read` and `archive` acknowledge them too. `unknown`: ids that are not in it. A number
   * alone is of another message when the engine has lost its data meanwhile; a message is then refused (409).
   */
  mark(mark: Mark, which: { ids: string[] } | { upto: Pick<Message, "seq" | "event_id"> | number } | { all: true }): Promise<Counts & { unknown?: string[] }>;
  /** Answer a question, once for all devices. Rejects with {@link Refused}: status 409, its message tells the answer that it has. */
  answer(id: string, answer: string | null, text?: string, topic?: string): Promise<Answer>;
  /** Put messages of the inbox away until a time; each comes back then, as a message that `replaces` it. Once more moves the time. */
  snooze(ids: string[], until: Date | number): Promise<Counts & { until: number; unknown?: string[] }>;
  /** Bring messages back now that were put away. `unknown`: ids of messages that are not away. */
  unsnooze(ids: string[]): Promise<{ coming: string[]; unknown?: string[] }>;
  /** What is put away, the next to come first. `id` is that of the message that was put away. */
  snoozed(): Promise<{ snoozed: { id: string; until: number; message: Partial<Message> }[] }>;
  /** What the user has chosen, and may choose. Rejects with {@link Refused}. */
  preferences(): Promise<Preferences>;
  /** Change what is named, and leave the rest, also what another device changes at the same time; the preferences as they are now. */
  setPreferences(changes: PreferencesChange): Promise<Preferences>;
  /**
   * Push to this browser too, while no page is open. Asks the user for permission, so call it when a button is pressed. Rejects with
   * {@link Refused}; status 0: the browser cannot, or the user does not permit it.
   */
  enablePush(options?: PushOptions): Promise<void>;
  /** Push to this browser no more; before the user signs out, too. Rejects with {@link Refused}. */
  disablePush(): Promise<void>;
  /** Whether this browser is pushed to, for this user. `denied`: only the user can undo that, in the browser's settings. */
  pushState(): Promise<PushState>;
  addEventListener<K extends keyof NotifyEvents>(
    type: K,
    listener: (event: NotifyEvents[K]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | AddEventListenerOptions): void;
  removeEventListener<K extends keyof NotifyEvents>(
    type: K,
    listener: (event: NotifyEvents[K]) => void,
    options?: boolean | EventListenerOptions,
  ): void;
  removeEventListener(type: string, listener: EventListenerOrEventListenerObject | null, options?: boolean | EventListenerOptions): void;
}

/** An answer of the engine that is not a success. `status` 0: no answer. */
export class Refused extends Error {
  constructor(status: number, detail: string, retryAfterMs?: number);
  readonly status: number;
  readonly retryAfterMs?: number;
}

/** `"7-1042"` -> `{epoch: "7", seq: 1042}`; null when it is not a cursor. */
export function parseEventId(text: string | null | undefined): { epoch: string; seq: number } | null;

/** The claims of a JWT, unverified; empty for an opaque token. */
export function readClaims(token: string): any;
