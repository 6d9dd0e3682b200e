"use strict";
// The page of a run that goes on: what the server sends is kept up to date and shown. A connection
// that is lost is made again, every second.
const live = (() => {
  const AGAIN_MS = 1000;
  // The server says something every five seconds.
  const SILENT_MS = 15000;
  // A look that takes so long waits for a host.
  const OLD_MS = 10000;
  const ZOOMED_MS = 200;
  const MOST_POINTS = 600;

  let told = null; // {view, problem, choice}, as the server has it
  let source = null;
  let heard = performance.now();
  let looked = performance.now();
  let isOld = false;
  let lostSince = null; // Unix
  let runs = { rows: null, problem: null, isAsked: false };
  let detail = null; // {min, max, run, curve}: the steps that are shown, read in full
  let shown = null; // the run
  let zoomed = 0; // counts what is shown: an answer that comes too late is left

  // ---------------------------------------------------------------- the connection

  function connect() {
    source = new EventSource("events");
    heard = performance.now();
    const on = (name, act) => source.addEventListener(name, (event) => {
      heard = performance.now();
      const wasLost = lostSince !== null;
      lostSince = null;
      if (act(JSON.parse(event.data)) || wasLost) show();
    });
    on("whole", (data) => got(data));
    on("changes", (data) => got(state.applied(told, data)));
    on("alive", () => false);
    // Its own retry ends for ever at an answer that is an error, as of a tunnel without a server.
    source.onerror = lost;
  }

  function got(newer) {
    told = newer;
    looked = performance.now();
    isOld = false;
    return true;
  }

  function lost() {
    if (source === null) return;
    source.close();
    source = null;
    lostSince ??= Date.now() / 1000;
    show();
    setTimeout(connect, AGAIN_MS);
  }

  setInterval(() => {
    if (performance.now() - heard > SILENT_MS) lost();
    if (isOld || performance.now() - looked < OLD_MS) return;
    isOld = true;
    show();
  }, 1000);
  addEventListener("online", () => { if (lostSince === null) lost(); });

  /** What the server answers. Throws an Error that says why not. */
  async function ask(path, options) {
    const found = await fetch(path, options).then((answer) => answer.json()).catch(() => null);
    if (found === null) throw new Error("The server does not answer: it may have ended.");
    if (found.what !== undefined) throw new Error([found.what, ...found.fix].join(" — "));
    return found;
  }

  // ---------------------------------------------------------------- the list of runs

  async function list() {
    if (runs.isAsked) return;
    runs = { ...runs, isAsked: true, problem: null };
    show();
    try {
      runs = { rows: await ask("runs"), problem: null, isAsked: false };
    } catch (problem) {
      runs = { rows: null, problem: problem.message, isAsked: false };
    }
    show();
  }

  async function choose(run) {
    try {
      await ask(`choose?${new URLSearchParams({ run })}`, { method: "POST" });
    } catch (problem) {
      runs = { ...runs, problem: problem.message };
      show();
    }
  }

  // ---------------------------------------------------------------- a part, read in full

  charts.whenViewed(({ min, max }, isPart) => {
    if (detail !== null && isPart && detail.min === min && detail.max === max) return;
    if (detail === null && !isPart) return;
    zoomed += 1;
    if (!isPart) {
      detail = null;
      setTimeout(show, 0);
      return;
    }
    const number = zoomed;
    detail = { min, max, run: told.view.run, curve: null };
    setTimeout(async () => {
      if (number !== zoomed || told.view === null || !(told.view.figures.steps_each > 1)) return;
      const [first, last] = [Math.max(0, Math.floor(min) - 1), Math.ceil(max)];
      try {
        const curve = await ask(`curve?${new URLSearchParams({ first, last, points: MOST_POINTS })}`);
        if (number !== zoomed || !curve.step?.length) return;
        detail.curve = curve;
        show();
      } catch {
        // The points that are there stay.
      }
    }, ZOOMED_MS);
  });

  /** The figures, with the part that was read in full in the place of its points. */
  function figuresOf(view) {
    const { figures } = view;
    const curve = detail?.run === view.run ? detail.curve : null;
    if (!curve) return figures;
    const whole = figures.curve;
    const [first, last] = [curve.step[0], curve.step[curve.step.length - 1]];
    const before = whole.step.findIndex((step) => step >= first);
    const after = whole.step.findIndex((step) => step > last);
    if (before < 0) return figures;
    const joined = (one, other) => [...one.slice(0, before), ...other,
      ...(after < 0 ? [] : one.slice(after))];
    const columns = Object.keys(whole).filter((name) => name !== "ranks").map((name) => {
      // Its tokens begin with its own first step.
      const shift = name === "tokens" && before > 0 ? whole.tokens[before - 1] : 0;
      const part = shift ? curve[name].map((each) => each + shift) : curve[name];
      return [name, joined(whole[name], part)];
    });
    const ranks = whole.ranks.map((times, rank) => Object.fromEntries(
      Object.keys(times).map((name) =>
        [name, joined(times[name], curve.ranks[rank]?.[name] ?? curve.step.map(() => null))])));
    const each = curve.step.length > 1 ? curve.step[1] - curve.step[0] : 1;
    return { ...figures, curve: { ...Object.fromEntries(columns), ranks }, steps_each: each };
  }

  // ---------------------------------------------------------------- the page

  function show() {
    // A page that nobody sees has its title alone; it is drawn when it is looked at.
    const view = told?.view ?? null;
    const mark = lostSince !== null ? "✕ not connected" : sections.LEVELS.get(view?.verdict.level) ?? "";
    const title = view === null ? "yoked watch" : `${mark} ${view.run} — yoked watch`.trim();
    document.title = title;
    if (document.hidden) return;
    document.documentElement.classList.toggle("stale", lostSince !== null || Boolean(told?.problem));
    const choice = told?.choice ?? null;
    const listed = choice !== null ? now.choice(choice, runs.problem, choose)
      : now.runs(view?.run, runs, { open: list, choose });
    const on_top = [
      now.connection({ lostSince, isOld, seen: view?.time_s ?? null, view, choice }),
      now.problem(told?.problem ?? null),
    ];
    if (view === null) {
      dom.patch(document.getElementById("header"), [...on_top, listed].filter(Boolean));
      return;
    }
    if (view.run !== shown) {
      // What was zoomed into was another run's.
      if (shown !== null) charts.show(null);
      shown = view.run;
      detail = null;
    }
    page.render(figuresOf(view), {
      title,
      header: [...on_top, ...now.verdict(view), now.silent(view),
        now.progress(view), listed],
      first: [now.waiting(view)],
      after: [now.links(view)],
      last: [now.cost(view)],
    });
    timeline.draw();
  }

  document.addEventListener("visibilitychange", show);
  show();
  connect();
  return { show, state: () => told };
})();
