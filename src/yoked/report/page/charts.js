"use strict";
// The charts, all over the steps of the run: they show the same steps and move together.
const charts = (() => {
  const { h } = dom;
  const MOST_ROWS = 20;
  const DOT_PX = 5;
  // Half of the last label, which may be 1,000,000.
  const RIGHT_PX = 32;
  // A stack's scale is cut where its highest point, often the first step, is so much above the rest.
  const OUTLIER = 2;
  const KEYS = new Map([
    ["+", () => zoomBy(0.5)], ["=", () => zoomBy(0.5)], ["-", () => zoomBy(2)],
    ["ArrowLeft", () => pan(-0.25)], ["ArrowRight", () => pan(0.25)], ["0", () => show(null)],
  ]);

  const plots = new Map(); // a chart's key: {chart, look, plot, node}
  let whole = { min: 0, max: 1 };
  let view = null; // {min, max} in steps; null: all of them
  let narrowest = 2;
  let pointed = null; // a step
  const onView = []; // who is told which steps are shown
  let top = null; // see stackTop; null: to be found anew
  let inks = null;

  /** The figures of the page's colours, as CSS has them now. */
  function readInks() {
    const style = getComputedStyle(document.documentElement);
    const names = ["text", "muted", "grid", "page", "compute", "comm", "wait", "line", "best"];
    return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  /** A fill that is known without its colour: computing is plain, communication has dots, waiting
   * has strokes. */
  function pattern(context, name) {
    if (name === "compute") return inks.compute;
    const ratio = window.devicePixelRatio || 1;
    const tile = document.createElement("canvas");
    const size = Math.round(6 * ratio);
    tile.width = tile.height = size;
    const ink = tile.getContext("2d");
    ink.fillStyle = inks[name];
    ink.fillRect(0, 0, size, size);
    ink.fillStyle = ink.strokeStyle = inks.page;
    ink.lineWidth = 1.2 * ratio;
    ink.beginPath();
    if (name === "comm") {
      ink.arc(size / 2, size / 2, size / 6, 0, 2 * Math.PI);
      ink.fill();
    } else {
      for (const shift of [-size, 0, size]) {
        ink.moveTo(shift, size);
        ink.lineTo(shift + size, 0);
      }
      ink.stroke();
    }
    return context.createPattern(tile, "repeat");
  }

  /** The colours of the page, and what the parts of a time are filled with, for another canvas. */
  function fills(context) {
    inks = readInks();
    const parts = ["compute", "comm", "wait"].map((name) => [name, pattern(context, name)]);
    return { ...inks, ...Object.fromEntries(parts) };
  }

  // ---------------------------------------------------------------- what is shown of the steps

  const shown = () => view ?? whole;

  /** Show these steps in all charts; null: the whole run. */
  function show(wanted) {
    view = wanted && clamped(wanted);
    top = null;
    for (const { plot } of plots.values()) plot.setScale("x", shown());
    for (const tell of onView) tell(shown(), view !== null);
  }

  function clamped({ min, max }) {
    const span = Math.min(Math.max(max - min, narrowest), whole.max - whole.min);
    const from = Math.min(Math.max((min + max - span) / 2, whole.min), whole.max - span);
    return span >= whole.max - whole.min ? null : { min: from, max: from + span };
  }

  /** Show `factor` times as many steps, around the one that is pointed at. */
  function zoomBy(factor) {
    const { min, max } = shown();
    const isSeen = pointed !== null && pointed >= min && pointed <= max;
    const middle = isSeen ? pointed : (min + max) / 2;
    show({ min: middle - (middle - min) * factor, max: middle + (max - middle) * factor });
  }

  /** Move by a part of what is shown. */
  function pan(part) {
    const { min, max } = shown();
    const by = Math.min(Math.max((max - min) * part, whole.min - min), whole.max - max);
    show({ min: min + by, max: max + by });
  }

  function onKey(event) {
    const act = KEYS.get(event.key);
    if (act === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  // ---------------------------------------------------------------- scales

  /** The top of all stacks of times: one for all ranks, by the steps that are shown. */
  function stackTop() {
    top ??= findTop(shown());
    return top;
  }

  function findTop({ min, max }) {
    const tops = [];
    for (const { chart } of plots.values()) {
      if (chart.kind !== "stack") continue;
      chart.xs.forEach((x, place) => {
        const sum = chart.columns[0].values[place];
        if (x >= min && x <= max && units.isNumber(sum)) tops.push(sum);
      });
    }
    if (!tops.length) return { value: 1, isCut: false };
    tops.sort((one, other) => one - other);
    const usual = tops[Math.floor((tops.length - 1) * 0.98)];
    const isCut = usual > 0 && tops[tops.length - 1] > OUTLIER * usual;
    return { value: (isCut ? usual * 1.25 : tops[tops.length - 1] * 1.05) || 1, isCut };
  }

  function scaleOf(chart) {
    if (chart.kind === "stack") return { range: () => [0, stackTop().value] };
    if (chart.isLog) {
      return { distr: 3, range: (_, low, high) => (low > 0 ? [low * 0.98, high * 1.02] : [1, 10]) };
    }
    return {
      range: (_, low, high) => {
        if (!units.isNumber(low)) return [0, 1];
        const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
        return [chart.isFromZero ? 0 : Math.max(0, low - room), high + room];
      },
    };
  }

  /** Ticks of a log axis: 1, 2, 5 of each decade, or even ones where there is less than a decade. */
  function logTicks(_, __, low, high) {
    if (high / low >= 10) {
      const ticks = [];
      for (let decade = 10 ** Math.floor(Math.log10(low)); decade <= high; decade *= 10) {
        ticks.push(...[1, 2, 5].map((each) => each * decade));
      }
      return ticks.filter((each) => each >= low && each <= high);
    }
    const raw = (high - low) / 5;
    const decade = 10 ** Math.floor(Math.log10(raw));
    const step = decade * [1, 2, 5, 10].find((each) => each * decade >= raw);
    const first = Math.ceil(low / step);
    const ticks = [];
    for (let place = first; place * step <= high; place += 1) ticks.push(place * step);
    return ticks;
  }

  // ---------------------------------------------------------------- drawing

  function seriesOf(chart, context) {
    return chart.columns.map(({ ink, isEdge, hasPoints }) => ({
      stroke: isEdge ? undefined : inks[ink],
      width: isEdge ? 0 : chart.kind === "stack" ? 0 : 1.6,
      fill: chart.kind === "stack" ? pattern(context, ink) : undefined,
      fillTo: chart.kind === "stack" ? () => 0 : undefined,
      points: { show: hasPoints || undefined, size: 7, stroke: inks[ink], fill: inks.page, width: 2 },
      spanGaps: Boolean(hasPoints),
    }));
  }

  function axes(chart) {
    const font = "12px system-ui, sans-serif";
    const common = {
      stroke: inks.muted, font, grid: { stroke: inks.grid, width: 1 },
      ticks: { stroke: inks.grid, width: 1, size: 4 },
    };
    const logAxis = chart.isLog ? { splits: logTicks, filter: (_, ticks) => ticks } : {};
    return [
      { ...common, space: 60, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500].concat(
        [1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6]),
        values: (_, ticks) => ticks.map((tick) => (chart.unitOfX ?? units.grouped)(tick)), size: 28 },
      { ...common, ...logAxis, space: chart.kind === "stack" ? 28 : 36, size: 64,
        values: (_, ticks) => ticks.map((tick) => chart.unit(tick)) },
    ];
  }

  /** Draw steps at which a later attempt went on, the best evaluation, and what lies above a cut
   * scale. */
  function drawMarks(plot, chart) {
    const { ctx, bbox } = plot;
    const ratio = window.devicePixelRatio || 1;
    const { min, max } = shown();
    const isSeen = (step) => step >= min && step <= max;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.lineWidth = 1.5 * ratio;
    ctx.strokeStyle = ctx.fillStyle = inks.text;
    for (const step of chart.marks.filter(isSeen)) {
      const at = plot.valToPos(step, "x", true);
      ctx.setLineDash([5 * ratio, 3 * ratio]);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.setLineDash([]);
    if (chart.kind === "stack" && stackTop().isCut) drawCut(plot, chart, isSeen, ratio);
    ctx.restore();
    ctx.save();
    // Outside of the clipped part: names of the marks stand above it, a ring may reach over its edge.
    drawNames(plot, chart.marks.filter(isSeen), ratio);
    if (chart.best && isSeen(chart.best.step)) {
      const [x, y] = [plot.valToPos(chart.best.step, "x", true), plot.valToPos(chart.best.value, "y", true)];
      ctx.strokeStyle = inks.best;
      ctx.lineWidth = 1.5 * ratio;
      ctx.beginPath();
      ctx.arc(x, y, 8 * ratio, 0, 2 * Math.PI);
      ctx.stroke();
    }
    ctx.restore();
  }

  function drawNames(plot, marks, ratio) {
    const { ctx, bbox } = plot;
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "center";
    ctx.textBaseline = "bottom";
    ctx.fillStyle = inks.text;
    let free = -Infinity;
    for (const step of marks) {
      const text = `went on at ${units.grouped(step)}`;
      const half = ctx.measureText(text).width / 2;
      const wanted = plot.valToPos(step, "x", true);
      const at = Math.min(Math.max(wanted, half), bbox.left + bbox.width + 20 * ratio - half);
      // One that would stand on another stays a line alone; the table of what was told has its step.
      if (at - half < free) continue;
      ctx.fillText(text, at, bbox.top - 3 * ratio);
      free = at + half + 8 * ratio;
    }
  }

  function drawCut(plot, chart, isSeen, ratio) {
    const { ctx, bbox } = plot;
    const highest = stackTop().value;
    chart.xs.forEach((step, place) => {
      if (!isSeen(step) || !(chart.columns[0].values[place] > highest)) return;
      const at = plot.valToPos(step, "x", true);
      const size = DOT_PX * ratio;
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at - size, bbox.top + 1.6 * size);
      ctx.lineTo(at + size, bbox.top + 1.6 * size);
      ctx.fill();
      ctx.strokeStyle = inks.page;
      ctx.lineWidth = ratio;
      ctx.stroke();
    });
  }

  function options(node, chart) {
    const context = document.createElement("canvas").getContext("2d");
    const low = chart.columns.findIndex((each) => each.edge === "low");
    const high = chart.columns.findIndex((each) => each.edge === "high");
    return {
      width: node.clientWidth, height: node.clientHeight, padding: [chart.marks.length ? 22 : 10, RIGHT_PX, 0, 0],
      legend: { show: false },
      scales: { x: { time: false, range: (_, min, max) => [min, max] }, y: scaleOf(chart) },
      axes: axes(chart),
      series: [{}, ...seriesOf(chart, context)],
      bands: low < 0 ? [] : [{ series: [high + 1, low + 1], fill: `${inks.line}38` }],
      cursor: {
        y: false,
        points: { show: chart.kind !== "stack" },
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => { show(null); return null; } },
        sync: { key: "steps", setSeries: false, filters: { pub: (type) => type !== "mousedown"
          && type !== "mouseup" && type !== "dblclick" } },
      },
      hooks: {
        setCursor: [(plot) => onCursor(plot, chart.key)],
        setSelect: [onSelect],
        draw: [(plot) => drawMarks(plot, plots.get(chart.key)?.chart ?? chart)],
      },
    };
  }

  function onSelect(plot) {
    const { left, width } = plot.select;
    if (width <= 0) return;
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    show({ min: plot.posToVal(left, "x"), max: plot.posToVal(left + width, "x") });
  }

  function onCursor(plot, key) {
    const entry = plots.get(key);
    if (entry === undefined) return;
    const place = plot.cursor.idx;
    const isOn = plot.cursor.left >= 0 && units.isNumber(place);
    // The cursors of all charts move: this is of the one below the pointer.
    if (!isOn) pointed = null;
    else if (plot.over.matches(":hover")) pointed = plot.posToVal(plot.cursor.left, "x");
    say(key, isOn ? entry.chart.read(place) : entry.chart.rest);
  }

  function say(key, text) {
    const node = document.getElementById(`reading-${key}`);
    if (node.textContent !== text) node.textContent = text;
  }

  const dataOf = (chart) => [chart.xs, ...chart.columns.map((each) => each.values)];

  /** Whatever makes a chart another one, so that newer points alone do not draw it anew. */
  const lookOf = (chart) => JSON.stringify([
    chart.kind, Boolean(chart.isLog), chart.marks.length > 0, inks, window.devicePixelRatio,
    chart.columns.map(({ ink, edge, hasPoints }) => [ink, edge, hasPoints]),
  ]);

  function drawOne(chart) {
    const node = document.getElementById(`plot-${chart.key}`);
    const old = plots.get(chart.key);
    const look = lookOf(chart);
    const isSame = old !== undefined && old.look === look && old.node === node;
    const entry = isSame ? old : { node, look };
    entry.chart = chart;
    plots.set(chart.key, entry);
    if (isSame) {
      // Its scale of steps is set by `show`, in the same turn.
      old.plot.setData(dataOf(chart));
    } else {
      old?.plot.destroy();
      node.replaceChildren();
      entry.plot = new uPlot(options(node, chart), dataOf(chart), node);
      resizes.observe(node);
    }
    if (pointed === null || !isSame) say(chart.key, chart.rest);
  }

  /** Draw these charts into the places that `figure` made, or bring them up to date. */
  function draw(wanted, steps_each) {
    const keys = new Set(wanted.map((chart) => chart.key));
    for (const [key, { plot, node }] of [...plots]) {
      if (keys.has(key)) continue;
      resizes.unobserve(node);
      plot.destroy();
      plots.delete(key);
    }
    inks = readInks();
    const last = Math.max(1, ...wanted.map((chart) => chart.xs[chart.xs.length - 1] ?? 1));
    whole = { min: 0, max: last };
    narrowest = Math.min(2 * steps_each, last);
    wanted.forEach(drawOne);
    // The scale of the stacks is known now that all of them are.
    show(view);
  }

  const resizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const entry = [...plots.values()].find(({ node }) => node === target);
      const [width, height] = [target.clientWidth, target.clientHeight];
      if (entry && width > 0 && (entry.plot.width !== width || entry.plot.height !== height)) {
        entry.plot.setSize({ width, height });
      }
    }
  });

  /** Draw all anew, as colours have changed or paper is another width. */
  function redraw() {
    inks = readInks();
    for (const { chart } of [...plots.values()]) drawOne(chart);
    show(view);
  }

  // ---------------------------------------------------------------- the places of charts

  /**
   * Describe the place of a chart, with its title, the line of what is pointed at, a summary and a
   * table. chart: {key, title, kind: "stack" | "line", xs, columns: [{values, ink, edge, isEdge,
   * hasPoints}], unit, unitOfX, read(place), rest, marks, best, isLog, isFromZero, summary, table: {heads,
   * row(place)}}.
   */
  function figure(chart, ...more) {
    const name = `name-${chart.key}`;
    const summary = `summary-${chart.key}`;
    return h("figure", { key: chart.key, class: `chart ${chart.kind}` },
      h("figcaption", {}, h("h3", { id: name }, chart.title), ...more),
      h("p", { class: "reading", id: `reading-${chart.key}`, "aria-hidden": "true", opaque: true }),
      h("div", {
        class: "plot", id: `plot-${chart.key}`, opaque: true, tabindex: "0", role: "application",
        "aria-roledescription": "chart", "aria-labelledby": name, "aria-describedby": summary,
        "aria-keyshortcuts": "+ - ArrowLeft ArrowRight 0", on: { keydown: onKey },
      }),
      h("p", { class: "summary", id: summary }, chart.summary),
      table(chart));
  }

  function table(chart) {
    const { heads, row } = chart.table;
    const length = chart.xs.length;
    const rows = Math.min(MOST_ROWS, length);
    const places = Array.from({ length: rows }, (_, each) =>
      rows === 1 ? 0 : Math.round((each * (length - 1)) / (rows - 1)));
    const note = rows < length ? `${rows} of ${units.grouped(length)} points` : "all points";
    return h("details", { class: "points" }, h("summary", {}, `${chart.title} as a table, ${note}`),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${chart.title}, table` },
        h("table", {},
          h("thead", {}, h("tr", {}, heads.map((each) => h("th", { scope: "col" }, each)))),
          h("tbody", {}, places.map((place) => h("tr", {}, row(place).map((cell, column) =>
            column ? h("td", {}, cell) : h("th", { scope: "row" }, cell))))))));
  }

  return {
    figure, draw, redraw, show, zoomBy, pan,
    stackTop, shown, fills, whenViewed: (listener) => { onView.push(listener); },
  };
})();
