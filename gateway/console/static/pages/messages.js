// Messages of a topic: a search within bounds that tells how far it is, a live tail, sending, and dead letters.
import { ask, operate } from "../api.js";
import { bytes, number, timeOf } from "../format.js";
import { link, replaceQuery } from "../router.js";
import { Act, Copy, State, html } from "../ui.js";
import { addressOf, grid } from "./topic.js";
import { useEffect, useRef, useState } from "../vendor/htm-preact.js";

export const route = { path: "messages/:name", title: (params) => `Messages of ${params.name}` };
const SHOWN_MAX = 500;
const PLACES = ["last", "earliest", "time", "id"];
const FIELDS = { key: "", property: "name=value", text: "", path: "lines[*].sku", value: "", limit: 100, looked: 10000, bytes: 16777216, seconds: 10 };
const TO = [{ name: "to", label: "To topic", isOptional: true, hint: "empty: where it came from" }];

const where = (t) => html`${grid(`Copies of ${t.message_id}`, t.copies.map((one) => ({ ...one, copy: html`<${State} kind=${{ present: "good", "no answer": "unknown" }[one.copy] || "bad"}>${one.copy}<//>` })), "Bookie:bookie|Copy:copy")}
  ${grid(`Subscriptions with ${t.message_id}`, t.subscriptions.map((one) => ({ ...one, held: one.held_by.map((each) => each.consumer).join(", ") })), "Subscription:subscription|State:state|Held by:held|Refused:refused:n")}
  ${grid(`Steps of ${t.message_id}`, t.steps.map((one) => ({ ...one, of: one.bookie || one.subscription })), "At:at_ms:t|Step:step|Of:of")}`;

function Message({ of, topic, base, isDead }) {
  const [shown, show] = useState();
  const id = of.messageId;
  const [ledger, entry] = id.split(":").map(Number);
  const at = (name, draw) => () => operate(`cursors.${name}`, { topic: of.topic, ledger_id: ledger, entry_id: entry })
    .then((found) => show(draw(found)), (error) => show(html`<p><${State} kind="unknown">${error.message}<//></p>`));
  const raw = (found) => html`<pre class="raw" tabindex="0">${found.filter((one) => one.message_id === id).map((one) => (of.isMasked ? of.payload : one.payload.slice(0, 9e4)))}</pre>`;
  const again = (name, body, said) => ask(`${base}/${name}`, { method: "POST", body: { ids: [id], ...body } }).then((done) => {
    if (done.failed.length) throw new Error(done.failed[0].reason);
    return said;
  });
  return html`<details><summary><code>${id}</code> ${of.publishTime} ${of.key != null && html`<strong>${of.key}</strong>`} <span class="dim">${(of.isNull ? "null" : of.payload ?? `${bytes(of.size)}, no text`).slice(0, 120)}</span></summary>
    ${isDead && html`<p>Reason: ${of.properties.EXCEPTION || `came back ${of.properties.RECONSUMETIMES || "too often"}`}, from ${of.properties.REAL_TOPIC}</p>`}
    ${of.notDecoded && html`<p><${State} kind="warn">${of.notDecoded}<//></p>`}
    <pre tabindex="0">${of.payload}${of.isCut && " (cut)"}</pre><p><code>${JSON.stringify(of.properties)}</code></p>${shown}
    <p class="buttons"><button onClick=${at("message", raw)}>Raw, base64</button><button onClick=${at("trace", where)}>Where</button>
      <${Copy} label="copy as JSON" text=${JSON.stringify(of)} /><${Copy} label="copy as a command" text=${`helio trace ${id} --topic '${of.topic.replaceAll("'", `'\\''`)}'`} />
      <${Act} label="Send again" subject=${id} fields=${[{ name: "to", label: "To topic", value: topic }]} run=${({ to }) => again("resend", { to }, `sent to ${to}`)} />
      ${isDead && html`<${Act} label="Retry" subject=${id} fields=${TO} run=${({ to }) => again("retry", { to }, "sent back")} />`}</p></details>`;
}

