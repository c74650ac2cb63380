// Every action of the console that changes something: what it does, what it means, and what has to be typed first.
// Rights are checked by the cluster; `mayNot` says beforehand what a role cannot do to the cluster as a whole.
import { ask, operate } from "./api.js";
import { timeOf } from "./format.js";
import { Act, html } from "./ui.js";

const wish = async (body) => {
  const found = await ask("admin/heliograph/wishes", { method: "POST", body });
  return `The operator was asked: ${found.kind} ${found.subject}. ${found.note || "It is carried out by itself; the map shows how far it is."}`;
};
const tell = (work, said) => async (values) => {
  const found = await work(values);
  return typeof said === "function" ? said(found) : said;
};

export const topicActions = (topic) => html`
  <${Act} label="Unload" subject=${topic} means="The topic is closed where it is served. Clients connect again by themselves, and the next request opens it again."
    run=${tell(() => operate("unload_topic", { topic }), "The topic was closed; it opens again by itself.")} />
  <${Act} label="Trim" subject=${topic} means="Ledgers that neither a subscription nor retention needs are deleted now."
    run=${tell(() => operate("trim_topic", { topic }), (n) => `${n} ledgers were deleted.`)} />
  <${Act} label="Terminate" isDanger subject=${topic} type=${topic} means="The topic ends: it can be read, and nothing can be published to it again."
    run=${tell(() => operate("terminate_topic", { topic }), "The topic has ended.")} />
  <${Act} label="Delete" isDanger subject=${topic} type=${topic} means="The topic is deleted with its partitions, subscriptions and messages. Nothing brings them back."
    fields=${[{ name: "force", label: "although clients use it", type: "checkbox", value: false }]}
    run=${tell((v) => operate("delete_topic", { topic, force: v.force === true }), "The topic is deleted.")} />`;

export const createTopic = (namespace, again) => html`<${Act} label="Create a topic" fields=${[
    { name: "name", label: "Name", hint: `in ${namespace}` }, { name: "partitions", label: "Partitions", type: "number", min: 0, value: "0", hint: "0: not partitioned" }]}
    run=${async (v) => {
      await operate("create_topic", { topic: v.name.includes("://") ? v.name : `persistent://${namespace}/${v.name}`, partitions: Number(v.partitions) });
      again && again();
      return `${v.name} is created.`;
    }} />`;

const PLACES = ["earliest", "latest", "a time", "a message id"];
export const subscriptionActions = (topic, subscription) => {
  const subject = `${subscription} of ${topic}`;
  const given = { topic, subscription };
  return html`
  <${Act} label="Skip" subject=${subject} means="The next entries that are not acknowledged count as acknowledged: their messages are not delivered."
    fields=${[{ name: "count", label: "Entries", type: "number", min: 1, value: "1" }]}
    run=${tell((v) => operate("cursors.skip", { ...given, count: Number(v.count) }), "They are skipped.")} />
  <${Act} label="Reset" subject=${subject} type=${subscription} isDanger
    means="The subscription moves to another position: back, messages are delivered again; forward, they are left out. Its consumers are disconnected and connect again."
    fields=${[{ name: "place", label: "To", options: PLACES, value: PLACES[0] }, { name: "at", label: "Time or id", isOptional: true, hint: "2026-11-30T03:02 in your time, or ledger:entry" }]}
    run=${tell((v) => operate("cursors.reset", { ...given, to: v.place === "a time" ? timeOf(v.at) : v.place === "a message id" ? v.at : v.place }), "The subscription is moved.")} />
  <${Act} label="Skip all" subject=${subject} type=${subscription} isDanger means="Everything counts as acknowledged. Messages that were not consumed are not delivered."
    run=${tell(() => operate("cursors.skip_all", given), "Everything is skipped.")} />
  <${Act} label="Delete" subject=${subject} type=${subscription} isDanger means="The subscription is deleted, and with it what it has not consumed."
    fields=${[{ name: "force", label: "although consumers are connected", type: "checkbox", value: false }]}
    run=${tell((v) => operate("delete_subscription", { topic, name: subscription, force: v.force === true }), "The subscription is deleted.")} />`;
};

export const repairAction = (isPaused, why, again) => html`<${Act} label=${isPaused ? "Resume repair" : "Pause repair"} why=${why}
  means=${isPaused ? "Lost copies are made again." : "A repair under way ends first; from then on lost copies are not made again until repair is resumed, also over restarts."}
  run=${async () => {
    await ask("admin/heliograph/parts/auditor/pause", { method: "POST", body: { arguments: [!isPaused] } });
    again && again();
    return isPaused ? "Repair goes on." : "Repair is paused.";
  }} />`;

export const scaleAction = (kind, count, why) => html`<${Act} label=${`Scale ${kind}`} why=${why} fields=${[{ name: "count", label: `How many ${kind}`, type: "number", min: 1, value: String(count) }]}
  means="New ones start on nodes with room. Those that are too many are emptied first. It is refused where topics need more, or copies would be lost."
  run=${(v) => wish({ kind: "scale", subject: kind, count: Number(v.count) })} />`;

export const restartAction = (name, why) => html`<${Act} label="Restart" subject=${name || "all parts"} why=${why} type=${name || "all parts"}
  means="Parts restart one by one while clients go on: brokers give their topics away first, and the next part follows when all serve again."
  run=${() => wish({ kind: "restart", subject: "parts", names: name ? [name] : [] })} />`;

export const bookieActions = (name, isDown, why) => html`
  <${Act} label="Recover" subject=${name} why=${why} means="Its copies are made again now, instead of after the usual wait." run=${() => wish({ kind: "recover", subject: name })} />
  <${Act} label="Replace" subject=${name} type=${name} isDanger why=${why || (isDown ? "" : "it serves: only a bookie that is down is replaced")}
    means="It starts again on empty directories, which gives up what its disks held; its copies are made again from the others. Refused if it may hold the last copy of an entry."
    run=${() => wish({ kind: "replace", subject: name })} />
  <${Act} label="Decommission" subject=${name} type=${name} isDanger why=${why} means="Its data moves to the others, and then it ends. Its directories stay. Refused if the others are too few."
    run=${() => wish({ kind: "decommission", subject: name })} />
  <${Act} label="Keep" subject=${name} why=${why} means="A decommission under way ends, and the bookie takes entries again." run=${() => wish({ kind: "keep", subject: name })} />
  ${restartAction(name, why)}`;

export const brokerActions = ({ name, broker_id: id, is_draining: isDraining }, why, whyNoRestart, again) => html`
  <${Act} label=${isDraining ? "Take topics again" : "Drain"} subject=${name} why=${why || (id ? "" : "it does not serve")}
    means=${isDraining ? "The broker takes topics again." : "The broker gives all its topics away and takes no more. Clients connect to the others by themselves."}
    run=${tell(() => operate(isDraining ? "brokers.undrain" : "brokers.drain", { broker_id: id }).finally(again), (n) => isDraining ? "It takes topics again." : `It gave ${n} bundles away.`)} />
  ${restartAction(name, whyNoRestart)}`;

// What a command of a finding does, where the console can do it itself.
export function pressed(command, why) {
  if (command === "helio ledgers resume") return repairAction(true, why);
  const scale = /^helio scale (bookies|brokers) (\d+)$/.exec(command);
  return scale ? scaleAction(scale[1], Number(scale[2]), why) : null;
}
