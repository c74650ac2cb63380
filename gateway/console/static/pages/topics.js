// Topics of all namespaces, a page at a time: the gateway reads no more than that page.
import { useData } from "../api.js";
import { createTopic } from "../actions.js";
import { number, shortTopic } from "../format.js";
import { link, replaceQuery } from "../router.js";
import { Known, html } from "../ui.js";
import { grid } from "./topic.js";

export const route = { path: "topics", nav: "Topics", title: () => "Topics" };

export default function Topics({ query }) {
  const { text = "", namespace = "", after = "" } = query;
  const found = useData(`admin/heliograph/topics?${new URLSearchParams({ text, namespace, after })}`, 10);
  function search(event) {
    event.preventDefault();
    replaceQuery(["topics"], Object.fromEntries(new FormData(event.target)));
  }
  return html`<form class="buttons" role="search" onSubmit=${search}><label>Name has <input name="text" type="search" value=${text} /></label>
      <label>Namespace <input name="namespace" value=${namespace} /></label><button class="main">Search</button>${createTopic(namespace || "public/default", found.again)}</form>
    <${Known} of=${found} what="topics" draw=${({ topics, looked, next }) => html`
      ${grid("Topics", topics.map((t) => ({ ...t, topic: html`<a href=${link(["topic", t.name])}>${shortTopic(t.name)}</a>` })), "Topic:topic|Partitions:partitions:n|In, messages/s:msgRateIn:n|Out, messages/s:msgRateOut:n|Backlog, messages:backlog:n|Stored:storageSize:b|Subscriptions:subscriptions:n")}
      <p role="status">${number(looked)} names looked at${next ? ", there are more" : ""}</p>
      <p class="buttons">${after && html`<a href=${link(["topics"], { text, namespace })}>First page</a>`}${next && html`<a id="next" href=${link(["topics"], { text, namespace, after: next })}>Next page</a>`}</p>`} />`;
}
