"use strict";
// The parts of the page, each described from the figures. A part of which nothing is on record is
// null, or says in a sentence why it is empty.
const sections = (() => {
  const { h } = dom;
  const {
    isNumber, grouped, bytes, bytesPerS, count, duration, percent, plural, listed, clock, day,
  } = units;

  const PARTS = [
    { name: "compute_s", ink: "compute", word: "computing" },
    { name: "comm_s", ink: "comm", word: "communication" },
    { name: "wait_s", ink: "wait", word: "waiting" },
    { name: "other_s", ink: "other", word: "other" },
  ];
  // Maps, as words of the figures are foreign: an object knows "constructor", too.
  const STATES = new Map([
    ["running", ["▶", "running"]], ["prepared", ["…", "prepared"]],
    ["finished", ["✓", "finished"]], ["failed", ["✕", "failed"]], ["interrupted", ["■", "stopped"]],
    ["lost", ["?", "end unknown"]], ["unknown", ["…", "no end on record"]],
  ]);
  // How much an event asks for a look.
  const LEVELS = new Map([["bad", "✕"], ["warning", "!"], ["good", "✓"]]);

  const listOf = (value) => (Array.isArray(value) ? value : []);
  const isText = (value) => typeof value === "string" && value !== "";
  const code = (text) => h("code", {}, text);
  const share = (part, all) => (all > 0 ? percent(part / all) : "0%");

  function section(key, title, ...content) {
    return h("section", { key, class: key, "aria-labelledby": `h-${key}` },
      h("h2", { id: `h-${key}` }, title), content);
  }

  function nameOf(figures, rank) {
    const host = listOf(figures.ranks)[rank]?.host
      ?? listOf(figures.shares?.ranks).find((each) => each.rank === rank)?.host;
    return isText(host) ? `rank ${rank} on ${host}` : `rank ${rank}`;
  }

  /** A table that scrolls by itself where it is too wide. heads: [text, isNumber]. */
  function table(label, heads, rows, attributes = {}) {
    return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
      h("table", attributes,
        h("thead", {}, h("tr", {}, heads.map(([text, number]) =>
          h("th", { scope: "col", class: number ? "number" : "" }, text)))),
        h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, column) =>
          column
            ? h("td", { class: heads[column][1] ? "number" : "" }, cell)
            : h("th", { scope: "row" }, cell)))))));
  }

  // ---------------------------------------------------------------- the verdict

  function header(figures) {
    return [
      stateOf(figures),
      h("h1", { key: "verdict" }, verdict(figures)),
      summary(figures),
      why(figures, figures.state === "failed" ? "bad" : ""),
    ];
  }

  function stateOf({ state: told }) {
    const [sign, state] = STATES.get(told) ?? ["…", String(told ?? "unknown")];
    return h("p", { key: "state", class: `state ${STATES.has(told) ? told : "unknown"}` },
      h("span", { "aria-hidden": "true" }, sign), ` ${state}`);
  }

  /** What became of the run, large, and its figures. */
  function verdict({ verdict: text, run }) {
    const whole = isText(text) ? text : `run ${run ?? ""}`;
    const begins = `run ${run}`;
    const at = whole.indexOf(": ", whole.startsWith(begins) ? begins.length : 0);
    if (at < 0) return [h("span", { class: "what" }, whole)];
    return [h("span", { class: "what" }, whole.slice(0, at), h("span", { class: "heard" }, ": ")),
      h("span", { class: "figures" }, whole.slice(at + 2))];
  }

  function summary(figures) {
    const best = figures.best;
    const total = figures.params?.total;
    const lines = [
      ["time in steps", isNumber(figures.elapsed_s) && figures.elapsed_s > 0
        && duration(figures.elapsed_s)],
      ["a step", isNumber(figures.step_s) && `${duration(figures.step_s)} (median)`],
      ["first step", isNumber(figures.first_step_s) && duration(figures.first_step_s)],
      ["ranks", listOf(figures.ranks).length > 0 && grouped(figures.ranks.length)],
      ["parameters", isNumber(total) && count(total)],
      ["best checkpoint", best && isNumber(best.val_bpb)
        && `${best.val_bpb.toFixed(4)} bits per byte, after ${plural(best.step, "step")}`],
      ["started", isNumber(figures.started_s)
        && `${day(figures.started_s)} ${clock(figures.started_s)}`],
      ["attempts", figures.attempts > 1 && grouped(figures.attempts)],
      ["folder", isText(figures.dir) && figures.dir],
    ].filter(([, text]) => text);
    return tiles(lines);
  }

  /** lines: [name, text]; those without a text are left out before. */
  function tiles(lines) {
    return h("dl", { key: "summary", class: "tiles" }, lines.map(([name, text]) =>
      h("div", { class: name === "folder" ? "wide" : "" }, h("dt", {}, name), h("dd", {}, text))));
  }

  /** Evidence, and what to do. level: as an event has it. */
  function why(figures, level) {
    const [reasons, steps] = [listOf(figures.why), listOf(figures.next)];
    if (!reasons.length && !steps.length) return null;
    return h("div", { key: "why", class: `card ${level}` },
      reasons.length > 0 && [h("h2", {}, "Why"),
        h("ul", {}, reasons.map((each) => h("li", {}, each)))],
      steps.length > 0 && [h("h2", {}, "Next"), h("ul", { class: "next" }, steps.map(nextStep))]);
  }

  /** A line to run, with its remark behind four spaces, or a sentence. */
  function nextStep(line) {
    const [command, ...rest] = line.split("    ");
    const isCommand = rest.length > 0 || /^(yoked|sudo|ssh|pip|pipx|python3?) /.test(line);
    if (!isCommand) return h("li", {}, line);
    return h("li", {}, code(command), rest.length > 0 && ` ${rest.join(" ").trim()}`);
  }

  // ---------------------------------------------------------------- where each second went

  function time(figures, charts_wanted) {
    const ranks = listOf(figures.ranks);
    const title = "Where each second went";
    if (!figures.steps && figures.shares) return timeOfProgram(title, figures, charts_wanted);
    if (!figures.steps || !ranks.length) {
      return section("time", title, h("p", { class: "empty" }, figures.steps
        ? "The steps on record do not say what each rank did."
        : "No step is on record, so there are no times of steps."));
    }
    const longest = Math.max(...ranks.map((rank) => totalOf(rank)), 1e-9);
    return section("time", title,
      h("p", { class: "lead" }, `Over ${plural(figures.steps, "step")}, by rank.`),
      legend(ranks),
      h("ul", { class: "bars" }, ranks.map((rank) => bar(figures, rank, longest))),
      charts_wanted.length > 0 && h("p", { class: "lead" }, "From step to step"
        + `${charts_wanted.length > 1 ? ", all ranks on one scale" : ""}. ▲ marks steps above the scale.`),
      charts_wanted.map((chart) => charts.figure(chart)),
      charts_wanted.length === 0
        && h("p", { class: "empty" }, "There are no two points of times on record, so there is no chart."));
  }

  /** As the ranks' hosts saw it, of a program that tells of no steps. */
  function timeOfProgram(title, figures, charts_wanted) {
    const names = [["compute", "computing"], ["comm", "waiting for a core"], ["wait", "waiting"]];
    return section("time", title,
      h("p", { class: "lead" }, "As the ranks' hosts saw their main threads: a rank that waits does "
        + "so for others, the network or data. Times in which a cause held that stops a rank are left out."),
      h("ul", { class: "legend" }, names.map(([ink, word]) =>
        h("li", {}, h("span", { class: `swatch ${ink}`, "aria-hidden": "true" }), word))),
      charts_wanted.map((chart) => charts.figure(chart)),
      charts_wanted.length === 0
        && h("p", { class: "empty" }, "There are no two points of it on record, so there is no chart."));
  }

  const totalOf = (rank) => PARTS.reduce((sum, part) => sum + (rank[part.name] || 0), 0);

  function legend(ranks) {
    const parts = PARTS.filter((part) => ranks.some((rank) => isSeen(rank, part)));
    return h("ul", { class: "legend" }, parts.map((part) =>
      h("li", {}, h("span", { class: `swatch ${part.ink}`, "aria-hidden": "true" }), part.word)));
  }

  /** Less than a thousandth is nothing that anybody sees. */
  const isSeen = (rank, part) => rank[part.name] > 0.001 * totalOf(rank);

  function bar(figures, rank, longest) {
    const parts = PARTS.filter((part) => isSeen(rank, part));
    return h("li", { key: `bar-${rank.rank}` },
      h("strong", {}, nameOf(figures, rank.rank)),
      h("div", { class: "bar", "aria-hidden": "true" }, parts.map((part) =>
        h("span", { class: part.ink, vars: { "--part": rank[part.name] / longest } }))),
      h("p", {}, sharesOf(rank), waits(figures, rank.rank)));
  }

  function sharesOf(rank) {
    const parts = PARTS.filter((part) => isSeen(rank, part));
    return `${listed(parts.map((part) =>
      `${share(rank[part.name], totalOf(rank))} ${part.word} (${duration(rank[part.name])})`))}.`;
  }

  /** For whom a rank waited, and how long others did for it. */
  function waits(figures, rank) {
    const ranks = listOf(figures.ranks);
    if (ranks.length < 2) return "";
    const waited = ranks.flatMap((other) => listOf(other.kept_waiting_s)
      .filter((each) => each.rank === rank && other.rank !== rank && each.wait_s > 0)
      .map((each) => ({ rank: other.rank, wait_s: each.wait_s })))
      .sort((one, other) => other.wait_s - one.wait_s);
    const kept = listOf(ranks[rank]?.kept_waiting_s).reduce((sum, each) => sum + each.wait_s, 0);
    const sentences = [];
    if (waited.length) {
      const named = waited.slice(0, 3).map((each) =>
        `${duration(each.wait_s)} for ${nameOf(figures, each.rank)}`);
      if (waited.length > 3) named.push(`less for ${plural(waited.length - 3, "other")}`);
      sentences.push(` It waited ${listed(named)}.`);
    }
    if (kept > 0) sentences.push(` The others waited ${duration(kept)} for it, taken together.`);
    return sentences.join("");
  }

  // ---------------------------------------------------------------- loss and speed

  function learning(figures, wanted, state) {
    const title = "Loss, validation and speed";
    if (!figures.steps) return null;
    const [loss, ...others] = wanted;
    const empty = [];
    if (!wanted.some((chart) => chart.key === "loss")) empty.push("There are no two points of the loss on record, so there is no chart of it.");
    if (!listOf(figures.evaluations).length) empty.push("No evaluation is on record.");
    return section("learning", title,
      wanted.length > 0 && (loss.key === "loss"
        ? charts.figure(loss, h("button", {
          type: "button", "aria-pressed": String(state.isLog), on: { click: state.toggleLog },
        }, "log axis"))
        : charts.figure(loss)),
      others.map((chart) => charts.figure(chart)),
      empty.length > 0 && h("p", { class: "empty" }, empty.join(" ")));
  }

  // ---------------------------------------------------------------- links

  function links(figures) {
    const ranks = listOf(figures.ranks);
    if (!ranks.some((rank) => rank.bytes_sent > 0) || !figures.steps) {
      if (!ranks.length) return null;
      return section("links", "What ranks sent",
        h("p", { class: "empty" }, ranks.length === 1
          ? "One rank sends nothing to others."
          : "What ranks sent is not on record."));
    }
    const most = Math.max(...ranks.map((rank) => rank.bytes_sent));
    const rows = ranks.map((rank) => [
      nameOf(figures, rank.rank), bytes(rank.bytes_sent),
      bytes(rank.bytes_sent / figures.steps),
      figures.elapsed_s > 0 ? bytesPerS(rank.bytes_sent / figures.elapsed_s) : "not known",
      rank.comm_s > 0 ? bytesPerS(rank.bytes_sent / rank.comm_s) : "not known",
      h("span", { class: "bar", "aria-hidden": "true" },
        h("span", { class: "comm", vars: { "--part": rank.bytes_sent / most } })),
    ]);
    return section("links", "What ranks sent",
      table("What ranks sent", [["rank"], ["in all", true], ["a step", true],
        ["a second of the run", true], ["a second of communication", true], ["compared"]], rows));
  }

  // ---------------------------------------------------------------- what was told

  function told(figures) {
    const events = listOf(figures.events);
    const title = "What was told";
    if (!events.length) {
      return section("told", title, h("p", { class: "empty" }, "Nothing was told of this run."));
    }
    const times = events.map((each) => each.time_s).filter(isNumber);
    const begin = Math.min(...times, ...[figures.started_s].filter(isNumber));
    const several = figures.attempts > 1 || events.some((each) => each.attempt > 1);
    const heads = ["time", "step", "kind", "sentence"];
    return section("told", title,
      h("p", { class: "lead" }, `Clocks are those of this browser's time zone, from ${day(begin)} on; `
        + "after the plus sign stands the time since the first line."),
      // Roles, as the style makes blocks of it on a narrow screen, which would end the table.
      h("table", { class: "events", role: "table", "aria-labelledby": "h-told" },
        h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map((head) =>
          h("th", { scope: "col", role: "columnheader" }, head)))),
        h("tbody", { role: "rowgroup" }, events.map((each) => {
          const level = LEVELS.has(each.level) ? each.level : "plain";
          return h("tr", { class: level, role: "row" },
            h("td", { class: "when", role: "cell" }, h("span", {}, clock(each.time_s)), " ",
              h("small", {}, since(each.time_s - begin))),
            h("td", { class: `step number ${isNumber(each.step) ? "" : "unknown"}`, role: "cell" },
              isNumber(each.step) ? grouped(each.step) : "",
              several && isNumber(each.attempt) && h("small", {}, ` attempt ${each.attempt}`)),
            h("td", { class: "kind", role: "cell" },
              h("span", { class: "sign", "aria-hidden": "true" }, LEVELS.get(level) ?? "·"),
              ` ${each.kind ?? "event"}`),
            h("td", { class: "sentence", role: "cell" }, each.text, listOf(each.fix).length > 0
              && h("ul", { class: "next" }, each.fix.map(nextStep))));
        }))));
  }

  /** Clocks of the run and of its log differ by a little: below a tenth of a second it is nothing. */
  const since = (time_s) => (isNumber(time_s) ? `+${duration(time_s < 0.1 ? 0 : time_s)}` : "");

  // ---------------------------------------------------------------- foreseen, chosen, hosts

  /** A figure; a unit other than seconds and bytes stands with its name, for narrow screens. */
  function quantity(value, unit) {
    if (!isNumber(value)) return "not known";
    if (unit === "s") return duration(value);
    if (unit === "B") return bytes(value);
    return Math.abs(value) >= 100 || Number.isInteger(value) ? grouped(value) : count(value);
  }

  function foreseen(figures) {
    const rows = listOf(figures.foreseen).map((each) => {
      const ratio = each.foreseen > 0 ? each.measured / each.foreseen : NaN;
      const isNamed = isText(each.unit) && !["s", "B"].includes(each.unit);
      return [isNamed ? `${each.what}, ${each.unit}` : each.what, quantity(each.foreseen, each.unit), quantity(each.measured, each.unit),
        isNumber(ratio) ? `${ratio.toFixed(2)}x` : "not known"];
    });
    if (!rows.length) return null;
    return section("foreseen", "Foreseen and measured",
      table("Foreseen and measured",
        [["figure"], ["foreseen", true], ["measured", true], ["ratio", true]], rows));
  }

  function chosen(figures) {
    const choices = listOf(figures.choices);
    if (!choices.length) return null;
    const rows = choices.map((each) => [code(each.name), code(each.value), each.reason]);
    return section("chosen", "What was chosen",
      // A list on a narrow screen, so with roles, as above.
      h("table", { class: "choices", role: "table", "aria-labelledby": "h-chosen" },
        h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, ["setting", "value", "reason"].map(
          (head) => h("th", { scope: "col", role: "columnheader" }, head)))),
        h("tbody", { role: "rowgroup" }, rows.map(([name, ...cells]) => h("tr", { role: "row" },
          h("th", { scope: "row", role: "rowheader" }, name),
          cells.map((cell) => h("td", { role: "cell" }, cell)))))));
  }

  function hosts(figures) {
    const all = listOf(figures.hosts);
    if (!all.length) return null;
    const columns = [
      ["rank", (each) => (isNumber(each.rank) ? grouped(each.rank) : ""), true],
      ["device", (each) => each.device], ["dtype", (each) => each.dtype],
      ["threads", (each) => (isNumber(each.threads) ? grouped(each.threads) : ""), true],
      ["torch", (each) => each.torch], ["python", (each) => each.python],
    ].filter(([, cell]) => all.some(cell));
    return section("hosts", "Hosts and versions",
      table("Hosts and versions", [["host"], ...columns.map(([name, , number]) => [name, number])],
        all.map((each) => [each.name || "unnamed", ...columns.map(([, cell]) => cell(each) || "")])));
  }

  // ---------------------------------------------------------------- against another run

  function against(figures) {
    const other = figures.against;
    if (!other) return null;
    const differs = listOf(other.differs).map((each) =>
      [code(each.name), written(each.this), written(each.other)]);
    const rows = [
      compared("loss at equal tokens", other.loss, "difference", 4),
      compared("bits per byte", other.validation, "difference", 4),
      compared("tokens a second, slow steps included", other.speed, "ratio", 3),
    ].filter(Boolean);
    // They begin with a name, in its own case.
    const empty = [...listOf(other.not_compared)];
    if (other.differs && !differs.length) empty.unshift("nothing that is on record differs");
    return section("against", `Against run ${other.run}`,
      rows.length > 0 && [table("Figures of both runs",
        [["figure"], ["this run", true], [String(other.run), true], ["compared", true],
          ["95%", true], ["more than noise"]], rows),
      h("p", { class: "lead" }, "Differences are this run's figure less the other's; speeds are "
        + "compared as a ratio. Those here have the slow steps in them; the speed on top is that of the "
        + "median step. The interval is that of these two runs' own noise: what another "
        + "seed would change is not in it.")],
      differs.length > 0 && table("What differs",
        [["setting"], ["this run"], [String(other.run)]], differs),
      empty.length > 0 && h("ul", { class: "empty" }, empty.map((each) => h("li", {}, each))));
  }

  function compared(name, found, how, digits) {
    if (!found) return null;
    const signed = (value) => (how === "ratio" ? `${value.toFixed(digits)}x`
      : `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`);
    const figure = (value) => (how === "ratio" ? grouped(value) : value.toFixed(digits));
    const interval = listOf(found.interval);
    return [name, figure(found.this), figure(found.other), signed(found[how]),
      interval.length ? interval.map(signed).join(" to ") : "",
      "beyond_noise" in found ? (found.beyond_noise ? "yes" : "no") : "not known"];
  }

  // ---------------------------------------------------------------- the configuration

  function written(value) {
    if (value === null || value === undefined || value === "") {
      return h("span", { class: "muted" }, "not set");
    }
    if (typeof value === "boolean") return code(value ? "yes" : "no");
    if (typeof value === "number") return code(isNumber(value) ? String(value) : "not known");
    return code(typeof value === "string" ? value : JSON.stringify(value));
  }

  function settings(label, entries) {
    if (!entries.length) return null;
    return [h("h3", {}, label), table(label, [["name"], ["value"]],
      entries.map(([name, value]) => [code(name), written(value)]))];
  }

  function configuration(figures) {
    const { passed, ...config } = figures.config ?? {};
    const entries = Object.entries(config);
    if (!entries.length) return null;
    const given = new Set(listOf(passed));
    const first = entries.filter(([name]) => given.has(name));
    const rest = entries.filter(([name]) => !given.has(name));
    const [model, params] = [figures.model, figures.params].map((each) => Object.entries(each ?? {}));
    return section("configuration", "Configuration",
      h("details", {}, h("summary", {}, first.length
        ? `${plural(first.length, "setting")} given, ${grouped(rest.length)} others`
        : plural(entries.length, "setting")),
      settings("Given", first), settings(first.length ? "Others" : "All", rest),
      settings("Model", model),
      settings("Parameters", params.map(([name, value]) =>
        [name, isNumber(value) ? grouped(value) : value]))));
  }

  function command(figures, copy) {
    if (!isText(figures.command)) return null;
    return section("command", "The same run again",
      h("div", { class: "copied" }, h("pre", { tabindex: "0", role: "region", id: "command",
        "aria-label": "the command" }, code(figures.command)),
      h("button", { type: "button", on: { click: () => copy(figures.command) } }, "Copy"),
      h("span", { id: "copy-said", role: "status", opaque: true })));
  }

  return {
    PARTS, LEVELS, nameOf, sharesOf, section, table, tiles, stateOf, verdict, why, nextStep,
    header, time, learning, links, told, foreseen, chosen, hosts,
    against, configuration, command,
  };
})();
