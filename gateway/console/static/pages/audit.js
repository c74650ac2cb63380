// Who changed, read or was refused what. The view has the latest lines of each process; files and the topic have all.
import { useData } from "../api.js";
import { replaceQuery } from "../router.js";
import { Known, State, Table, html } from "../ui.js";

export const route = { path: "audit", nav: "Audit", title: () => "Audit" };
const KINDS = { done: "good", failed: "bad", refused: "warn" };

export default function Audit({ query }) {
  const found = useData("admin/heliograph/audit", 5);
  const word = (query.filter || "").toLowerCase();
  return html`<label class="field"><span>Filter</span><input type="search" value=${query.filter || ""} onInput=${(event) => replaceQuery(["audit"], { filter: event.target.value })} />
      <small>a role, an operation, a topic, an address</small></label>
    <${Known} of=${found} what="the audit log" draw=${({ lines, is_kept, silent }) => {
      const shown = lines.filter((line) => JSON.stringify(line).toLowerCase().includes(word)).map((line, n) => ({ ...line, name: `${line.time} ${n}` }));
      return html`${!is_kept && html`<p><${State} kind="unknown">No audit log is kept.<//> It is where callers are authenticated, or where <code>broker.audit.file</code> or <code>broker.audit.topic</code> is set.</p>`}
        ${Object.entries(silent).map(([name, why]) => html`<p><${State} kind="unknown">${name} does not tell its lines: ${why}<//></p>`)}
        <p role="status">${shown.length} of the latest ${lines.length} lines</p>
        <${Table} id="audit" caption="The latest lines, newest first" rows=${shown} columns=${[{ label: "Time", cell: (l) => l.time }, { label: "Who", cell: (l) => l.role || "nobody", sort: (l) => l.role },
          { label: "From", cell: (l) => l.peer }, { label: "What", cell: (l) => l.operation, sort: (l) => l.operation }, { label: "On", cell: (l) => l.target },
          { label: "Arguments", cell: (l) => Object.entries(l.arguments || {}).map(([name, value]) => `${name}=${value}`).join(" ") },
          { label: "Outcome", cell: (l) => html`<${State} kind=${KINDS[l.outcome] || "unknown"}>${l.outcome}<//> ${l.reason || ""}`, sort: (l) => l.outcome }, { label: "By", cell: (l) => l.broker }]} />`;
    }} />`;
}