export default function Messages({ params, query }) {
  const topic = params.name;
  const base = `topics/${addressOf(topic)}`;
  const isDead = /-DLQ(-partition-\d+)?$/.test(topic);
  const [found, keep] = useState({ messages: [] });
  const stopping = useRef();
  const place = query.place || "last";
  const stop = () => stopping.current && stopping.current.abort();
  useEffect(() => stop, [topic]);
  async function run(start, follows) {
    stop();
    const mine = (stopping.current = new AbortController());
    const asked = Object.fromEntries(Object.keys(FIELDS).map((name) => [name, query[name]]).filter(([, value]) => value));
    if (follows) Object.assign(asked, { follow: true, seconds: 3600 });
    let messages = [];
    let told = { type: "progress", found: 0, looked: 0, bytes: 0, leftOut: 0 };
    const draw = () => keep({ messages, told, isRunning: told.type === "progress" && !mine.signal.aborted });
    draw();
    try {
      const response = await ask(`${base}/browse?${new URLSearchParams({ ...asked, ...start() })}`, { stream: true, signal: mine.signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let rest = ""; ;) {
        const { value, done } = await reader.read();
        if (done) break;
        const lines = (rest + value).split("\n");
        rest = lines.pop();
        for (const line of lines.map((each) => JSON.parse(each))) line.type === "message" ? messages.push(line) : (told = line);
        messages = follows ? messages.slice(-SHOWN_MAX) : messages;
        draw();
      }
    } catch (error) {
      told = error.name === "AbortError" ? { ...told, type: "stopped" } : { ...told, type: "error", reason: error.message };
    }
    if (told.type === "progress") told.type = "stopped";
    if (stopping.current === mine) keep({ messages, told });
  }
  const start = () => ({ last: { last: query.at || 20 }, earliest: { from: "earliest" }, time: place === "time" && { time: timeOf(query.at) }, id: { from: query.at || "earliest" } })[place];
  const set = (event) => replaceQuery(["messages", topic], { ...query, [event.target.name]: event.target.value });
  const retryAll = async ({ to }) => {
    for (let sent = 0, failed = 0, after; ;) {
      const done = await ask(`${base}/retry`, { method: "POST", body: { to, after } });
      sent += done.sent, failed += done.failures, after = done.next;
      if (done.done) return `${sent} sent back${failed ? `, ${failed} failed` : ""}`;
    }
  };
  const publish = async ({ payload, key, properties }) => {
    const answer = await ask(base, { method: "POST", body: { messages: [{ payload, ...(key && { key }), properties: JSON.parse(properties) }] } });
    return `stored as ${answer.messagePublishResults[0].messageId}`;
  };
  const { told, messages, isRunning } = found;
  const input = ([name, usual]) => html`<label class="field"><span>${name}</span><input name=${name} value=${query[name]} placeholder=${usual} onChange=${set} /></label>`;
  return html`<p class="buttons"><a href=${link(["topic", topic])}>The topic</a>
      <${Act} label="Publish" subject=${`to ${topic}`} fields=${[{ name: "payload", label: "Payload" }, { name: "key", label: "Key", isOptional: true }, { name: "properties", label: "Properties", value: "{}" }]} run=${publish} />
      ${isDead && html`<${Act} label="Retry all" subject=${topic} fields=${TO} means="Every letter since the last Retry all is published where it came from." run=${retryAll} />`}</p>
    <form id="search" onSubmit=${(event) => { event.preventDefault(); run(start, false); }}><div class="buttons">
      <label class="field"><span>from</span><select name="place" onChange=${set}>${PLACES.map((name) => html`<option selected=${name === place}>${name}</option>`)}</select></label>
      ${input(["at", { last: 20, time: "2026-11-30T03:02", id: "ledger:entry" }[place]])}${Object.entries(FIELDS).map(input)}</div>
      <p class="buttons"><button class="main" disabled=${isRunning}>Search</button><button type="button" disabled=${isRunning} onClick=${() => run(() => ({}), true)}>Follow</button><button type="button" disabled=${!isRunning} onClick=${stop}>Stop</button></p></form>
    ${told && html`<p id="progress" role="status"><${State} kind=${told.type === "error" ? "bad" : "good"}>${told.type === "error" ? told.reason : told.type === "stopped" ? "stopped" : told.why ? `ended: ${told.why}` : "searching"}<//>
      ${` ${number(told.found)} found, ${number(told.looked)} looked at, ${bytes(told.bytes)}`}${told.leftOut ? `, ${number(told.leftOut)} left out` : ""}${told.reached ? `, up to ${told.reached}` : ""}
      ${told.next && told.type === "end" && told.why !== "end" && html` <button onClick=${() => run(() => ({ from: told.next }), false)}>Go on</button>`}</p>`}
    <div id="messages">${messages.map((message) => html`<${Message} key=${message.messageId} of=${message} topic=${topic} base=${base} isDead=${isDead} />`)}</div>`;
}
