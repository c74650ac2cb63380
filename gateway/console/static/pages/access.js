// Who may do what: grants of a namespace, and tokens that were revoked. Tokens are made where the key is, by helio.
import { operate, useData } from "../api.js";
import { clock } from "../format.js";
import { go } from "../router.js";
import { Act, Copy, State, Table, html } from "../ui.js";
import { useEffect, useState } from "../vendor/htm-preact.js";

export const route = { path: "access", nav: "Access", title: () => "Access" };
const ACTIONS = ["produce", "consume", "functions", "sources", "sinks", "packages"];
const list = (text) => text.split(/[\s,]+/).filter(Boolean);

function useOperation(name, given) {
  const [found, keep] = useState({});
  const [turn, again] = useState(0);
  useEffect(() => {
    operate(name, given).then((data) => keep({ data }), (error) => keep({ error }));
  }, [name, JSON.stringify(given), turn]);
  return { ...found, again: () => again(turn + 1) };
}
const Failed = ({ of, what }) => of.error ? html`<p role="alert"><${State} kind="unknown">${what}: ${of.error.message}<//></p>` : !of.data && html`<p class="dim">loading ${what}</p>`;

function Grants({ namespace }) {
  const found = useOperation("permissions.granted", { namespace });
  const of = found.data || {};
  const after = (work, said) => async (values) => (await work(values), found.again(), said);
  const rows = [
    ...Object.entries(of.namespace_auth || {}).map(([role, actions]) => ({ role, on: namespace, actions, undo: ["permissions.revoke", { namespace, role }] })),
    ...Object.entries(of.destination_auth || {}).flatMap(([topic, roles]) => Object.entries(roles).map(([role, actions]) => ({ role, on: topic, actions, undo: ["permissions.revoke_topic", { topic, role }] }))),
    ...Object.entries(of.subscription_auth_roles || {}).flatMap(([subscription, roles]) => roles.map((role) => ({ role, on: `subscription ${subscription}`, actions: ["use"], undo: ["permissions.revoke_subscription", { namespace, subscription, role }] }))),
  ].map((row) => ({ ...row, name: `${row.role} ${row.on}` }));
  const role = { name: "role", label: "Role" };
  const actions = { name: "actions", label: "Actions", value: "consume", hint: `of ${ACTIONS.join(", ")}` };
  return html`<${Failed} of=${found} what="grants" />
    <p class="buttons">
      <${Act} label="Grant on the namespace" fields=${[role, actions]} means="Instead of the actions that the role had there." run=${after((v) => operate("permissions.grant", { namespace, role: v.role, actions: list(v.actions) }), "It is granted.")} />
      <${Act} label="Grant on a topic" fields=${[{ name: "topic", label: "Topic" }, role, actions]} run=${after((v) => operate("permissions.grant_topic", { topic: v.topic.includes("://") ? v.topic : `persistent://${namespace}/${v.topic}`, role: v.role, actions: list(v.actions) }), "It is granted.")} />
      <${Act} label="Restrict a subscription" fields=${[{ name: "subscription", label: "Subscription" }, { name: "roles", label: "Roles", hint: "only these may use it" }]} run=${after((v) => operate("permissions.grant_subscription", { namespace, subscription: v.subscription, roles: list(v.roles) }), "It is restricted.")} />
    </p>
    ${found.data && html`<${Table} id="grants" caption=${`Grants in ${namespace}`} empty="nothing is granted: only superusers and the tenant's administrators may use it" rows=${rows} columns=${[
      { label: "Role", cell: (r) => r.role, sort: (r) => r.role }, { label: "On", cell: (r) => r.on, sort: (r) => r.on }, { label: "May", cell: (r) => [...r.actions].join(", ") },
      { label: "", cell: (r) => html`<${Act} label="Revoke" subject=${`${r.role} on ${r.on}`} isDanger means="What the role has open there is closed within moments." run=${after(() => operate(...r.undo), "It is revoked.")} />` }]} />`}`;
}

function Tokens({ mayNot }) {
  const found = useOperation("permissions.revoked_tokens", {});
  return html`<p>A token is made where the key is; it is good until it ends or is revoked, and <code>helio tokens show</code> prints its id (<code>jti</code>):</p>
    <p><${Copy} text="helio tokens create --subject ROLE --expiry 30d" /></p>
    <p class="buttons"><${Act} label="Revoke a token" isDanger why=${mayNot} means="It is refused from now on at every door, and what it has open is closed."
      fields=${[{ name: "id", label: "Its id (jti)" }, { name: "ends", label: "When it ends by itself", type: "datetime-local", isOptional: true, hint: "after that it leaves this list; empty: it stays" }]}
      run=${async (v) => (await operate("permissions.revoke_token", { token_id: v.id, ends_ms: v.ends ? new Date(v.ends).getTime() : null }), found.again(), "The token is revoked.")} /></p>
    <${Failed} of=${found} what="revoked tokens" />
    ${found.data && html`<${Table} id="revoked" caption="Revoked tokens" rows=${found.data.map((token) => ({ ...token, name: token.token_id }))} columns=${[{ label: "Id", cell: (t) => t.token_id },
      { label: "Revoked", cell: (t) => clock(t.revoked_ms) }, { label: "Ends", cell: (t) => clock(t.expires_ms) || "never" }]} />`}`;
}

export default function Access({ query, mayNot }) {
  const tenants = useData("admin/v2/tenants", 30);
  const namespace = query.namespace || "public/default";
  return html`<h2>Grants</h2>
    <form onSubmit=${(event) => { event.preventDefault(); go(["access"], { namespace: new FormData(event.target).get("namespace").trim() }); }}>
      <label class="field"><span>Namespace</span><input name="namespace" list="tenants" defaultValue=${namespace} key=${namespace} /></label>
      <datalist id="tenants">${(tenants.data || []).map((tenant) => html`<option value=${`${tenant}/`} />`)}</datalist><button>Show</button></form>
    <${Grants} key=${namespace} namespace=${namespace} /><h2>Tokens</h2><${Tokens} mayNot=${mayNot} />`;
}
