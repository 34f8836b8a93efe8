/**
 * React 19: the client for a tree of components, hooks for what it has, and the elements as components.
 *
 * `<NotificationProvider>` owns the client. The hooks give null, or nothing, until its first effect has made it, and on a server.
 */

import { NotifyClient } from "ray-notification-client";
import { modelOf } from "ray-notification-client/elements";
import { createContext, createElement, useCallback, useContext, useEffect, useReducer, useRef, useState } from "react";

/** @typedef {import("./react.js").NotificationProviderProps} NotificationProviderProps */

const Notifications = createContext(/** @type {NotifyClient | null} */ (null));

/** @param {NotificationProviderProps} props */
export function NotificationProvider({ url, getToken, options, children }) {
  const [client, setClient] = useState(/** @type {NotifyClient | null} */ (null));
  const latest = useRef({ getToken, options });
  latest.current = { getToken, options }; // a new function or object with every render must not reconnect
  const address = url?.toString();
  useEffect(() => {
    const made = new NotifyClient({
      share: true,
      counts: true,
      ...latest.current.options,
      url: address,
      ...(latest.current.getToken && { getToken: () => /** @type {() => string | Promise<string>} */ (latest.current.getToken)() }),
    });
    made.close(); // until the components listen, whose effects are before the next one: what nobody hears would be acknowledged too
    setClient(made);
    return () => made.close();
  }, [address]);
  useEffect(() => {
    client?.open();
    return () => client?.close();
  }, [client]);
  return createElement(Notifications, { value: client }, children);
}

/** @param {(message: import("ray-notification-client").Message) => void} [onMessage] */
export function useNotifications(onMessage) {
  const client = useContext(Notifications);
  const handler = useRef(onMessage);
  handler.current = onMessage;
  const [state, setState] = useState(/** @type {import("ray-notification-client").State} */ ("connecting"));
  useEffect(() => {
    if (!client) return;
    const ended = new AbortController();
    client.addEventListener("message", ({ detail }) => handler.current?.(detail), { signal: ended.signal });
    client.addEventListener("state", ({ detail }) => setState(detail.state), { signal: ended.signal });
    setState(client.state);
    return () => ended.abort();
  }, [client]);
  return { client, state };
}

export function useInbox() {
  const client = useContext(Notifications);
  const model = client && modelOf(client);
  const [, changed] = useReducer((/** @type {number} */ changes) => changes + 1, 0);
  useEffect(() => {
    if (!model) return;
    model.addEventListener("change", changed);
    model.show();
    changed();
    return () => model.removeEventListener("change", changed);
  }, [model]);
  return {
    entries: model?.entries ?? [],
    unread: model?.unread ?? 0,
    hasMore: model?.hasMore ?? false,
    canArchive: model?.canArchive ?? false,
    read: async (/** @type {string[]} */ ids) => model?.read(ids),
    readAll: async () => model?.readAll(),
    archive: async (/** @type {string} */ id) => model?.archive(id),
    snooze: async (/** @type {string} */ id, /** @type {Date} */ until) => model?.snooze(id, until),
    more: async () => model?.more(),
  };
}

/**
 * What the client answers for its user, null until then; asked for again when the user is another one. `show` takes a newer answer, unless it
 * is an earlier user's.
 * @template T
 * @param {NotifyClient | null} client
 * @param {(client: NotifyClient) => Promise<T>} ask
 */
function useAnswer(client, ask) {
  const [answer, setAnswer] = useState(/** @type {T | null} */ (null));
  const [problem, setProblem] = useState(/** @type {Error | null} */ (null));
  const users = useRef(0);
  const show = useCallback(async (/** @type {Promise<T>} */ asked) => {
    const user = users.current;
    const found = await asked;
    if (user === users.current) setAnswer(found);
  }, []);
  useEffect(() => {
    if (!client) return;
    const load = () => {
      const user = ++users.current;
      setAnswer(null);
      setProblem(null);
      show(ask(client)).catch((error) => user === users.current && setProblem(error));
    };
    load();
    client.addEventListener("user", load);
    return () => {
      users.current++;
      client.removeEventListener("user", load);
    };
  }, [client]);
  return { answer, show, problem, users };
}

export function usePreferences() {
  const client = useContext(Notifications);
  const { answer: preferences, show, problem, users } = useAnswer(client, (asked) => asked.preferences());
  /** One after another: the answer to an earlier one says less. */
  const last = useRef(/** @type {Promise<unknown>} */ (Promise.resolve()));
  const change = useCallback(
    async (/** @type {import("ray-notification-client").PreferencesChange} */ changes) => {
      if (!client) throw new Error("the client is not there before the first effect");
      const user = users.current;
      const answer = last.current.then(() => {
        if (user !== users.current) throw new Error("another user has signed in");
        return client.setPreferences(changes);
      });
      last.current = answer.catch(() => {});
      await show(answer);
    },
    [client],
  );
  return { preferences, problem, change };
}

export function usePush() {
  const client = useContext(Notifications);
  const { answer: state, show } = useAnswer(client, (asked) => asked.pushState());
  const change = useCallback(
    async (/** @type {(client: NotifyClient) => Promise<void>} */ act) => {
      if (!client) throw new Error("the client is not there before the first effect");
      try {
        await act(client);
      } finally {
        await show(client.pushState());
      }
    },
    [client],
  );
  return {
    state,
    enable: (/** @type {import("ray-notification-client").PushOptions} */ options = {}) => change((client) => client.enablePush(options)),
    disable: () => change((client) => client.disablePush()),
  };
}

/** @param {import("./react.js").NotificationBellProps} props */
export function NotificationBell({ onOpen, ...props }) {
  return createElement("notification-bell", { client: useContext(Notifications), "onnotification-open": onOpen, ...props });
}

/** @param {import("./react.js").NotificationPreferencesProps} props */
export function NotificationPreferences(props) {
  return createElement("notification-preferences", { client: useContext(Notifications), ...props });
}

/** @param {import("./react.js").NotificationInboxProps} props */
export function NotificationInbox({ onOpen, ...props }) {
  return createElement("notification-inbox", { client: useContext(Notifications), "onnotification-open": onOpen, ...props });
}
