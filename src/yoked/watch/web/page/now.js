"use strict";
// The parts of the page that tell of now: each described from a view (src/yoked/watch/view.py).
const now = (() => {
  const { h } = dom;
  const { isNumber, grouped, bytes, bytesPerS, duration, percent, listed, clock, day } = units;

  const PARTS = [
    { name: "computes", ink: "compute", word: "computing" },
    { name: "sends", ink: "comm", word: "communication" },
    { name: "waits", ink: "wait", word: "waiting" },
  ];
  const isLevel = (level) => ["bad", "warning", "good"].includes(level);
  const levelOf = (level) => (isLevel(level) ? level : "plain");
  const sign = (level) => h("span", { class: "sign", "aria-hidden": "true" },
    sections.LEVELS.get(level) ?? "·");
  const bitsPerS = (rate) => units.bytesPerS(rate).replace("B/s", "bit/s");
  const clockOf = (time_s) => (day(time_s) === day(Date.now() / 1000) ? clock(time_s)
    : `${day(time_s)} ${clock(time_s)}`);

  // ---------------------------------------------------------------- on top

  /** Whether it hears from the server, and how the run stands. lostSince, seen: Unix, or null. */
  function connection({ lostSince, isOld, seen, view, choice }) {
    const isEnded = view !== null && !view.active;
    const last = seen === null ? "" : ` The figures are those of ${clockOf(seen)}.`;
    const text = lostSince !== null
      ? `✕ Not connected since ${clockOf(lostSince)}. It tries again every second.${last}`
      : choice !== null ? "● Connected. No run is chosen yet."
      : seen === null ? "… Looking for the first time."
      : isOld ? `● Connected; the last look takes long.${last}`
      : isEnded ? "■ Connected. This run does not go on." : "● Connected, live";
    return h("div", { key: "top", class: "top" },
      view !== null && sections.stateOf(view),
      h("p", { key: "connection", class: `connection ${lostSince === null ? "" : "lost"}`, role: "status" }, text));
  }

  function problem(told) {
    if (told === null) return null;
    return h("div", { key: "problem", class: "card bad", role: "alert" },
      h("h2", {}, "The last look failed"),
      h("p", {}, `${told.what} (since ${clockOf(told.since_s)})`),
      told.fix.length > 0 && h("ul", { class: "next" }, told.fix.map(sections.nextStep)));
  }

  function verdict(view) {
    const level = levelOf(view.verdict.level);
    return [
      h("h1", { key: "verdict", class: `verdict ${level}`, "aria-live": "polite", "aria-atomic": "true" },
        sign(level), h("span", {},
          !view.verdict.text.startsWith(`run ${view.run}`) && h("span", { class: "run" }, `${view.run} `),
          sections.verdict({ verdict: view.verdict.text, run: view.run }))),
      sections.why({ why: view.verdict.why, next: view.verdict.next }, level),
    ];
  }

  function silent(view) {
    const hosts = Object.entries(view.silent);
    if (!hosts.length) return null;
    return h("div", { key: "silent", class: "card warning" }, h("h2", {}, "What does not answer now"),
      h("ul", {}, hosts.map(([host, why]) => h("li", {}, h("strong", {}, host), why && `: ${why}`))));
  }

  function progress(view) {
    const { step, steps, left_s, tokens_per_s, loss, val_bpb, stage } = view.progress;
    const isCounted = isNumber(steps) && steps > 0;
    const memory = view.ranks.map((each) => each.memory_bytes).filter(isNumber);
    const lines = [
      ["step", isCounted ? `${grouped(step)} of ${grouped(steps)} (${percent(step / steps)})` : grouped(step)],
      ["time left", isNumber(left_s) && duration(left_s)],
      ["tokens a second", isNumber(tokens_per_s) && grouped(tokens_per_s)],
      ["loss", isNumber(loss) && loss.toFixed(4)],
      ["validation", isNumber(val_bpb) && `${val_bpb.toFixed(4)} bits per byte`],
      ["memory of ranks", memory.length > 0 && bytes(memory.reduce((sum, each) => sum + each, 0))],
      ["as of", clockOf(view.time_s)],
    ].filter(([, text]) => text);
    return h("div", { key: "progress" },
      stage && h("p", { class: "lead" }, stage),
      isCounted && h("progress", { max: String(steps), value: String(Math.min(step, steps)), "aria-label": "steps done" }),
      sections.tiles(lines));
  }

  // ---------------------------------------------------------------- whom ranks wait for

  const nameOf = (view, rank) => {
    const host = view.ranks.find((each) => each.rank === rank)?.host;
    return host ? `rank ${rank} on ${host}` : `rank ${rank}`;
  };

  function waiting(view) {
    if (!view.ranks.length) return null;
    const known = PARTS.filter((part) => view.ranks.some((rank) => isNumber(rank.parts[part.name])));
    return sections.section("now", "Who waits for whom",
      h("p", { class: "lead" }, view.recent.step.length > 0 ? "Of the last steps, by rank."
        : "Of the last 20 seconds, by rank, as its host sees it."),
      known.length > 0 && h("ul", { class: "legend" }, known.map((part) =>
        h("li", {}, h("span", { class: `swatch ${part.ink}`, "aria-hidden": "true" }), part.word))),
      h("ul", { class: "bars" }, view.ranks.map((rank) => bar(view, rank, known))),
      timeline.figure(view));
  }

  function bar(view, rank, parts) {
    const level = levelOf(rank.level);
    const shares = parts.filter((part) => isNumber(rank.parts[part.name]));
    const words = shares.map((part) => `${percent(rank.parts[part.name])} ${part.word}`);
    const others = rank.waits_for.map((each) => nameOf(view, each));
    return h("li", { key: `now-${rank.rank}`, class: level },
      h("p", { class: "who" }, level !== "plain" && sign(level), h("strong", {}, nameOf(view, rank.rank)),
        rank.doing && h("span", { class: "doing" }, ` ${rank.doing}`)),
      h("div", { class: "bar", "aria-hidden": "true" }, shares.map((part) =>
        h("span", { class: part.ink, vars: { "--part": Math.min(1, Math.max(0, rank.parts[part.name])) } }))),
      h("p", {}, words.length > 0 ? listed(words) : "not known yet",
        others.length > 0 && h("strong", {}, ` for ${listed(others)}`),
        isNumber(rank.memory_bytes) && `; ${bytes(rank.memory_bytes)} of memory`));
  }

  // ---------------------------------------------------------------- links, cost, runs

  function links(view) {
    if (!view.links.length) return null;
    const hasWire = view.links.some((each) => isNumber(each.wire_bits_per_s));
    const heads = [["from, to"], ["sends", true], ...(hasWire ? [["of the wire", true], [""]] : []),
      ["round trip", true], ["sent again", true]];
    const rows = view.links.map((link) => {
      const part = link.wire_bits_per_s > 0 ? link.bits_per_s / link.wire_bits_per_s : null;
      return [`${link.sender} → ${link.receiver}`, bitsPerS(link.bits_per_s),
        ...(hasWire ? [part === null ? "not measured" : percent(part), h("span", { class: "bar", "aria-hidden": "true" },
          h("span", { class: "comm", vars: { "--part": Math.min(1, part ?? 0) } }))] : []),
        isNumber(link.rtt_s) ? duration(link.rtt_s) : "not known", percent(link.resent)];
    });
    return sections.section("wire", "Links now", sections.table("Links now", heads, rows));
  }

  function cost(view) {
    const lines = [];
    if (view.sampled) {
      lines.push("The journal of this run is long: its curves are of a sample of its lines. A part "
        + "that is zoomed into is read line by line.");
    }
    if (view.cost !== null) {
      lines.push(`Looking on takes ${bytesPerS(view.cost.bytes_per_s)} of the way to the hosts, and is kept `
        + `below ${bytesPerS(view.cost.most_bytes_per_s)}; opening it took ${bytes(view.cost.opened_bytes)}.`);
    }
    lines.push("This page looks on. A terminal saves, stops and shows what ranks print: yoked save, yoked stop, yoked logs.");
    return sections.section("cost", "About this view", lines.map((line) => h("p", { class: "muted" }, line)));
  }

  /** The list of runs. told: {rows, problem, isAsked}. */
  /** A list of runs, or that there are none. */
  function table(rows, current, choose) {
    if (!rows.length) return h("p", { class: "empty" }, "There are no runs yet.");
    const cells = rows.map((row) => [
      h("button", { type: "button", "aria-pressed": String(row.run === current), on: { click: () => choose(row.run) } },
        row.run),
      row.state, row.hosts.join(", "), isNumber(row.when_s) ? clockOf(row.when_s) : "",
      isNumber(row.step) ? grouped(row.step) : "", isNumber(row.loss) ? row.loss.toFixed(4) : "",
    ]);
    return [
      h("p", { class: "muted" }, "One that is chosen is shown on all pages of this server."),
      sections.table("Runs", [["run"], ["state"], ["hosts"], ["began or was last alive"], ["step", true], ["loss", true]], cells)];
  }

  /** In the place of a run, where none was named and none goes on. */
  function choice(rows, problem, choose) {
    return h("div", { key: "choice", class: "runs" },
      h("h1", { class: "verdict plain" }, rows.length ? "Choose a run to look at" : "There is no run to look at"),
      problem && h("p", { class: "empty", role: "alert" }, problem),
      table(rows, null, choose),
      !rows.length && h("ul", { class: "next" }, sections.nextStep("yoked train")));
  }

  function runs(current, told, { open, choose }) {
    return h("details", { key: "runs", class: "runs", on: { toggle: (event) => event.target.open && open() } },
      h("summary", {}, "Other runs"),
      told.isAsked && h("p", { class: "muted" }, "The hosts are asked…"),
      told.problem && h("p", { class: "empty", role: "alert" }, told.problem),
      told.rows && table(told.rows, current, choose));
  }

  return { connection, problem, verdict, silent, progress, waiting, links, cost, runs, choice };
})();
