// One topic: two hours as plots, subscriptions and why they wait, partitions, ledgers on bookies, schemas, policies, producers.
import { path, useData } from "../api.js";
import { subscriptionActions, topicActions } from "../actions.js";
import { ago, bytes, clock, duration, number } from "../format.js";
import { link } from "../router.js";
import { Facts, Known, State, Table, html } from "../ui.js";
import { Plot } from "../plot.js";

export const route = { path: "topic/:name", title: (params) => params.name };
export const addressOf = (name) => {
  const [domain, rest] = name.split("://");
  const [tenant, namespace, ...local] = rest.split("/");
  return path(domain, tenant, namespace, local.join("/"));
};
const SHOW = { n: number, b: bytes, t: clock, s: duration };
// A table of rows; its columns are written as label:key:form.
export const grid = (caption, rows, columns) => html`<${Table} id=${caption.toLowerCase()} caption=${caption} rows=${rows} columns=${columns.split("|").map((one) => {
  const [label, key, form] = one.split(":");
  return { label, isNumber: !!form, sort: (row) => row[key] ?? "", cell: (row) => form ? SHOW[form](row[key]) : row[key] };
})} />`;

const Subscription = ({ topic, of }) => html`<section aria-label=${`Subscription ${of.name}`}><h3>${of.name} <small>${of.type}</small></h3>
  <p class="why"><${State} kind=${of.why ? "warn" : "good"}>${of.why || "moves"}<//></p>
  <${Facts} of=${[["behind", `${number(of.backlogMessages)} messages`], ["oldest", of.msgBacklog ? ago(of.oldestUnackedTimestamp) : "none"], ["unacknowledged", number(of.unackedMessages)], ["delayed", number(of.msgDelayed)]]} />
  ${grid(`Consumers of ${of.name}`, of.consumers, "Consumer:consumerName|Address:address|Holds:unackedMessages:n|Longest held:oldestUnackedMessageId|Delivered:lastConsumedTimestamp:t|Acknowledged:lastAckedTimestamp:t|Permits:availablePermits:n|Out, messages/s:msgRateOut:n")}
  <p class="buttons">${subscriptionActions(topic, of.name)}</p></section>`;

export default function Topic({ params, status }) {
  const found = useData(`admin/heliograph/topic?${new URLSearchParams(params)}`, 10);
  const there = status.data && status.data.bookies.length && status.data.bookies.map((bookie) => bookie.id);
  const copies = ({ segments }) => html`<div class="segments">${segments.map((one) => html`<div style=${{ flexGrow: one.entries }}>${one.first}: ${one.bookies.map((id) =>
    !there || there.includes(id) ? `${id} ` : html`<${State} kind="bad">${id} missing<//> `)}</div>`)}</div>`;
  return html`<p class="buttons"><a href=${link(["messages", params.name])}>Messages</a>${topicActions(params.name)}</p>
    <${Known} of=${found} what="the topic" draw=${(t) => html`${t.problems.map((one) => html`<p><${State} kind="unknown">${one}<//></p>`)}
      <${Facts} of=${[["in", `${number(t.inRate)} messages/s`], ["out", `${number(t.outRate)} messages/s`], ["stored", bytes(t.stored)], ["served by", t.broker || `${t.partitionCount} partitions`]]} />
      <div id="plots">${t.plots.map((plot) => html`<${Plot} key=${plot.title} of=${plot} end=${found.asOf - t.ageSeconds * 1000} step=${t.stepSeconds * 1000} show=${SHOW[plot.form]} />`)}</div>
      <h2>Subscriptions</h2>${t.subscriptions.map((one) => html`<${Subscription} key=${one.name} topic=${params.name} of=${one} />`)}
      ${grid("Partitions", t.partitions.map((p) => ({ ...p, part: html`<a href=${link(["topic", p.name])}>${p.name.split("-partition-")[1]}</a>` })), "Partition:part|Served by:ownerBroker|In, messages/s:msgRateIn:n|Stored:storageSize:b")}
      ${grid("Ledgers", t.ledgers.map((one) => ({ ...one, copies: copies(one) })), "Ledger:ledger|Partition:partition|Entries:entries:n|Bytes:bytes:b|State:state|Copies:copies")}
      ${grid("Producers", t.producers, "Producer:producerName|Address:address|In, messages/s:msgRateIn:n")}
      ${grid("Schemas", t.schemas, "Version:version|Type:type|Definition:schema")}${grid("Policies", t.policies, "Policy:policy|Value:value|From:from")}`} />`;
}
