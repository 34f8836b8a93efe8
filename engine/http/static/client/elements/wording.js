/** What the elements say, in English and Chinese, and what they show of a message whose data may be anything. */

/** @typedef {import("../ledger.js").Message} Message */

const WORDS = {
  en: {
    title: "Notifications",
    /** @param {number} unread */ bell: (unread) => (unread ? `Notifications, ${unread} unread` : "Notifications, none unread"),
    empty: "Nothing here yet.",
    unread: "Unread",
    read: "Mark as read",
    readAll: "Mark all as read",
    archive: "Archive",
    snooze: "Snooze",
    snoozeHour: "In 1 hour",
    snoozeTomorrow: "Tomorrow, 9:00",
    snoozeWeek: "Monday, 9:00",
    ownWords: "In your words",
    send: "Send",
    /** @param {string} answer @param {string | null} by */ answered: (answer, by) => (by === null ? `${answer} (the default)` : `${answer} (${by})`),
    withdrawn: "Withdrawn",
    noAnswer: "No answer",
    /** @param {string} detail */ late: (detail) => `Too late: ${detail}`,
    more: "Show more",
    /** @param {string} title */ arrived: (title) => `New: ${title}`,
    failed: "That did not work. Try again.",
    preferences: "Notification settings",
    inApp: "Here",
    channels: { email: "E-mail", apprise: "Chat", push: "Push" },
    choices: {
      categories: { on: "at once", inbox: "in the inbox only", digest: "in a digest", off: "not at all" },
      channels: { on: "if unread", digest: "in the digest", off: "not at all" },
      digest: { never: "never", daily: "each day" },
    },
    digest: "What you missed",
    quiet: "Quiet hours",
    quietFor: "For",
    quietEmpty: "Empty times: none of its own",
    everything: "everything",
    none: "none",
    at: "at",
    from: "from",
    to: "to",
    set: "Set",
  },
  zh: {
    title: "通知",
    /** @param {number} unread */ bell: (unread) => (unread ? `通知，${unread} 条未读` : "通知，没有未读"),
    empty: "还没有通知。",
    unread: "未读",
    read: "标为已读",
    readAll: "全部标为已读",
    archive: "归档",
    snooze: "稍后提醒",
    snoozeHour: "1 小时后",
    snoozeTomorrow: "明天 9:00",
    snoozeWeek: "周一 9:00",
    ownWords: "用自己的话回答",
    send: "发送",
    /** @param {string} answer @param {string | null} by */ answered: (answer, by) => (by === null ? `${answer}（默认）` : `${answer}（${by}）`),
    withdrawn: "已撤回",
    noAnswer: "没有回答",
    /** @param {string} detail */ late: (detail) => `已有回答：${detail}`,
    more: "显示更多",
    /** @param {string} title */ arrived: (title) => `新通知：${title}`,
    failed: "操作失败，请重试。",
    preferences: "通知设置",
    inApp: "站内",
    channels: { email: "邮件", apprise: "聊天", push: "推送" },
    choices: {
      categories: { on: "立即", inbox: "仅收件箱", digest: "摘要", off: "不接收" },
      channels: { on: "未读时", digest: "摘要", off: "不接收" },
      digest: { never: "从不", daily: "每天" },
    },
    digest: "错过的通知",
    quiet: "免打扰时段",
    quietFor: "适用于",
    quietEmpty: "时间留空：不单独设置",
    everything: "全部",
    none: "无",
    at: "时间",
    from: "从",
    to: "到",
    set: "设置",
  },
};

/** The language of an element: its own `lang`, or that of what it is in. @param {Element} element @returns {"en" | "zh"} */
export function languageOf(element) {
  for (let at = /** @type {any} */ (element); at; at = at.parentElement ?? at.getRootNode?.().host) {
    const lang = at.getAttribute("lang");
    if (lang) return lang.toLowerCase().startsWith("zh") ? "zh" : "en";
  }
  return "en";
}

/** @param {Element} element */
export function wordsFor(element) {
  return WORDS[languageOf(element)];
}

/** Any JSON value; `String` raises for an object with a member `toString`. @param {any} value */
export function textOf(value) {
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

/** Title and text. @param {Message} message @returns {[string, string]} */
export function wording({ type, data, text }) {
  if (data === null || typeof data !== "object") return [text ?? type, text === undefined && data !== undefined && data !== null ? String(data) : ""];
  return [textOf(data.title ?? data.subject ?? text ?? type), textOf(text ?? data.body ?? data.text ?? data.message ?? "")];
}

/** The absolute form of an http(s) URL or a path; empty for anything else. @param {unknown} text */
export function addressOf(text) {
  if (typeof text !== "string" || !URL.canParse(text, location.href)) return "";
  const { protocol, href } = new URL(text, location.href);
  return protocol === "http:" || protocol === "https:" ? href : "";
}

/** "now", "12 min. ago". @param {number} ms From now; negative is past. @param {string} language */
export function fromNow(ms, language) {
  const format = new Intl.RelativeTimeFormat(language, { numeric: "auto", style: "short" });
  const seconds = Math.min(0, Math.round(ms / 1000));
  if (seconds > -60) return format.format(0, "second");
  if (seconds > -3600) return format.format(Math.round(seconds / 60), "minute");
  if (seconds > -86_400) return format.format(Math.round(seconds / 3600), "hour");
  return format.format(Math.round(seconds / 86_400), "day");
}
