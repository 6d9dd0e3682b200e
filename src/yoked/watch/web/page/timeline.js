"use strict";
// The last steps of each rank, on one axis of time: a row for each rank, in it the parts of each step.
const timeline = (() => {
  const { h } = dom;
  const { isNumber, grouped, duration, plural } = units;
  const PARTS = [
    { name: "compute_s", ink: "compute", word: "computing" },
    { name: "comm_s", ink: "comm", word: "communication" },
    { name: "wait_s", ink: "wait", word: "waiting" },
  ];
  const ROW_PX = 30;
  const BAR_PX = 20;
  const AXIS_PX = 22;
  const LEAST_STEPS = 4;
  const TABLE_STEPS = 12;
  // A step is shown this wide at first, where so many are known.
  const STEP_PX = 34;

  let recent = null;
  let names = [];
  let wanted = null; // steps to show; null: as many as fit
  let chosen = null; // {step, rank} that is pointed at
  let drawn = null; // where what stands: {gutter, width, starts, ends, from}

  const node = () => document.getElementById("plot-recent");
  const ranks = () => recent.wait_s.length;

  /** The first place that is shown, of those of `recent`. */
  function firstShown() {
    const length = recent.step.length;
    const fits = Math.max(LEAST_STEPS, Math.floor((node()?.clientWidth || 800) / STEP_PX));
    return Math.max(0, length - Math.max(LEAST_STEPS, wanted ?? fits));
  }

  /** Show `factor` times as many steps. */
  function zoomBy(factor) {
    const shown = recent.step.length - firstShown();
    wanted = Math.min(recent.step.length, Math.max(LEAST_STEPS, Math.round(shown * factor)));
    draw();
  }

  // ---------------------------------------------------------------- what is pointed at

  function move(steps, rows) {
    const last = recent.step.length - 1;
    const place = chosen === null ? last : recent.step.indexOf(chosen.step);
    const rank = chosen === null ? 0 : chosen.rank;
    const isFirst = chosen === null;
    const to = Math.min(last, Math.max(firstShown(), place + (isFirst ? 0 : steps)));
    const row = Math.min(ranks() - 1, Math.max(0, rank + (isFirst ? 0 : rows)));
    choose({ step: recent.step[to], rank: row });
  }

  function choose(one) {
    if (one?.step === chosen?.step && one?.rank === chosen?.rank) return;
    chosen = one;
    draw();
  }

  const KEYS = new Map([
    ["ArrowLeft", () => move(-1, 0)], ["ArrowRight", () => move(1, 0)],
    ["ArrowUp", () => move(0, -1)], ["ArrowDown", () => move(0, 1)],
    ["+", () => zoomBy(0.5)], ["=", () => zoomBy(0.5)], ["-", () => zoomBy(2)],
    ["Escape", () => choose(null)],
  ]);

  function onKey(event) {
    const act = KEYS.get(event.key);
    if (act === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  function onPointer(event) {
    const box = node().getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const rank = Math.floor(y / ROW_PX);
    const at = drawn?.starts.findIndex((start, place) => x >= start && x <= drawn.ends[place]) ?? -1;
    choose(at < 0 || rank < 0 || rank >= ranks() ? null : { step: recent.step[drawn.from + at], rank });
  }

  /** The figures of a rank's step. */
  function partsOf(place, rank) {
    return PARTS.map(({ name, word }) => {
      const value = recent[name][rank]?.[place];
      return `${word} ${isNumber(value) ? duration(value) : "not known"}`;
    }).join(", ");
  }

  function reading() {
    const place = chosen === null ? -1 : recent.step.indexOf(chosen.step);
    if (place < 0) return "Point at a step, or take the arrow keys here.";
    return `step ${grouped(recent.step[place] + 1)}, ${names[chosen.rank] ?? `rank ${chosen.rank}`}: `
      + `${partsOf(place, chosen.rank)}, of ${duration(recent.dt_s[place])}`;
  }

  // ---------------------------------------------------------------- drawing

  /** Even ticks of an axis of so many seconds, four at the most. */
  function tickOf(span_s) {
    const raw = span_s / 4;
    const decade = 10 ** Math.floor(Math.log10(raw));
    return decade * [1, 2, 5, 10].find((each) => each * decade >= raw);
  }

  function gutterOf(ink, width) {
    const widest = Math.max(...names.map((name) => ink.measureText(name).width));
    return Math.min(widest + 12, width * 0.24);
  }

  /** A name, its end left out where it is too wide. */
  function fitted(ink, text, width) {
    if (ink.measureText(text).width <= width) return text;
    let short = text;
    while (short && ink.measureText(`${short}…`).width > width) short = short.slice(0, -1);
    return `${short}…`;
  }

  function draw() {
    const place = node();
    if (place === null || recent === null || place.clientWidth === 0) return;
    const said = document.getElementById("reading-recent");
    if (chosen !== null && !recent.step.slice(firstShown()).includes(chosen.step)) chosen = null;
    const text = reading();
    if (said.textContent !== text) said.textContent = text;
    let canvas = place.firstElementChild;
    if (canvas === null) {
      canvas = document.createElement("canvas");
      place.append(canvas);
      resizes.observe(place);
    }
    const ratio = window.devicePixelRatio || 1;
    const [width, height] = [place.clientWidth, ranks() * ROW_PX + AXIS_PX];
    place.style.setProperty("height", `${height}px`);
    canvas.style.setProperty("width", `${width}px`);
    canvas.style.setProperty("height", `${height}px`);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    const ink = canvas.getContext("2d");
    ink.scale(ratio, ratio);
    ink.font = "12px system-ui, sans-serif";
    ink.textBaseline = "middle";
    drawSteps(ink, width, height);
  }

  function drawSteps(ink, width, height) {
    const fills = charts.fills(ink);
    const from = firstShown();
    const times = recent.dt_s.slice(from);
    const whole_s = Math.max(1e-9, times.reduce((sum, each) => sum + each, 0));
    const gutter = gutterOf(ink, width);
    const scale = (width - gutter) / whole_s;
    drawn = { gutter, width, from, starts: [], ends: [] };
    let at = gutter;
    for (const time_s of times) {
      drawn.starts.push(at);
      at += time_s * scale;
      drawn.ends.push(at);
    }
    drawAxis(ink, fills, whole_s, scale, height);
    for (let rank = 0; rank < ranks(); rank += 1) {
      const top = rank * ROW_PX + (ROW_PX - BAR_PX) / 2;
      ink.fillStyle = fills.text;
      ink.textAlign = "left";
      ink.fillText(fitted(ink, names[rank] ?? String(rank), gutter - 8), 0, top + BAR_PX / 2);
      drawn.starts.forEach((start, place) => {
        let left = start;
        for (const { name, ink: part } of PARTS) {
          const long = (recent[name][rank]?.[from + place] ?? 0) * scale;
          ink.fillStyle = fills[part];
          // The last pixel is left free, which parts the steps.
          ink.fillRect(left, top, Math.max(0, Math.min(long, drawn.ends[place] - 1 - left)), BAR_PX);
          left += long;
        }
      });
    }
    if (chosen === null) return;
    const place = recent.step.indexOf(chosen.step) - from;
    ink.strokeStyle = fills.text;
    ink.lineWidth = 2;
    ink.strokeRect(drawn.starts[place], chosen.rank * ROW_PX + 2,
      Math.max(3, drawn.ends[place] - drawn.starts[place] - 1), ROW_PX - 4);
  }

  /** Seconds before the end of the newest step. */
  function drawAxis(ink, fills, whole_s, scale, height) {
    const right = drawn.width;
    const tick = tickOf(whole_s);
    ink.textAlign = "center";
    for (let back = 0; back * tick <= whole_s; back += 1) {
      const x = right - back * tick * scale;
      ink.fillStyle = fills.grid;
      ink.fillRect(Math.min(x, right - 1), 0, 1, height - AXIS_PX + 4);
      ink.fillStyle = fills.muted;
      const text = back === 0 ? "now" : `−${duration(back * tick)}`;
      const half = ink.measureText(text).width / 2;
      if (x - half < drawn.gutter - 4) continue;
      ink.fillText(text, Math.min(x, right - half), height - AXIS_PX / 2 + 2);
    }
  }

  const resizes = new ResizeObserver(() => draw());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => draw());
  for (const each of ["beforeprint", "afterprint"]) addEventListener(each, () => draw());

  // ---------------------------------------------------------------- its place

  /** Describe it; null: its steps do not say what ranks did. `draw` follows once it is there. */
  function figure(view) {
    recent = view.recent;
    names = view.ranks.map((each) => (each.host ? `${each.rank} ${each.host}` : `rank ${each.rank}`));
    if (!recent.step.length || !recent.wait_s.length) {
      recent = null;
      return null;
    }
    const button = (text, label, act) =>
      h("button", { type: "button", "aria-label": label, title: label, on: { click: act } }, text);
    return h("figure", { key: "recent", class: "chart recent" },
      h("figcaption", {}, h("h3", { id: "name-recent" }, "Step after step"),
        button("−", "show more of the last steps", () => zoomBy(2)),
        button("+", "show fewer of the last steps", () => zoomBy(0.5))),
      h("p", { class: "reading", id: "reading-recent", role: "status", opaque: true }),
      h("div", {
        class: "recent-plot", id: "plot-recent", opaque: true, tabindex: "0", role: "application",
        "aria-roledescription": "timeline", "aria-labelledby": "name-recent",
        "aria-keyshortcuts": "ArrowLeft ArrowRight ArrowUp ArrowDown + - Escape",
        on: { keydown: onKey, pointermove: onPointer, pointerdown: onPointer,
          pointerleave: () => choose(null) },
      }),
      table());
  }

  function table() {
    const places = recent.step.map((_, place) => place).slice(-TABLE_STEPS).reverse();
    return h("details", { class: "points" },
      h("summary", {}, `The last ${plural(places.length, "step")} as a table`),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "The last steps, table" },
        h("table", {},
          h("thead", {}, h("tr", {}, ["step", "takes", "rank", ...PARTS.map((each) => each.word)].map(
            (head) => h("th", { scope: "col" }, head)))),
          h("tbody", {}, places.flatMap((place) => recent.wait_s.map((_, rank) => h("tr", {},
            h("th", { scope: "row" }, grouped(recent.step[place] + 1)),
            h("td", {}, duration(recent.dt_s[place])), h("td", {}, names[rank] ?? String(rank)),
            PARTS.map(({ name }) => {
              const value = recent[name][rank]?.[place];
              return h("td", {}, isNumber(value) ? duration(value) : "not known");
            }))))))));
  }

  return { figure, draw, zoomBy };
})();
