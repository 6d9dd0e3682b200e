"use strict";
// The page of a run: render(figures) brings what is there to these figures. It may be called again
// with newer ones; what a reader zoomed, opened, focused or scrolled stays.
const page = (() => {
  const { h } = dom;
  const { isNumber, grouped, duration, plural } = units;
  let figures = null;
  // What a page of a run that goes on has around them: {title, header, first, after, last}.
  let around = null;
  let isLog = false;

  // ---------------------------------------------------------------- the charts' figures

  const column = (value) => (Array.isArray(value) ? value : []);
  // One point is no line, and no area.
  const isCurve = (values) => values.filter(isNumber).length > 1;
  const at = (place, curve) => {
    const before = place > 0 ? curve.step[place - 1] : 0;
    const step = curve.step[place];
    return step - before > 1 ? `steps ${grouped(before + 1)} to ${grouped(step)}`
      : `step ${grouped(step)}`;
  };
  const shown = (value, unit) => (isNumber(value) ? unit(value) : "not known");

  function stacks(curve, marks, steps_each) {
    const isMean = steps_each > 1;
    return column(curve.ranks).flatMap((times, rank) => {
      const [compute, comm, wait] = ["compute_s", "comm_s", "wait_s"].map((name) => column(times[name]));
      const sums = (...parts) => curve.step.map((_, place) =>
        (parts.every((part) => isNumber(part[place]))
          ? parts.reduce((sum, part) => sum + part[place], 0) : null));
      const columns = [
        { ink: "wait", values: sums(compute, comm, wait) },
        { ink: "comm", values: sums(compute, comm) },
        { ink: "compute", values: sums(compute) },
      ];
      if (!isCurve(columns[0].values)) return [];
      const name = sections.nameOf(figures, rank);
      const cells = (place) => [compute, comm, wait].map((part) => shown(part[place], duration));
      const top = columns[0].values.filter(isNumber);
      const highest = Math.max(...top);
      const sorted = [...top].sort((one, other) => one - other);
      const median = sorted[Math.floor(sorted.length / 2)];
      const where = at(columns[0].values.indexOf(highest), curve);
      return [{
        key: `rank-${rank}`, kind: "stack", title: name, xs: curve.step, columns, marks,
        unit: duration,
        rest: isMean ? `Mean seconds of ${plural(steps_each, "step")}.` : "Seconds of a step.",
        read: (place) => {
          const [computing, communicating, waiting] = cells(place);
          return `${at(place, curve)}: computing ${computing}, communication ${communicating}, `
            + `waiting ${waiting}`;
        },
        summary: `The median ${isMean ? "point" : "step"} takes ${duration(median)}, the longest `
          + `${duration(highest)} (${where}).`,
        table: {
          heads: ["step", "computing", "communication", "waiting"],
          row: (place) => [grouped(curve.step[place]), ...cells(place)],
        },
      }];
    });
  }

  /** Of a program that tells of no steps, by the seconds of the run. */
  function shareStacks(shares) {
    const seconds = column(shares?.time_s);
    return column(shares?.ranks).flatMap((told) => {
      const [computes, core, waits] = ["computes", "waits_for_core", "waits"].map(
        (name) => column(told[name]));
      const sums = (...parts) => seconds.map((_, place) =>
        (parts.every((part) => isNumber(part[place]))
          ? parts.reduce((sum, part) => sum + part[place], 0) : null));
      const columns = [
        { ink: "wait", values: sums(computes, core, waits) },
        { ink: "comm", values: sums(computes, core) },
        { ink: "compute", values: sums(computes) },
      ];
      if (!isCurve(columns[0].values)) return [];
      const cells = (place) => [computes, core, waits].map(
        (part) => shown(part[place], units.percent));
      const mean = units.percent(computes.filter(isNumber).reduce((sum, each) => sum + each, 0)
        / computes.filter(isNumber).length);
      return [{
        key: `rank-${told.rank}`, kind: "stack", title: sections.nameOf(figures, told.rank), columns,
        xs: seconds, marks: [], unit: units.percent, unitOfX: duration,
        rest: "Parts of the 20 s before each point.",
        read: (place) => {
          const [computing, waitingForCore, waiting] = cells(place);
          return `after ${duration(seconds[place])}: computing ${computing}, waiting for a core `
            + `${waitingForCore}, waiting ${waiting}`;
        },
        summary: `It computes for ${mean} of the time, as the mean of ${plural(seconds.length, "point")}.`,
        table: {
          heads: ["after", "computing", "waiting for a core", "waiting"],
          row: (place) => [duration(seconds[place]), ...cells(place)],
        },
      }];
    });
  }

  function lossChart(curve, marks, steps_each) {
    const loss = column(curve.loss);
    if (!isCurve(loss)) return null;
    const [low, high] = [column(curve.loss_low), column(curve.loss_high)];
    const four = (value) => value.toFixed(4);
    const values = loss.filter(isNumber);
    const isBand = steps_each > 1;
    const range = (place) => (isBand
      ? `, from ${shown(low[place], four)} to ${shown(high[place], four)}` : "");
    return {
      key: "loss", kind: "line", title: "Training loss", xs: curve.step, marks, isLog,
      columns: [
        ...(isBand ? [{ ink: "line", edge: "low", isEdge: true, values: low },
          { ink: "line", edge: "high", isEdge: true, values: high }] : []),
        { ink: "line", values: loss },
      ],
      unit: (value) => String(Number(value.toPrecision(4))),
      rest: isBand ? `Mean of ${plural(steps_each, "step")}; the band goes from the least to the greatest.`
        : "Of each step, in nats.",
      read: (place) => `${at(place, curve)}: loss ${shown(loss[place], four)}${range(place)}`,
      summary: `From ${four(values[0])} to ${four(values[values.length - 1])} nats.`,
      table: {
        heads: ["step", "loss", ...(isBand ? ["least", "greatest"] : [])],
        row: (place) => [grouped(curve.step[place]), shown(loss[place], four),
          ...(isBand ? [shown(low[place], four), shown(high[place], four)] : [])],
      },
    };
  }

  function validationChart(evaluations, best, marks) {
    const all = column(evaluations).filter((each) => isNumber(each.val_bpb) && isNumber(each.step));
    if (!all.length) return null;
    const values = all.map((each) => each.val_bpb);
    const four = (value) => value.toFixed(4);
    const bits = (place) => four(values[place]);
    const isBest = best && all.some((each) => each.step === best.step);
    return {
      key: "validation", kind: "line", title: "Validation", xs: all.map((each) => each.step), marks,
      columns: [{ ink: "line", hasPoints: true, values }],
      best: isBest ? { step: best.step, value: best.val_bpb } : null,
      unit: (value) => String(Number(value.toPrecision(4))),
      rest: `Bits per byte${isBest ? "; a ring around the best checkpoint" : ""}.`,
      read: (place) => `after ${plural(all[place].step, "step")}: ${bits(place)} bits per byte`,
      summary: `From ${bits(0)} to ${bits(values.length - 1)} bits per byte in `
        + `${plural(values.length, "evaluation")}.`,
      table: { heads: ["step", "bits per byte"],
        row: (place) => [grouped(all[place].step), bits(place)] },
    };
  }

  function speedChart(curve, marks) {
    const speed = column(curve.tokens_per_s);
    if (!isCurve(speed)) return null;
    const whole = (value) => `${grouped(value)} tokens/s`;
    const values = speed.filter(isNumber).sort((one, other) => one - other);
    return {
      key: "speed", kind: "line", title: "Speed", xs: curve.step, marks, isFromZero: true,
      columns: [{ ink: "line", values: speed }],
      unit: units.count,
      rest: "Tokens a second.",
      read: (place) => `${at(place, curve)}: ${shown(speed[place], whole)}, `
        + `${shown(curve.tokens?.[place], units.count)} tokens so far`,
      summary: `The median is ${whole(values[Math.floor(values.length / 2)])}, the least `
        + `${whole(values[0])}, the greatest ${whole(values[values.length - 1])}.`,
      table: { heads: ["step", "tokens/s", "tokens so far"],
        row: (place) => [grouped(curve.step[place]), shown(speed[place], grouped),
          shown(curve.tokens?.[place], units.count)] },
    };
  }

  // ---------------------------------------------------------------- the page

  function toolbar() {
    const button = (text, label, act) =>
      h("button", { type: "button", "aria-label": label, title: label, on: { click: act } }, text);
    return h("div", { key: "toolbar", class: "toolbar", role: "group", "aria-label": "Steps shown in all charts" },
      h("span", { id: "steps-shown", role: "status", opaque: true }),
      button("−", "show more steps", () => charts.zoomBy(2)),
      button("+", "show fewer steps", () => charts.zoomBy(0.5)),
      button("←", "earlier steps", () => charts.pan(-0.25)),
      button("→", "later steps", () => charts.pan(0.25)),
      h("button", { type: "button", on: { click: () => charts.show(null) } }, "whole run"),
      h("span", { class: "hint" }, "Drag in a chart to zoom, double-click to go back. "
        + "Keys in a chart: + − ← → 0."));
  }

  charts.whenViewed(({ min, max }, isPart) => {
    const node = document.getElementById("steps-shown");
    const isTimed = !figures.steps;
    // It is read aloud, so it stays as it is while steps are added.
    const all = around === null ? `: ${plural(figures.steps, "step")}` : "";
    const text = isTimed
      ? (isPart ? `${duration(Math.max(0, min))} to ${duration(max)} of the run` : "Whole run")
      : isPart
      ? `Steps ${grouped(Math.ceil(min))} to ${grouped(Math.floor(max))}${
        around === null ? ` of ${grouped(figures.steps)}` : ""}`
      : `Whole run${all}`;
    if (node !== null && node.textContent !== text) node.textContent = text;
  });

  function toggleLog() {
    isLog = !isLog;
    render(figures, around);
  }

  async function copy(text) {
    const said = document.getElementById("copy-said");
    try {
      await navigator.clipboard.writeText(text);
      said.textContent = "copied";
    } catch {
      // A browser may refuse the clipboard to a file: then the line is selected, to be copied by hand.
      const range = document.createRange();
      range.selectNodeContents(document.getElementById("command"));
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      said.textContent = "selected: copy it with your keys";
    }
  }

  /** Show these figures: those of src/yoked/report/figures.py. */
  function render(newer, live = null) {
    figures = newer;
    around = live;
    const curve = { ...figures.curve, step: column(figures.curve?.step) };
    const marks = column(figures.resumed).filter(isNumber);
    const times = figures.steps
      ? stacks(curve, marks, figures.steps_each) : shareStacks(figures.shares);
    const learned = [
      lossChart(curve, marks, figures.steps_each),
      validationChart(figures.evaluations, figures.best, marks),
      speedChart(curve, marks),
    ].filter((chart) => chart !== null);
    const all = [...times, ...learned];
    document.title = live?.title ?? `${figures.run} — yoked report`;
    const header = live?.header ?? sections.header(figures);
    const parts = [
      sections.time(figures, times), sections.learning(figures, learned, { isLog, toggleLog }),
    ];
    dom.patch(document.getElementById("header"), header.filter(Boolean));
    dom.patch(document.getElementById("main"), [
      ...(live?.first ?? []),
      // While it goes on, its first question is answered above, and the loss is the next.
      h("div", { key: "steps" }, all.length > 0 && toolbar(), live === null ? parts : parts.reverse()),
      ...(live?.after ?? []),
      sections.links(figures),
      sections.told(figures),
      sections.foreseen(figures),
      sections.chosen(figures),
      sections.hosts(figures),
      sections.against(figures),
      sections.configuration(figures),
      sections.command(figures, copy),
      ...(live?.last ?? []),
    ].filter(Boolean));
    charts.draw(all, figures.steps ? figures.steps_each : 1);
  }

  // The page is drawn in the colours of the reader's system, and on paper in those of day.
  function onPaper(isPaper) {
    document.documentElement.classList.toggle("paper", isPaper);
    charts.redraw();
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.redraw());
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));

  const told = JSON.parse(document.getElementById("figures").textContent);
  if (told !== null) render(told);
  return { render };
})();
