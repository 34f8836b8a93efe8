/**
 * Notifications in a React application (19 or newer, which sets properties of custom elements).
 *
 *   cd examples/react && npm ci && npm start     # then open what it prints, with ?engine=http://127.0.0.1:8000#token=...
 *
 * In an application of your own: `(cd clients/js && npm pack)`, and `npm install` the file that it makes. An engine at another address than
 * the page has to allow that one: `allowed_origins`.
 *
 * `useNotifications` gives a component the client and its state; `<notification-bell>` shows the inbox. One client for the whole application:
 * its tabs share a connection.
 */

import { createContext, useContext, useEffect, useRef, useState } from "react";
import { NotifyClient } from "ray-notification-client";
import "ray-notification-client/elements";

const Notifications = createContext(null);

/** Connects while it is mounted. `getToken` is asked for a token of the user who is signed in. */
export function NotificationProvider({ url, getToken, children }) {
  const [client, setClient] = useState(null);
  const freshToken = useRef(getToken);
  freshToken.current = getToken; // a new function with every render must not reconnect
  useEffect(() => {
    const made = new NotifyClient({ url, getToken: () => freshToken.current(), share: true, counts: true, pauseHiddenMs: 5 * 60_000 });
    setClient(made);
    return () => made.close();
  }, [url]);
  return <Notifications value={client}>{children}</Notifications>;
}

/** The client, null in the first render; `onMessage` is called once for each message, which is acknowledged when it returns. */
export function useNotifications(onMessage) {
  const client = useContext(Notifications);
  const handler = useRef(onMessage);
  handler.current = onMessage;
  const [state, setState] = useState("connecting");
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

function Header() {
  const [latest, setLatest] = useState("nothing yet");
  const { client, state } = useNotifications((message) => setLatest(message.data?.title ?? message.type));
  return (
    <header>
      <notification-bell client={client} />
      <p>
        {state}: {latest}
      </p>
    </header>
  );
}

/** Put it into your page: `createRoot(element).render(<App url="https://notify.example.com" getToken={...} />)`. */
export default function App({ url, getToken }) {
  return (
    <NotificationProvider url={url} getToken={getToken}>
      <Header />
    </NotificationProvider>
  );
}
