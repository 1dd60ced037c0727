// The page: two views, of which one is shown.

import { Chat } from "./chat.js";
import { ServiceView } from "./service.js";
import { Settings, listModels } from "./settings.js";

const settings = new Settings(() => listModels(settings.key));
new Chat(settings);
const service = new ServiceView(() => settings.key);

function show() {
  const shown = location.hash === "#service" ? "service" : "chat";
  for (const name of ["chat", "service"]) {
    document.getElementById(name).hidden = name !== shown;
    const link = document.getElementById(`to-${name}`);
    if (name === shown) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  service.watch(shown === "service");
}

addEventListener("hashchange", show);
show();
listModels(settings.key);
