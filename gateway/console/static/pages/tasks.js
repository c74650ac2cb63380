// Queues of durable tasks: what waits, jobs by state, and the letters of what failed, which go back or are deleted.
import { ask, useData } from "../api.js";
import { clock, number, share } from "../format.js";
import { go, link } from "../router.js";
import { Act, Copy, Facts, Known, State, Table, html } from "../ui.js";
import { grid } from "./topic.js";

export const route = { path: "tasks", nav: "Tasks", title: () => "Tasks" };
const BASE = "admin/heliograph/tasks";
const KINDS = { SUCCESS: "good", FAILURE: "bad", RETRY: "warn", REVOKED: "warn" };
const short = (queue) => queue.replace("persistent://public/default/", "");

function Queue({ name }) {
  const found = useData(`${BASE}/queue?${new URLSearchParams({ name })}`, 30);
  const act = (what, ids, said) => async () => {
    const { done } = await ask(`${BASE}/${what}`, { method: "POST", body: { queue: name, ids } });
    found.again();
    return `${done.length} ${said}`;
  };
  const actions = (ids, subject) => html`<span class="buttons">
    <${Act} label="Retry" subject=${subject} means="It is submitted again with the arguments that it had, and its letter is deleted." run=${act("retry", ids, "submitted again")} />
    <${Act} label="Purge" subject=${subject} type=${ids.length ? ids[0] : short(name)} isDanger means="The letter is deleted, and with it the arguments. The state of the job stays." run=${act("purge", ids, "deleted")} /></span>`;
  return html`<section aria-label=${`Queue ${short(name)}`}><h2>${short(name)}</h2>
    <${Known} of=${found} what="the queue" draw=${(q) => html`${q.problems.map((one) => html`<p><${State} kind="unknown">${one}<//></p>`)}
      <${Facts} of=${Object.entries(q.states).map(([state, count]) => [state, number(count)])} />
      ${grid("Jobs", q.jobs.map((job) => ({ ...job, state: html`<${State} kind=${KINDS[job.state] || "unknown"}>${job.state}<//>`, progress: job.progress == null ? "" : share(job.progress) })),
        "Job:id|Task:task|State:state|Attempt:attempt:n|Worker:worker|At:at_ms:t|Progress:progress|Note:note")}
      ${q.letters.length > 0 && html`<p>All letters: ${actions([], `all letters of ${short(name)}`)}</p>`}
      <${Table} id="letters" caption="Letters, the oldest first" empty="nothing failed for good" rows=${q.letters.map((one) => ({ ...one, name: one.id }))} columns=${[{ label: "Job", cell: (l) => l.id },
        { label: "Task", cell: (l) => l.task, sort: (l) => l.task }, { label: "Failed", cell: (l) => clock(l.failed_at_ms), sort: (l) => l.failed_at_ms }, { label: "Attempts", cell: (l) => number(l.attempts), sort: (l) => l.attempts, isNumber: true },
        { label: "Arguments", cell: (l) => html`<code>${l.arguments}</code>` },
        { label: "Exception", cell: (l) => l.traceback ? html`<details><summary>${l.reason}</summary><pre tabindex="0">${l.traceback}</pre></details>` : l.reason },
        { label: "", cell: (l) => l.id && actions([l.id], l.id) }]} />
      <p><${Copy} text=${`helio tasks list '${short(name).replaceAll("'", `'\\''`)}'`} /></p>`} /></section>`;
}

export default function Tasks({ query }) {
  const { namespace = "public/default", queue = "", after = "" } = query;
  const found = useData(`${BASE}?${new URLSearchParams({ namespace, after })}`, 10);
  const show = (event) => {
    event.preventDefault();
    go(["tasks"], { namespace: new FormData(event.target).get("namespace").trim() });
  };
  return html`<form class="buttons" onSubmit=${show}><label>Namespace <input name="namespace" defaultValue=${namespace} key=${namespace} /></label><button>Show</button></form>
    <${Known} of=${found} what="queues" draw=${({ queues, next }) => html`
      ${grid("Queues", queues.map((one) => ({ ...one, queue: html`<a href=${link(["tasks"], { namespace, after, queue: one.name })}>${short(one.name)}</a>` })), "Queue:queue|Waiting, jobs:backlog:n|Workers:workers:n|Letters:letters:n")}
      ${next && html`<p><a href=${link(["tasks"], { namespace, after: next })}>Next page</a></p>`}`} />
    ${queue && html`<${Queue} key=${queue} name=${queue} />`}`;
}
