/**
 * The look of the elements. Constructed style sheets, which a Content-Security-Policy without 'unsafe-inline' allows.
 *
 * The colours follow `color-scheme` as the page sets it on the element or on an ancestor. The system's scheme counts only where the page
 * says `light dark`. The bell's icon has the colour of the text around it.
 *
 * A page changes the look by custom properties: --notify-font, --notify-text, --notify-muted, --notify-surface, --notify-line,
 * --notify-accent, --notify-on-accent, --notify-unread and --notify-radius; and by the parts `button`, `badge`, `panel`, `item`. The elements'
 * own properties have other names, so that a page may use its own properties for these: `--notify-accent: var(--accent)`.
 */

import { LOOK } from "./content.js";
import { GROWING_LOOK } from "./growing.js";
import { QUESTION_LOOK } from "./question.js";

const SHARED = `
:host {
  --own-text: var(--notify-text, light-dark(#151a23, #edf0f5)); --own-muted: var(--notify-muted, light-dark(#566072, #9ba6b8));
  --own-surface: var(--notify-surface, light-dark(#fff, #14181f)); --own-line: var(--notify-line, light-dark(#e1e5eb, #272e3a));
  --own-accent: var(--notify-accent, light-dark(#3451c7, #92a7ff)); --own-on-accent: var(--notify-on-accent, light-dark(#fff, #0c1230));
  --own-fresh: var(--notify-unread, light-dark(#eef1fd, #1c2338)); --own-radius: var(--notify-radius, 12px);
  font: var(--notify-font, 15px/1.45 system-ui, sans-serif); text-align: start;
}
:host([hidden]), [hidden] { display: none !important; }
* { box-sizing: border-box; }
button { font: inherit; color: inherit; background: none; border: 0; border-radius: 8px; padding: 6px 8px; cursor: pointer; }
button:disabled { opacity: .55; cursor: default; }
:focus-visible { outline: 2px solid var(--own-accent); outline-offset: 2px; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
`;

const BELL = `
:host { display: inline-block; position: relative; color: var(--notify-text, inherit); }
.bell { position: relative; padding: 8px; line-height: 0; }
.bell svg { width: 24px; height: 24px; fill: none; stroke: currentcolor; stroke-width: 1.7; stroke-linecap: round; stroke-linejoin: round; }
.badge { position: absolute; top: 0; inset-inline-end: 0; min-width: 18px; padding: 0 5px; border-radius: 9px; font-size: 12px; line-height: 18px;
  text-align: center; background: var(--own-accent); color: var(--own-on-accent); }
.panel { position: absolute; z-index: 1000; top: calc(100% + 6px); inset-inline-end: 0; width: min(380px, 92vw); max-height: min(70vh, 560px);
  overflow: auto; overscroll-behavior: contain; color: var(--own-text); background: var(--own-surface); border: 1px solid var(--own-line); border-radius: var(--own-radius); box-shadow: 0 12px 32px rgb(16 24 40 / 18%); }
@media (prefers-reduced-motion: no-preference) {
  .ring svg { animation: ring .5s ease-in-out; }
  .panel { animation: open .12s ease-out; }
}
@keyframes ring { 25% { transform: rotate(12deg); } 75% { transform: rotate(-12deg); } }
@keyframes open { from { opacity: 0; transform: translateY(-4px); } }
`;

const INBOX = `
:host { display: block; color: var(--own-text); background: var(--own-surface); border-radius: var(--own-radius); }
.head { display: flex; align-items: center; justify-content: space-between; gap: 8px; padding: 12px 16px 8px; }
h2 { margin: 0; font-size: 1.07em; }
ul { list-style: none; margin: 0; padding: 0; }
li { display: grid; gap: 2px; padding: 10px 16px; border-top: 1px solid var(--own-line); }
li.unread { background: var(--own-fresh); }
li:focus-visible { outline-offset: -2px; }
.unread .title { font-weight: 650; }
.actions { display: flex; flex-wrap: wrap; gap: 4px; margin-inline-start: -8px; }
summary { padding: 6px 8px; border-radius: 8px; cursor: pointer; list-style: none; }
summary::-webkit-details-marker { display: none; }
.actions summary, .actions button, .head button, .more { color: var(--own-accent); font-size: .9em; }
.more { display: block; margin: 4px auto 8px; }
.empty, .problem { margin: 0; padding: 20px 16px; color: var(--own-muted); text-align: center; }
@media (prefers-reduced-motion: no-preference) { li.fresh { animation: arrive .25s ease-out; } }
@keyframes arrive { from { opacity: 0; transform: translateY(-6px); } }
`;

const PREFERENCES = `
:host { display: block; padding: 12px 16px; color: var(--own-text); background: var(--own-surface); border-radius: var(--own-radius); }
h2 { margin: 0 0 8px; font-size: 1.07em; }
fieldset { display: flex; flex-wrap: wrap; gap: 8px 16px; margin: 0; padding: 10px 0; border: 0; border-top: 1px solid var(--own-line); min-width: 0; }
legend { float: left; width: 100%; padding: 0; font-weight: 650; overflow-wrap: anywhere; }
label { display: inline-flex; align-items: center; gap: 6px; color: var(--own-muted); }
select, input { font: inherit; color: var(--own-text); background: var(--own-surface); border: 1px solid var(--own-line); border-radius: 8px; padding: 4px 6px; max-width: 100%; }
ul { list-style: none; width: 100%; margin: 0; padding: 0; color: var(--own-muted); }
form { display: flex; flex-wrap: wrap; gap: 8px 12px; }
form button { color: var(--own-accent); }
.problem { margin: 8px 0 0; }
`;

const SHEETS = { preferences: [SHARED, PREFERENCES], bell: [SHARED, BELL], inbox: [SHARED, LOOK, INBOX, QUESTION_LOOK, GROWING_LOOK], content: [LOOK, QUESTION_LOOK, GROWING_LOOK] };

/** @param {DocumentOrShadowRoot} root @param {keyof typeof SHEETS} which */
export function dress(root, which) {
  root.adoptedStyleSheets = SHEETS[which].map((text) => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(text);
    return sheet;
  });
}
