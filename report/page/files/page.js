"use strict";
// The page around the charts: colours, the table of arms, settings of two arms, commands, and reading itself again.
(function () {
  const root = document.documentElement;
  root.classList.add("js");
  const { data, element } = charts;
  const saved = remembered();

  // What the reader chose survives the page's reading itself again; where the browser keeps nothing, it does not.
  function remembered() {
    try {
      return JSON.parse(sessionStorage.getItem(location.pathname)) || {};
    } catch {
      return {};
    }
  }

  function remember(key, value) {
    saved[key] = value;
    try {
      sessionStorage.setItem(location.pathname, JSON.stringify(saved));
    } catch {
      return;
    }
  }

  const theme = document.getElementById("theme");
  function colour(name) {
    if (name) root.dataset.theme = name; else delete root.dataset.theme;
  }
  theme.value = saved.theme || "";
  colour(theme.value);
  theme.addEventListener("change", () => {
    remember("theme", theme.value);
    colour(theme.value);
    charts.recolour();
  });

  function key(row, column) {
    const raw = row.cells[column].dataset.key;
    const value = raw === undefined || raw === "" ? NaN : Number(raw);
    return raw === "nan" ? [2, 0] : Number.isNaN(value) ? [1, raw] : [0, value];
  }

  function sort(button, sign) {
    const head = button.closest("th");
    const body = head.closest("table").tBodies[0];
    const column = Number(button.dataset.sort);
    for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const order = (a, b) => {
      const [first, second] = [key(a, column), key(b, column)];
      if (first[0] !== second[0]) return first[0] - second[0]; // what is missing stays last
      return sign * (first[0] === 1 ? String(first[1]).localeCompare(second[1], undefined, { numeric: true }) : first[1] - second[1]);
    };
    body.append(...Array.from(body.rows).sort(order));
  }

  function arms(section) {
    const study = section.id;
    const mine = saved[study] || {};
    const off = new Set(mine.off || []);
    const rows = Array.from(section.querySelectorAll("table.arms tbody tr"), (row) => ({ row, arm: row.dataset.arm, text: row.textContent.toLowerCase() }));
    const buttons = Array.from(section.querySelectorAll(".switches button[data-arm]"));
    const filter = section.querySelector("[data-filter]");
    const count = section.querySelector("[data-count]");

    function apply() {
      const words = filter ? filter.value.toLowerCase().split(/\s+/).filter(Boolean) : [];
      const left = rows.filter((one) => words.every((word) => one.text.includes(word)) && !off.has(one.arm));
      const kept = new Set(left.map((one) => one.arm));
      for (const one of rows) one.row.hidden = !kept.has(one.arm);
      for (const button of buttons) button.setAttribute("aria-pressed", String(!off.has(button.dataset.arm)));
      if (count) count.textContent = `${left.length} of ${rows.length} arms`;
      charts.show(study, left.length === rows.length ? null : Array.from(kept));
      remember(study, Object.assign({}, saved[study], { off: Array.from(off), filter: filter ? filter.value : "" }));
    }

    for (const button of buttons) {
      button.addEventListener("click", () => {
        if (!off.delete(button.dataset.arm)) off.add(button.dataset.arm);
        apply();
      });
    }
    for (const button of section.querySelectorAll("button[data-all]")) {
      button.addEventListener("click", () => {
        off.clear();
        if (button.dataset.all === "off") for (const one of rows) off.add(one.arm);
        apply();
      });
    }
    for (const button of section.querySelectorAll("th button[data-sort]")) {
      button.addEventListener("click", () => {
        const sign = button.closest("th").getAttribute("aria-sort") === "ascending" ? -1 : 1;
        sort(button, sign);
        remember(study, Object.assign({}, saved[study], { sort: [button.dataset.sort, sign] }));
      });
    }
    if (filter) {
      filter.value = mine.filter || "";
      filter.addEventListener("input", apply);
    }
    if (mine.sort) {
      const button = section.querySelector(`th button[data-sort="${Number(mine.sort[0])}"]`);
      if (button) sort(button, mine.sort[1]);
    }
    if (rows.length) apply();
  }
  for (const section of document.querySelectorAll("section.study")) arms(section);

  function compare(place) {
    const { fields, values, shared } = data.studies[place.dataset.diff].settings;
    const [first, second] = [0, 1].map((index) => place.querySelector(`[data-arm-of="${index}"]`));
    const equal = place.querySelector("[data-equal]");
    const table = place.querySelector("table");
    if (second.value === first.value) second.selectedIndex = first.selectedIndex === 0 ? 1 : 0;

    function show() {
      const chosen = [first.value, second.value];
      const rows = fields.map((field, index) => [field, ...chosen.map((arm) => values[arm][index])]);
      const differing = rows.filter((row) => row[1] !== row[2]);
      const listed = equal.checked ? [...rows, ...Object.entries(shared).map(([field, value]) => [field, value, value])] : differing;
      const head = element("tr");
      for (const text of ["field", ...chosen]) head.append(element("th", text, { scope: "col" }));
      table.tHead.replaceChildren(head);
      table.tBodies[0].replaceChildren(...listed.map(([field, ...both]) => {
        const row = element("tr");
        const name = element("th", undefined, { scope: "row" });
        name.append(element("code", field));
        row.append(name, ...both.map((value) => element("td", value, { className: both[0] === both[1] ? "" : "changed" })));
        return row;
      }));
      const total = rows.length + Object.keys(shared).length;
      place.querySelector("[data-told]").textContent = `${differing.length} of ${total} settings differ`;
    }
    for (const one of [first, second, equal]) one.addEventListener("change", show);
    show();
  }
  for (const place of document.querySelectorAll("[data-diff]")) compare(place);

  for (const choice of document.querySelectorAll("[data-commands]")) {
    const lines = choice.closest("details").querySelector("[data-lines]");
    choice.addEventListener("change", () => {
      lines.textContent = data.studies[choice.dataset.commands].runs[Number(choice.value)].lines.join("\n");
    });
  }

  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = Array.from(document.querySelectorAll("details:not([open], .values, .runs)"));
    for (const one of opened) one.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const one of opened) one.open = false;
  });

  const pause = document.getElementById("pause");
  if (data.reload && pause) {
    const paused = () => pause.getAttribute("aria-pressed") === "true";
    pause.setAttribute("aria-pressed", String(Boolean(saved.paused)));
    pause.addEventListener("click", () => {
      pause.setAttribute("aria-pressed", String(!paused()));
      remember("paused", paused());
    });
    setInterval(() => { if (!paused()) location.reload(); }, 1000 * data.reload);
  }

  charts.start();
})();
