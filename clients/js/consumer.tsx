// What an application written in TypeScript and React may rely on; `npm run types` checks it against the declarations.
import type { NotifyClient } from "ray-notification-client";
import type {} from "ray-notification-client/react";

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
