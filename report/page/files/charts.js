"use strict";
// Draws the charts in the page's colours: which arms they show, logarithmic axes, smoothing, and their values as a table.
const charts = (function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const MOST = 500; // rows of a table of values
  const all = Array.from(document.querySelectorAll("[data-chart]"), (box) => ({
    box, study: box.closest("section").id, item: data.specs[box.dataset.chart], view: null, width: 0, begun: false,
    log: new Set(), smooth: "", drawing: Promise.resolve(),
  }));
  const shown = {}; // study -> the arms that are shown; absent: all

  const isDark = () => {
    const chosen = document.documentElement.dataset.theme;
    return chosen ? chosen === "dark" : system.matches;
  };
  const visible = (study) => (shown[study] ? (shown[study].length ? shown[study] : [""]) : []); // [] would mean all

  function withoutLegend(layer) {
    const encoding = Object.assign({}, layer.encoding);
    for (const channel of ["color", "shape", "strokeDash"]) {
      const one = encoding[channel];
      if (one && one.condition) encoding[channel] = { ...one, condition: { ...one.condition, legend: null } };
      else if (one) encoding[channel] = Object.assign({}, one, { legend: null });
    }
    return Object.assign({}, layer, { encoding });
  }

  function overLayers(spec, change) {
    if (spec.layer) return Object.assign({}, spec, { layer: spec.layer.map(change) });
    if (spec.facet) return Object.assign({}, spec, { spec: overLayers(spec.spec, change) });
    return change(spec);
  }

  function least(spec, channel) {
    const fields = new Set();
    overLayers(spec, (layer) => {
      if (layer.encoding[channel] && layer.encoding[channel].field) fields.add(layer.encoding[channel].field);
      return layer;
    });
    let found = Infinity;
    for (const rows of Object.values(spec.datasets)) {
      for (const row of rows) for (const field of fields) if (row[field] > 0 && row[field] < found) found = row[field];
    }
    return found;
  }

  function logarithmic(spec, channel) {
    const bottom = least(spec, channel);
    return overLayers(spec, (layer) => {
      const one = layer.encoding[channel];
      if (!one || !one.scale) return layer;
      const [low, high] = one.scale.domain || [bottom, bottom * 10];
      const scale = { type: "log", nice: false, domain: [low > 0 ? low : bottom, high] };
      return Object.assign({}, layer, { encoding: Object.assign({}, layer.encoding, { [channel]: Object.assign({}, one, { scale }) }) });
    });
  }

  // An exponential mean over `share` of the line, weighted as pandas' ewm: the start counts fully.
  function smoothed(values, share) {
    const span = Math.max(1, values.length * share);
    const keep = 1 - 2 / (span + 1);
    let sum = 0;
    let weight = 0;
    return values.map((value) => {
      sum = sum * keep + value;
      weight = weight * keep + 1;
      return sum / weight;
    });
  }

  // Lines and means come as arrays; `share` smooths what was logged, "" takes what the picture shows.
  function filled(spec, lines, share) {
    const seeds = [];
    const sums = {};
    const done = {};
    for (const line of lines.runs) {
      const values = share === "" ? line.drawn : smoothed(line.logged || line.drawn, Number(share));
      if (line.done) done[line.arm] = (done[line.arm] || 0) + 1;
      lines.tokens[line.at].forEach((tokens, index) => {
        if (lines.thin) seeds.push({ arm: line.arm, line: `${line.arm}/${line.seed}`, tokens, loss: values[index] });
        if (!line.done) return;
        const mine = (sums[line.arm] = sums[line.arm] || new Map());
        const before = mine.get(tokens) || [0, 0];
        mine.set(tokens, [before[0] + values[index], before[1] + 1]);
      });
    }
    const means = [];
    for (const arm of Object.keys(sums)) {
      for (const [tokens, [sum, count]] of sums[arm]) {
        if (count === done[arm]) means.push({ arm, tokens, loss: Number((sum / count).toPrecision(6)), seeds: count });
      }
    }
    const clipped = overLayers(spec, (layer) => Object.assign({}, layer, { mark: Object.assign({}, layer.mark, { clip: true }) }));
    return Object.assign(clipped, { datasets: Object.assign({}, spec.datasets, { seeds, means }) });
  }

  const whole = (chart) => (chart.item.lines ? filled(chart.item.spec, chart.item.lines, chart.smooth) : chart.item.spec);

  function prepared(chart) {
    let spec = Object.assign({}, whole(chart));
    for (const channel of chart.log) spec = logarithmic(spec, channel);
    const config = structuredClone(isDark() ? data.dark : data.light);
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
    if (chart.item.armsLegend) spec = overLayers(spec, withoutLegend); // the arm switches are the legend
    spec.params = spec.params.map((one) => (one.name === "shown" ? { name: "shown", value: visible(chart.study) } : one));
    return [spec, config];
  }

  async function drawNow(chart) {
    const [spec, config] = prepared(chart);
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

  function draw(chart) {
    chart.begun = true;
    chart.drawing = chart.drawing.then(() => drawNow(chart)); // one after the other, the last choice last
    return chart.drawing;
  }

  // A chart is drawn when it comes near the window; where the page is idle the others too, one after the other.
  async function drawAll() {
    for (const chart of all) {
      if (!chart.begun) await draw(chart);
      await new Promise((next) => (window.requestIdleCallback ? requestIdleCallback(next, { timeout: 500 }) : setTimeout(next, 20)));
    }
  }
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = all.find((one) => one.box === entry.target);
      if (entry.isIntersecting && !chart.begun) draw(chart);
    }
  }, { rootMargin: "300px" });
  for (const chart of all) near.observe(chart.box);

  const redraw = (which) => all.filter((one) => one.begun && which(one)).forEach(draw);
  system.addEventListener("change", () => redraw(() => true));
  let waiting = 0;
  window.addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => redraw((one) => one.box.clientWidth > 0 && one.width !== one.box.clientWidth), 200);
  });

  for (const chart of all) {
    const figure = chart.box.closest("figure");
    for (const box of figure.querySelectorAll("[data-log]")) {
      box.addEventListener("change", () => {
        if (box.checked) chart.log.add(box.dataset.log); else chart.log.delete(box.dataset.log);
        draw(chart);
      });
    }
    const choice = figure.querySelector("[data-smooth]");
    if (choice) choice.addEventListener("change", () => { chart.smooth = choice.value; draw(chart); });
    const values = figure.querySelector("[data-values]");
    values.addEventListener("toggle", () => { if (values.open && !values.querySelector("table")) tabulate(chart, values); });
  }

  function element(name, text, attributes) {
    const made = Object.assign(document.createElement(name), attributes || {});
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // What hovering shows, as a table for those who do not hover.
  function tabulate(chart, place) {
    const spec = whole(chart);
    let told = null;
    overLayers(spec, (layer) => {
      if (layer.encoding.tooltip && !told) {
        const source = layer.data || spec.data || (spec.spec && spec.spec.data);
        told = { columns: layer.encoding.tooltip, rows: spec.datasets[source.name] };
      }
      return layer;
    });
    const rows = told.rows.filter((row) => told.columns.every((one) => row[one.field] !== undefined));
    const box = element("div", undefined, { className: "scroll", tabIndex: 0 });
    const table = box.appendChild(element("table"));
    table.appendChild(element("caption", "What the chart shows", { className: "hidden" }));
    const head = table.createTHead().insertRow();
    for (const one of told.columns) head.appendChild(element("th", one.title, { scope: "col" }));
    const body = table.createTBody();
    for (const row of rows.slice(0, MOST)) {
      const line = body.insertRow();
      for (const one of told.columns) line.insertCell().textContent = row[one.field] === null ? "" : String(row[one.field]);
    }
    place.append(box);
    if (rows.length > MOST) place.append(element("p", `The first ${MOST} of ${rows.length} rows; metrics.csv and results.csv have all.`, { className: "note" }));
  }

  function show(study, arms) {
    shown[study] = arms;
    for (const chart of all) {
      if (chart.study === study && chart.view) chart.view.signal("shown", visible(study)).runAsync();
    }
  }

  return { data, element, show, recolour: () => redraw(() => true), start: () => setTimeout(drawAll, 200) };
})();
