// What an application written in TypeScript and React may rely on; `npm run types` checks it against the declarations.
import type { NotifyClient } from "ray-notification-client";
import {
  NotificationBell,
  NotificationPreferences,
  NotificationProvider,
  useInbox,
  useNotifications,
  usePreferences,
  usePush,
} from "ray-notification-client/react";

export function Header({ client }: { client: NotifyClient | null }) {
  return (
    <header>
      <notification-bell client={client} open={false} className="bell" onnotification-open={({ detail }) => console.log(detail.url)} />
      <notification-inbox client={client} />
      {/* @ts-expect-error: a client is no text */}
      <notification-bell client="client" />
    </header>
  );
}

function Inner() {
  const { state } = useNotifications((message) => console.log(message.type));
  const { entries, unread, read } = useInbox();
  const { preferences, change } = usePreferences();
  const push = usePush();
  return (
    <ul title={`${state}: ${unread} ${push.state}`} onDoubleClick={() => push.enable()} onClick={() => change({ categories: { news: "off" } })} lang={preferences?.locale}>
      {entries.map(({ message }) => (
        <li key={message.id} onClick={() => read([message.id])} />
      ))}
      <NotificationBell onOpen={({ detail }) => console.log(detail.url)} className="bell" />
      <NotificationPreferences lang="zh" />
    </ul>
  );
}

export const App = () => (
  <NotificationProvider url="https://notify.example.com" getToken={async () => "token"} options={{ pauseHiddenMs: 60_000 }}>
    <Inner />
  </NotificationProvider>
);
