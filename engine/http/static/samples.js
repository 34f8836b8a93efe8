/** Notifications to try the engine with, one per type. `{title, body}` travel in `data`. */
export const SAMPLES = [
  { type: "post.liked", actor: "mira", priority: "normal", title: "Mira liked your post", body: "Ten rules for charts" },
  { type: "comment.created", actor: "jonas", priority: "normal", title: "Jonas replied to you", body: "Agreed, the second chart can go." },
  { type: "message.direct", actor: "ada", priority: "high", title: "Ada sent you a message", body: "Five minutes before the review?" },
  { type: "build.failed", actor: "ci", priority: "high", title: "Build 1284 failed", body: "3 of 412 tests failed on main." },
  { type: "order.shipped", actor: "shop", priority: "normal", title: "Your parcel is on its way", body: "It arrives tomorrow at noon." },
  { type: "digest.weekly", actor: "team", priority: "low", title: "Your week in numbers", body: "12 posts, 48 replies." },
];

const POST = { kind: "post", id: 7, title: "Ten rules for charts" };
const BRANCH = { kind: "branch", id: "main" };

/** What happens while a user is away: some of it is about the same thing. */
export const MISSED = [
  { type: "post.liked", actor: "mira", priority: "normal", target: POST, title: "Mira liked your post" },
  { type: "post.liked", actor: "jonas", priority: "normal", target: POST, title: "Jonas liked your post" },
  { type: "post.liked", actor: "ada", priority: "normal", target: POST, title: "Ada liked your post" },
  { type: "comment.created", actor: "jonas", priority: "normal", target: POST, title: "Jonas replied to you" },
  { type: "comment.created", actor: "mira", priority: "normal", target: POST, title: "Mira replied to you" },
  { type: "build.failed", actor: "ci", priority: "high", target: BRANCH, title: "Build 1285 failed" },
  { type: "build.failed", actor: "ci", priority: "high", target: BRANCH, title: "Build 1286 failed" },
  { type: "order.shipped", actor: "shop", priority: "normal", title: "Your parcel is on its way", body: "It arrives tomorrow at noon." },
];

/** As `POST /v1/notifications` takes it. @param {string} user @param {Partial<typeof SAMPLES[0]> & {target?: object, delay?: number}} sample */
export function notification(user, { title, body, ...fields }) {
  return { user, ...fields, data: { ...(title && { title }), ...(body && { body }) } };
}
