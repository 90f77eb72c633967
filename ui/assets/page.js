// One persistent Plotly node per chart: Plotly.react keeps zoom and legend choices while figures stream in.
// Colours arrive as CSS variables and are resolved at draw time, so a chart follows light and dark.
(() => {
  if (window.kvPlot) return;

  let library;
  const loadPlotly = (url) => library ??= new Promise((done, failed) => {
    const script = document.createElement("script");
    script.src = url;
    script.onload = () => done(window.Plotly);
    script.onerror = () => failed(new Error("plotly.js did not load"));
    document.head.append(script);
  });

  const css = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
  const colour = (text) => css(text.slice(4, -1));
  const resolve = (value) => {
    if (typeof value === "string") return value.startsWith("var(--") ? colour(value) : value;
    if (Array.isArray(value)) return typeof value[0] === "number" ? value : value.map(resolve);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, resolve(inner)]));
    return value;
  };

  const axis = () => ({
    gridcolor: css("--kv-grid"), zerolinecolor: css("--kv-grid"), linecolor: css("--kv-grid"), automargin: false,
    tickfont: { color: css("--kv-text-soft"), size: 11 },
  });
  const layoutFor = (layout) => {
    const out = {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", uirevision: "kept", dragmode: "zoom", showlegend: false,
      font: { family: css("--kv-font"), color: css("--kv-text"), size: 12 },
      hoverlabel: { bgcolor: css("--kv-panel"), bordercolor: css("--kv-line"), font: { color: css("--kv-text"), size: 12 } },
      ...resolve(layout),
    };
    for (const name of Object.keys(out).filter((key) => /^[xy]axis/.test(key))) {
      const title = out[name].title;
      out[name] = { ...axis(), ...out[name] };
      if (title) out[name].title = { ...title, font: { color: css("--kv-text-soft"), size: 11 } };
    }
    return out;
  };

  // A legend of buttons: pressed is shown. Kept apart from the figure, so a choice outlives every update.
  const drawLegend = (list, data, hidden, ask) => {
    const named = data.filter((trace) => trace.name);
    const wanted = named.map((trace) => trace.name).join("|");
    if (list.dataset.names === wanted) return;
    list.dataset.names = wanted;
    list.replaceChildren(...named.map((trace) => {
      const button = document.createElement("button");
      const mark = document.createElement("i");
      const dash = trace.line?.dash;
      mark.className = trace.type === "bar" ? "kv-box" : "kv-dash";
      mark.style.setProperty("--mark", trace.marker?.color ?? trace.line.color);
      if (dash && dash !== "solid") mark.style.borderTopStyle = dash === "dot" ? "dotted" : "dashed";
      button.append(mark);
      if (trace.marker?.symbol) {
        const point = document.createElement("i");
        point.className = `kv-swatch kv-${trace.marker.symbol}`;
        point.style.setProperty("background", trace.line.color);
        button.append(point);
      }
      button.append(trace.name);
      button.type = "button";
      button.setAttribute("aria-pressed", String(!hidden.has(trace.name)));
      button.onclick = () => {
        hidden.has(trace.name) ? hidden.delete(trace.name) : hidden.add(trace.name);
        button.setAttribute("aria-pressed", String(!hidden.has(trace.name)));
        ask();
      };
      const item = document.createElement("li");
      item.append(button);
      return item;
    }));
  };

  const config = { displaylogo: false, responsive: false, displayModeBar: false, doubleClick: "reset+autosize" };

  window.kvPlot = (element, props, watch) => {
    const node = element.querySelector(".kv-plot");
    const words = element.querySelector(".kv-words");
    const facts = element.querySelector(".kv-facts");
    const legend = element.querySelector(".kv-legend");
    const hidden = new Set();
    let waiting = false, missed = false; // a value came, or the colours changed, while the chart was hidden
    const empty = () => {
      if (!node.data) return;
      window.Plotly.purge(node);
      node.classList.remove("kv-drawn");
      words.textContent = facts.innerHTML = legend.dataset.names = "";
      legend.replaceChildren();
    };
    const draw = async () => {
      waiting = false;
      element.classList.toggle("kv-has", Boolean(props.value));
      if (!props.value) return empty();
      const { figure, sentence, line } = JSON.parse(props.value);
      if (figure.layout.height) node.style.height = `${figure.layout.height}px`;
      if (words && words.textContent !== sentence) words.textContent = sentence ?? "";
      if (facts && line !== undefined) facts.innerHTML = line;
      missed = !node.clientWidth;
      if (missed) return; // a hidden tab: drawn when it gets a size
      const Plotly = await loadPlotly(element.querySelector("[data-plotly]").dataset.plotly);
      const named = figure.layout.meta?.named && node.clientWidth >= 520; // lines that are named at their ends, where there is room
      if (figure.layout.meta?.named && !named) {
        Object.assign(figure.layout, { annotations: [], margin: { ...figure.layout.margin, r: 14 } });
        figure.data = figure.data.map((trace) => (trace.mode === "markers+text" ? { ...trace, mode: "markers" } : trace));
      }
      drawLegend(legend, named ? [] : figure.data, hidden, ask);
      for (const trace of figure.data) if (hidden.has(trace.name)) trace.visible = false;
      node.classList.add("kv-drawn"); // gives it its height, which Plotly reads
      await Plotly.react(node, resolve(figure.data), layoutFor(figure.layout), config);
      node.dataset.draws = Number(node.dataset.draws ?? 0) + 1;
    };
    const ask = () => {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(draw);
    };
    watch("value", ask);
    new ResizeObserver(() => {
      if (window.Plotly && node.data && node.clientWidth && !missed) window.Plotly.Plots.resize(node);
      else ask();
    }).observe(node);
    new MutationObserver(ask).observe(document.body, { attributes: true, attributeFilter: ["class"] });
    ask();
  };

  // Keep the end of a growing thread in view, unless its reader has scrolled up.
  window.kvFollow = (element, watch) => {
    let box, follow = true;
    const find = () => {
      for (box = element; box && getComputedStyle(box).overflowY !== "auto"; box = box.parentElement);
      box?.addEventListener("scroll", () => { follow = box.scrollTop + box.clientHeight > box.scrollHeight - 24; });
    };
    watch("value", () => {
      if (!box) find();
      if (box && follow) box.scrollTop = box.scrollHeight;
    });
  };

  // The first minute: to the Compare tab and through its demo.
  window.kvTour = () => {
    [...document.querySelectorAll('#kv-tabs [role="tab"]')].find((tab) => tab.textContent.trim() === "Compare")?.click();
    const begin = (tries) => {
      const demo = document.querySelector("#kv-demo");
      if (demo?.offsetParent) demo.click();
      else if (tries) setTimeout(begin, 100, tries - 1);
    };
    begin(50);
  };

  // On a phone only model and cache show; the button unfolds the rest.
  window.kvMore = (button) => {
    const open = document.querySelector("#kv-setup").classList.toggle("kv-open");
    button.setAttribute("aria-expanded", String(open));
  };

  // What this browser keeps of the page: the form and the tab as they change, the chat after each reply, a draft and what was not answered as the page goes.
  // A reloaded tab finds its own; a new one begins with what was written last.
  const place = (name) => `kvcache.${name}`;
  const NOT_KEPT = '<p class="kv-info" role="status">This browser has no room for the chat, or keeps nothing for this page: after a reload it is gone.</p>';
  window.kvKept = {
    ready: false, // what was kept has been read: until then it is not written over
    own() { try { return sessionStorage.getItem(place("chat")) ?? ""; } catch { return ""; } },
    read(name) {
      try {
        if (sessionStorage.getItem(place(name)) === null) sessionStorage.setItem(place(name), localStorage.getItem(place(name)) ?? ""); // its own from now on
        return sessionStorage.getItem(place(name));
      } catch { return ""; }
    },
    write(name, text) {
      if (!this.ready) return true;
      try {
        for (const store of [sessionStorage, localStorage]) store.setItem(place(name), text);
        return true;
      } catch {
        try { for (const store of [sessionStorage, localStorage]) store.removeItem(place(name)); } catch { /* keeps nothing at all */ }
        return false;
      }
    },
    chat(text) { return this.write("chat", text) ? "" : NOT_KEPT; },
    form() { return JSON.stringify({ form: this.read("form"), tab: this.read("tab"), draft: this.draft() }); },
    keepForm(names, values) { this.write("form", JSON.stringify(Object.fromEntries(names.map((name, n) => [name, values[n]])))); },
    draft() { try { return sessionStorage.getItem(place("draft")) ?? ""; } catch { return ""; } },
    answered() { // how many messages have their reply in what is kept
      try {
        const found = JSON.parse(this.read("chat") || "{}");
        return found.too_long ? Infinity : found.record?.turns.length ?? 0;
      } catch { return Infinity; }
    },
  };
  addEventListener("pagehide", () => {
    const asked = [...document.querySelectorAll("#kv-chatbot .message.user")].slice(window.kvKept.answered()).map((each) => each.innerText);
    const typed = document.querySelector("#kv-message textarea")?.value ?? "";
    try { sessionStorage.setItem(place("draft"), [...asked, typed].filter((text) => text.trim()).join("\n")); } catch { /* keeps nothing */ }
  });

  // A square of the ribbon says its word; a message marks its squares.
  const pick = (event) => {
    const square = event.target.closest?.(".kv-cells i[data-word]");
    if (!square) return;
    const fates = square.closest(".kv-fates"), line = fates.querySelector(".kv-picked");
    const at = [...square.parentElement.children].indexOf(square);
    const parts = [...fates.querySelectorAll(".kv-cells")].map((cells) => [cells.children[at]?.dataset.fate, cells.dataset.layers]);
    const fate = parts.map(([fate, layers]) => layers ? `${fate} in the ${layers}` : fate).join("; ");
    if (line) line.textContent = `\u201c${square.dataset.word}\u201d \u00b7 ${square.dataset.where}: ${fate}`;
  };
  const isFigures = (row) => row.querySelector(".kv-stats, .kv-why") !== null;
  const mark = (event) => {
    const row = event.target.closest?.("#kv-chatbot .message-row");
    const rows = row && !isFigures(row) ? [...document.querySelectorAll("#kv-chatbot .message-row")].filter((each) => !isFigures(each)) : [];
    const at = row ? String(rows.indexOf(row)) : "none";
    for (const square of document.querySelectorAll("#kv-fates .kv-cells i[data-message]")) square.classList.toggle("kv-marked", square.dataset.message === at);
  };
  for (const name of ["pointerover", "click"]) document.addEventListener(name, (event) => { pick(event); mark(event); });

  // The buttons under a reply: what they ask for, the page's own buttons do.
  const copied = (text, button) => {
    const say = () => { const words = button.textContent; button.textContent = "Copied"; setTimeout(() => { button.textContent = words; }, 1500); };
    if (navigator.clipboard) return navigator.clipboard.writeText(text).then(say, () => {});
    const area = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: text })); // a page that is not served safely
    area.select();
    document.execCommand("copy");
    area.remove();
    say();
  };
  const textAbove = (button, whose) => {
    const rows = [...document.querySelectorAll("#kv-chatbot .message-row")];
    const above = rows.slice(0, rows.indexOf(button.closest(".message-row"))).reverse();
    const row = above.find((each) => each.matches(whose === "message" ? ".user-row" : ".bot-row") && !isFigures(each));
    return (row?.querySelector(".kv-typed") ?? row?.querySelector(".message-content, .prose, .message"))?.innerText.trim() ?? "";
  };
  const press = (id) => document.querySelector(id)?.click();
  document.addEventListener("click", (event) => {
    const button = event.target.closest?.("#kv-chatbot button.kv-action");
    if (!button) return;
    if (button.name === "copy") return copied(textAbove(button, button.value), button);
    if (button.name === "more") return press("#kv-more");
    if (button.name === "version") return press(button.value === "1" ? "#kv-newer" : "#kv-older");
    const turn = document.querySelector("#kv-fork-turn :is(input, textarea)");
    if (button.name !== "retry" || !turn) return;
    turn.value = button.value;
    turn.dispatchEvent(new Event("input", { bubbles: true }));
    setTimeout(press, 50, "#kv-retry");
  });

  // The conversation: its end stays in view unless its reader has scrolled up, and its labels are words without tags.
  const watchChat = (chat) => {
    let follow = true, questions = 0, last = 0;
    const clean = (node) => {
      const label = node.getAttribute("aria-label");
      if (!/<(div|span|details)\b/.test(label)) return;
      const [who] = label.split(":");
      const inert = new DOMParser().parseFromString(label.slice(who.length + 1), "text/html");
      const words = `${who}: ${inert.body.textContent.trim()}`;
      if (words !== label) node.setAttribute("aria-label", words);
    };
    const settle = () => {
      chat.querySelectorAll("[data-testid][aria-label]").forEach(clean);
      const examples = chat.querySelector('.examples[role="list"]'); // of buttons, which no list may hold
      if (examples) { examples.setAttribute("role", "group"); examples.setAttribute("aria-label", "Examples"); }
      const box = chat.querySelector(".bubble-wrap");
      if (!box) return;
      if (!box.dataset.followed) {
        box.dataset.followed = "yes";
        box.addEventListener("scroll", () => { // what is written meanwhile moves the end away, and is no scrolling up
          if (box.scrollTop + box.clientHeight > box.scrollHeight - 40) follow = true;
          else if (box.scrollTop < last) follow = false;
          last = box.scrollTop;
        });
      }
      const asked = chat.querySelectorAll(".user-row").length;
      const before = questions;
      if (asked > questions) follow = true; // whoever sends wants to see the reply
      questions = asked;
      if (box.scrollTop < last && box.scrollTop + box.clientHeight < box.scrollHeight - 40 && box.scrollTop < last - 40) follow = asked > before; // scrolled up, and the event is still to come
      if (follow && asked) box.scrollTop = box.scrollHeight;
    };
    new MutationObserver(settle).observe(chat, { childList: true, subtree: true, characterData: true, attributes: true, attributeFilter: ["aria-label"] });
    settle();
  };

  // Tabs take arrow keys.
  document.addEventListener("keydown", (event) => {
    const tab = event.target.closest?.('#kv-tabs [role="tab"]');
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!tab || !(step || event.key === "Home" || event.key === "End")) return;
    const tabs = [...tab.parentElement.querySelectorAll('[role="tab"]')].filter((each) => each.offsetParent);
    const to = step ? (tabs.indexOf(tab) + step + tabs.length) % tabs.length : event.key === "Home" ? 0 : tabs.length - 1;
    event.preventDefault();
    tabs[to].focus();
    tabs[to].click();
  });

  const found = new MutationObserver(() => {
    const chat = document.querySelector("#kv-chatbot");
    if (chat && !chat.dataset.watched) { chat.dataset.watched = "yes"; watchChat(chat); }
  });
  found.observe(document.documentElement, { childList: true, subtree: true });

  // Esc stops whatever is being written, wherever the focus is.
  document.addEventListener("keydown", (event) => {
    const open = document.activeElement?.closest('[role="combobox"], [role="listbox"]')?.getAttribute("aria-expanded") === "true";
    if (event.key !== "Escape" || event.isComposing || open) return; // a menu closes, or letters are being composed
    for (const button of document.querySelectorAll(".kv-stop, .kv-message .stop-button"))
      if (button.offsetParent && !button.disabled) return button.click();
  }, true); // before the menu hears of it and closes
})();
