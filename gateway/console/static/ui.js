// Components of all pages. State is told by a sign and a word; colour only repeats it.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { clock } from "./format.js";
import { Problem } from "./api.js";

export { html };
const SIGNS = { good: "●", warn: "▲", bad: "■", unknown: "?" };
let sayer = () => {};
export const say = (text, isBad = false) => sayer(text, isBad);

// Says outcomes of actions to everyone, screen readers included.
export function Announcements() {
  const [said, keep] = useState({ text: "" });
  useEffect(() => {
    sayer = (text, isBad) => keep({ text, isBad });
  }, []);
  return html`<div id="said" role="status" class=${said.text ? `said ${said.isBad ? "bad" : "good"}` : "said"}>
    ${said.text}${said.text && html` <button class="plain" onClick=${() => keep({ text: "" })}>dismiss</button>`}
  </div>`;
}

export const State = ({ kind, children }) =>
  html`<span class="state ${kind}"><span aria-hidden="true">${SIGNS[kind]}</span> ${children}</span>`;

// Shows what useData found by `draw`, and says so where it is old, not known, or not for this role.
export function Known({ of, draw, what }) {
  if (of.state === "loading" && !of.data) return html`<p class="dim" role="status">loading ${what}</p>`;
  if (of.state === "refused") return html`<p><${State} kind="unknown">${what}: not for your role.<//> ${of.error.message}</p>`;
  if (of.state === "missing") return html`<p><${State} kind="unknown">${what}: there is none.<//> ${of.error.message}</p>`;
  return html`${of.state === "unknown" && html`<p role="alert"><${State} kind="unknown">${what}: unknown.<//> ${of.error.message}${
    of.data ? ` What stands below was so at ${clock(of.asOf)}.` : ""}</p>`}
    ${of.data && html`<div class=${of.state === "unknown" ? "stale" : ""}>${draw(of.data)}</div>`}`;
}

// columns: {label, cell(row), sort(row)?, isNumber?}; sort makes the heading a button.
export function Table({ caption, columns, rows, empty = "none", id }) {
  const [order, setOrder] = useState(null); // [column, 1 or -1]
  let shown = rows;
  if (order) {
    const by = columns[order[0]].sort;
    shown = [...rows].sort((a, b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : 0) * order[1]);
  }
  const turn = (n) => setOrder([n, order && order[0] === n ? -order[1] : columns[n].isNumber ? -1 : 1]);
  const sorted = (n) => (order && order[0] === n ? (order[1] > 0 ? "ascending" : "descending") : undefined);
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}><table id=${id}>
    <caption>${caption}</caption>
    <thead><tr>${columns.map((column, n) => html`<th scope="col" class=${column.isNumber ? "n" : ""} aria-sort=${sorted(n)}>
      ${column.sort ? html`<button class="plain" onClick=${() => turn(n)}>${column.label}<span aria-hidden="true">${
        { ascending: " ↑", descending: " ↓" }[sorted(n)] || ""}</span></button>` : column.label}</th>`)}</tr></thead>
    <tbody>${shown.map((row) => html`<tr key=${row.name}>${columns.map((column, n) =>
      n ? html`<td class=${column.isNumber ? "n" : ""}>${column.cell(row)}</td>`
        : html`<th scope="row">${column.cell(row)}</th>`)}</tr>`)}
      ${!rows.length && html`<tr><td colspan=${columns.length} class="dim">${empty}</td></tr>`}</tbody>
  </table></div>`;
}

export const Facts = ({ of }) => html`<dl class="facts">${of.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;

export function Bar({ label, value, text, kind = "" }) {
  return html`<span class="bar ${kind}"><progress aria-label=${label} max="1" value=${value}></progress> ${text}</span>`;
}

export function Copy({ text, label = "copy" }) {
  const [done, keep] = useState(false);
  async function copy() {
    try {
      await navigator.clipboard.writeText(text);
      keep(true);
      say(`copied: ${text}`);
    } catch {
      say("The browser does not let this page copy: select the text instead.", true);
    }
  }
  return html`<span class="copy"><code>${text}</code> <button onClick=${copy} aria-label=${`${label}: ${text}`}>${done ? "copied" : label}</button></span>`;
}

// An action: a button, and a dialog that says what it does and asks.
// means: what happens; type: a name to enter before it is done; fields: [{name, label, value, type, options, hint}];
// run(values) does it and returns what to say; why: why this caller may not do it, which disables the button.
export function Act({ label, title, means, type, fields = [], run, why, isDanger, subject = "" }) {
  const dialog = useRef();
  const [state, keep] = useState({});
  const [values, setValues] = useState({});
  const [typed, setTyped] = useState("");
  const named = subject ? `${label} ${subject}` : label;
  function open() {
    setValues(Object.fromEntries(fields.map((field) => [field.name, field.value ?? ""])));
    setTyped("");
    keep({ isOpen: true });
  }
  useEffect(() => {
    if (state.isOpen && dialog.current && !dialog.current.open) dialog.current.showModal();
  }, [state.isOpen]);
  async function act(event) {
    event.preventDefault();
    keep({ isOpen: true, isBusy: true });
    try {
      const said = await run(values);
      dialog.current.close();
      say(said || `${named}: done`);
    } catch (error) {
      const lost = error instanceof Problem && !error.status ? " It is unknown whether it was done." : "";
      keep({ isOpen: true, problem: error.message + lost });
    }
  }
  const set = (name) => (event) => setValues({ ...values, [name]: event.target.type === "checkbox" ? event.target.checked : event.target.value });
  return html`<button class=${isDanger ? "danger" : ""} onClick=${open} aria-label=${named} disabled=${!!why} title=${why || ""}>${label}</button>
    ${state.isOpen && html`<dialog ref=${dialog} aria-label=${named} onClose=${() => keep({})}><form onSubmit=${act}>
      <h2>${title || named}</h2>
      ${means && html`<p>${means}</p>`}
      ${fields.map((field) => html`<label class="field"><span>${field.label}</span>${field.options
        ? html`<select name=${field.name} onChange=${set(field.name)}>${field.options.map((option) => html`<option value=${option} selected=${values[field.name] === option}>${option}</option>`)}</select>`
        : html`<input name=${field.name} type=${field.type || "text"} required=${!field.isOptional && field.type !== "checkbox"} value=${values[field.name]} checked=${values[field.name] === true}
            min=${field.min} onInput=${set(field.name)} autocomplete="off" spellcheck=${false} />`}${field.hint && html`<small>${field.hint}</small>`}</label>`)}
      ${type && html`<label class="field"><span>Enter <strong>${type}</strong> to confirm</span><input name="confirm" value=${typed} onInput=${(e) => setTyped(e.target.value)} autocomplete="off" spellcheck=${false} /></label>`}
      ${state.problem && html`<p role="alert"><${State} kind="bad">${state.problem}<//></p>`}
      <p class="buttons"><button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
        <button type="submit" class=${isDanger ? "danger" : "main"} disabled=${state.isBusy || (type && typed !== type)}>${state.isBusy ? "asking" : label}</button></p>
    </form></dialog>`}`;
}
