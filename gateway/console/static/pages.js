// Every page of the console, in the order of the navigation. A new page is a file in pages/ and a line here.
import * as overview from "./pages/overview.js";
import * as map from "./pages/map.js";
import * as topics from "./pages/topics.js";
import * as topic from "./pages/topic.js";
import * as messages from "./pages/messages.js";
import * as tasks from "./pages/tasks.js";
import * as processors from "./pages/processors.js";
import * as access from "./pages/access.js";
import * as audit from "./pages/audit.js";

export const PAGES = [overview, map, topics, topic, messages, tasks, processors, access, audit];
