// First the verdict, then each finding: what, since when, what it means, what goes on by itself, which command helps.
import { pressed } from "../actions.js";
import { clock, number } from "../format.js";
import { Copy, Facts, Known, State, html } from "../ui.js";
import { kindOf, sentence } from "../verdict.js";

export const route = { path: "", nav: "Overview", title: () => "Overview" };

function Finding({ of, mayNot }) {
  return html`<li class=${of.is_warning ? "warn" : "bad"}>
    <p class="what"><${State} kind=${of.is_warning ? "warn" : "bad"}><strong>${of.what}</strong><//>${of.since_ms ? html`, since <time>${clock(of.since_ms)}</time>` : ""}</p>
    <p class="means"><span class="dim">For clients:</span> ${of.meaning}</p>
    ${of.meanwhile && html`<p class="meanwhile"><span class="dim">Meanwhile:</span> ${of.meanwhile}</p>`}
    <p class="helps"><span class="dim">What helps:</span> <${Copy} text=${of.command} /> ${pressed(of.command, mayNot)}${/^helio (logs|ledgers|scale) /.test(of.command) && html` <a href="#/map">on the map</a>`}</p></li>`;
}

export default function Overview({ status, mayNot }) {
  return html`<p id="verdict" class="verdict" role="status"><${State} kind=${kindOf(status)}>${sentence(status)}<//></p>
    <${Known} of=${status} what="the status" draw=${(s) => html`
      <ul id="findings" aria-label="Findings">${s.findings.map((finding) => html`<${Finding} key=${finding.what} of=${finding} mayNot=${mayNot} />`)}</ul>
      ${s.problems.map((problem) => html`<p><${State} kind="unknown">${problem}<//></p>`)}
      <h2>This gateway</h2>
      <${Facts} of=${[["published", number(s.gateway.produced)], ["delivered", number(s.gateway.delivered)],
        ["acknowledged", number(s.gateway.acknowledged)], ["refused", number(s.gateway.failed)]]} />`} />`;
}
