/**
 * Notifications in a React application (19 or newer, which sets properties of custom elements).
 *
 *   cd examples/react && npm ci && npm start     # then open what it prints, with ?engine=http://127.0.0.1:8000#token=...
 *
 * In an application of your own: `(cd clients/js && npm pack)`, and `npm install` the file that it makes. An engine at another address than
 * the page has to allow that one: `allowed_origins`.
 *
 * One client for the whole application: the provider makes it, and its tabs share a connection.
 */

import { useState } from "react";
import { NotificationBell, NotificationProvider, useInbox, useNotifications, usePreferences } from "ray-notification-client/react";

function Header() {
  const [latest, setLatest] = useState("nothing yet");
  const { state } = useNotifications((message) => setLatest(message.data?.title ?? message.type));
  return (
    <header>
      <NotificationBell />
      <p>
        {state}: {latest}
      </p>
    </header>
  );
}

/** An inbox with a look of its own. */
function Inbox() {
  const { entries, unread, read } = useInbox();
  return (
    <section>
      <h1>{unread} unread</h1>
      <ul>
        {entries.map(({ message, read: done }) => (
          <li key={message.id}>
            {message.data?.title ?? message.type} {!done && <button onClick={() => read([message.id])}>Read</button>}
          </li>
        ))}
      </ul>
    </section>
  );
}

function Categories() {
  const { preferences, problem, change } = usePreferences();
  if (problem) return <p role="alert">{problem.message}</p>;
  return Object.entries(preferences?.available ?? {}).map(([name, { title, choice }]) => (
    <label key={name}>
      <input type="checkbox" checked={choice !== "off"} onChange={() => change({ categories: { [name]: choice === "off" ? null : "off" } })} />
      {title ?? name}
    </label>
  ));
}

/** Put it into your page: `createRoot(element).render(<App url="https://notify.example.com" getToken={...} />)`. */
export default function App({ url, getToken }) {
  return (
    <NotificationProvider url={url} getToken={getToken} options={{ pauseHiddenMs: 5 * 60_000 }}>
      <Header />
      <Inbox />
      <Categories />
    </NotificationProvider>
  );
}
