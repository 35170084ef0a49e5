"use strict";
// Draws the charts in the page's colours; switches arms on and off; sorts tables.
(function () {
  document.documentElement.classList.add("js");
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const charts = Array.from(document.querySelectorAll("[data-chart]"), (box) => ({
    box, study: box.closest("section").id, item: data.specs[box.dataset.chart], view: null, width: 0, begun: false,
  }));
  const hidden = {}; // study -> the arms that are switched off

  function shown(study) {
    const off = hidden[study];
    if (!off || off.size === 0) return [];
    const all = Array.from(document.querySelectorAll(`#${CSS.escape(study)} .switches button`), (one) => one.dataset.arm);
    const left = all.filter((arm) => !off.has(arm));
    return left.length ? left : [""]; // an empty list would mean all
  }

  function withoutLegend(layer) {
    const encoding = Object.assign({}, layer.encoding);
    for (const channel of ["color", "shape", "strokeDash"]) {
      if (encoding[channel]) encoding[channel] = Object.assign({}, encoding[channel], { legend: null });
    }
    return Object.assign({}, layer, { encoding });
  }

  function prepared(chart) {
    const spec = Object.assign({}, chart.item.spec);
    const config = structuredClone(dark.matches ? data.dark : data.light);
    const width = chart.box.clientWidth;
    config.background = "transparent";
    config.legend.columns = Math.max(1, Math.floor(width / 130));
    if (chart.item.panelWidth) {
      const room = Math.max(1, Math.floor(width / (chart.item.panelWidth + 20)));
      spec.columns = Math.ceil(chart.item.panels / Math.ceil(chart.item.panels / room)); // rows about equally full
    } else {
      spec.width = "container";
      spec.autosize = { type: "fit-x", contains: "padding" };
    }
    if (chart.item.armsLegend) {
      spec.layer = spec.layer.map(withoutLegend); // the arm switches are the legend
    }
    spec.params = spec.params.map((one) => (one.name === "shown" ? { name: "shown", value: shown(chart.study) } : one));
    return [spec, config];
  }

  async function draw(chart) {
    const [spec, config] = prepared(chart);
    chart.begun = true;
    chart.width = chart.box.clientWidth;
    const points = Object.values(spec.datasets).reduce((sum, rows) => sum + rows.length, 0);
    const renderer = points > 4000 ? "canvas" : "svg";
    if (chart.view) chart.view.finalize();
    try {
      const result = await window.vegaEmbed(chart.box, spec, { actions: false, ast: true, renderer, config, mode: "vega-lite" });
      chart.view = result.view;
      chart.box.dataset.drawn = "yes";
    } catch (error) {
      chart.box.textContent = `This chart could not be drawn: ${error.message}`;
      console.error(error);
    }
  }

  // One chart after the other from the top, with a breath between, so that the page answers from the start.
  async function drawAll() {
    for (const chart of charts) {
      await draw(chart);
      await new Promise((next) => setTimeout(next, 0));
    }
  }

  const redraw = (which) => charts.filter((one) => one.begun && which(one)).forEach(draw);
  dark.addEventListener("change", () => redraw(() => true));
  let waiting = 0;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => redraw((one) => one.box.clientWidth > 0 && one.width !== one.box.clientWidth), 200);
  });

  for (const button of document.querySelectorAll(".switches button")) {
    button.addEventListener("click", () => {
      const study = button.closest(".switches").dataset.study;
      const off = (hidden[study] = hidden[study] || new Set());
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      if (on) off.delete(button.dataset.arm); else off.add(button.dataset.arm);
      for (const row of document.querySelectorAll(`#${CSS.escape(study)} table.arms tbody tr`)) {
        row.hidden = off.has(row.dataset.arm);
      }
      for (const chart of charts) {
        if (chart.study === study && chart.view) chart.view.signal("shown", shown(study)).runAsync();
      }
    });
  }

  function key(row, column) {
    const raw = row.cells[column].dataset.key;
    const value = raw === undefined || raw === "" ? NaN : Number(raw);
    return raw === "nan" ? [2, 0] : Number.isNaN(value) ? [1, raw] : [0, value];
  }

  for (const button of document.querySelectorAll("th button[data-sort]")) {
    button.addEventListener("click", () => {
      const head = button.closest("th");
      const body = head.closest("table").tBodies[0];
      const column = Number(button.dataset.sort);
      const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
      for (const other of head.parentElement.cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
      const order = (a, b) => {
        const [first, second] = [key(a, column), key(b, column)];
        if (first[0] !== second[0]) return first[0] - second[0]; // what is missing stays last
        return sign * (first[0] === 1 ? String(first[1]).localeCompare(second[1], undefined, { numeric: true }) : first[1] - second[1]);
      };
      body.append(...Array.from(body.rows).sort(order));
    });
  }

  window.addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details")) one.open = true;
  });

  drawAll();
})();
