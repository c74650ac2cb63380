// Processors of topics: what runs, how far behind it is, what each instance said last; pause, resume and delete.
import { ask, useData } from "../api.js";
import { clock, number } from "../format.js";
import { go, link } from "../router.js";
import { Act, Copy, Facts, Known, State, html } from "../ui.js";
import { grid } from "./topic.js";

export const route = { path: "processors", nav: "Processors", title: () => "Processors" };
const BASE = "admin/heliograph/processors";
const KINDS = { running: "good", paused: "warn", stopped: "bad" };
const short = (topic) => topic.replace("persistent://public/default/", "");

function Processor({ namespace, name }) {
  const found = useData(`${BASE}/processor?${new URLSearchParams({ namespace, name })}`, 10);
  const act = (step, said) => async () => {
    await ask(`${BASE}/${step}`, { method: "POST", body: { namespace, name } });
    step === "delete" ? go(["processors"], { namespace }) : found.again();
    return `${name} ${said}`;
  };
  return html`<section aria-label=${`Processor ${name}`}><h2>${name}</h2>
    <${Known} of=${found} what="the processor" draw=${(p) => html`
      <${Facts} of=${[["Function", p.function], ["Inputs", p.inputs.map(short).join(", ")], ["Outputs", p.outputs.map(short).join(", ")], ["Lag, messages", number(p.lag)], ["Deployed", clock(p.at_ms)]]} />
      <p class="buttons">${p.is_paused
        ? html`<${Act} label="Resume" subject=${name} means="Its instances handle messages again." run=${act("resume", "goes on")} />`
        : html`<${Act} label="Pause" subject=${name} means="Its instances commit what they handled, and handle nothing until it is resumed." run=${act("pause", "pauses")} />`}
        <${Act} label="Delete" subject=${name} type=${name} isDanger means="Its instances end. Its states and subscriptions are deleted; letters and log stay." run=${act("delete", "is deleted")} /></p>
      ${grid("Instances", p.reports, "Instance:instance|Handled:handled:n|Messages/s:rate:n|Failures:failures:n|Letters:letters:n|Late:late:n|Keys:keys:n|Host:host|At:at_ms:t|Error:error")}
      <p><a href=${link(["messages", `persistent://${namespace}/${name}-log`])}>Log</a> <${Copy} text=${`helio functions logs ${name}${namespace === "public/default" ? "" : ` --in ${namespace}`}`} /></p>`} /></section>`;
}

export default function Processors({ query }) {
  const { namespace = "public/default", name = "" } = query;
  const found = useData(`${BASE}?${new URLSearchParams({ namespace })}`, 10);
  const show = (event) => {
    event.preventDefault();
    go(["processors"], { namespace: new FormData(event.target).get("namespace").trim() });
  };
  return html`<form class="buttons" onSubmit=${show}><label>Namespace <input name="namespace" defaultValue=${namespace} key=${namespace} /></label><button>Show</button></form>
    <${Known} of=${found} what="processors" draw=${({ processors, more }) => html`
      ${grid("Processors", processors.map((one) => ({ ...one, inputs: one.inputs.map(short).join(", "), state: html`<${State} kind=${KINDS[one.state]}>${one.state}<//>`, name: html`<a href=${link(["processors"], { namespace, name: one.name })}>${one.name}</a>` })),
        "Processor:name|State:state|Inputs:inputs|Instances:instances:n|Messages/s:rate:n|Lag, messages:lag:n|Keys:keys:n|Error:error")}
      ${more && html`<p>There are more: <${Copy} text="helio functions list" /></p>`}`} />
    ${name && html`<${Processor} key=${name} namespace=${namespace} name=${name} />`}`;
}
