"use strict";
// Asks for news of the run once a second, and shows them. Charts are drawn once and then fed; they
// are drawn anew when other lines come, or the window gets another width.
(function () {
  const AGAIN_MS = 1000;
  const viewer = crypto.getRandomValues(new Uint32Array(2)).join("-");
  const message = document.getElementById("message");
  const figures = document.getElementById("figures");
  let layout = "";
  let version = 0;
  let charts = new Map();

  function element(name, attributes, text) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }

  // The figures are of another layout now: with empty charts.
  function setUp(told) {
    for (const chart of charts.values()) chart.drawn?.finalize();
    charts = new Map();
    figures.replaceChildren();
    for (const [name, { caption, spec }] of Object.entries(told)) {
      const place = element("div", { class: "chart", role: "figure", "aria-label": spec.description });
      const figure = element("figure", { id: name });
      figure.append(element("figcaption", {}, caption), place);
      figures.append(figure);
      charts.set(name, { spec, place, drawn: null, rows: new Map(), axes: [], hasChanged: true });
    }
    figures.closest("section").toggleAttribute("hidden", charts.size === 0);
  }

  function take(chart, { rows, outside, signals }) {
    for (const row of rows) chart.rows.set(row.second, row);
    for (const second of chart.rows.keys()) {
      if (second < signals.span_from) chart.rows.delete(second);
    }
    const isMoved = JSON.stringify([outside, signals]) !== JSON.stringify(chart.axes);
    chart.hasChanged ||= isMoved || rows.length > 0;
    chart.axes = [outside, signals];
  }

  async function show(chart) {
    const [outside, signals] = chart.axes;
    const rows = Array.from(chart.rows.values());
    if (chart.drawn === null) {
      const params = chart.spec.params.map(({ name }) => ({ name, value: signals[name] }));
      const filled = { ...chart.spec, params, datasets: { rows, outside } };
      chart.drawn = await drawing.draw(chart.place, filled);
    } else if (chart.hasChanged) {
      const view = chart.drawn.view;
      for (const [name, value] of Object.entries(signals)) view.signal(name, value);
      await view.data("rows", rows).data("outside", outside).runAsync();
    }
    chart.hasChanged = false;
    chart.place.dataset.points = String(rows.length);
  }

  async function redraw() {
    for (const chart of charts.values()) {
      chart.drawn?.finalize();
      chart.drawn = null;
      await show(chart);
    }
  }

  // Fragments are HTML that the server has escaped by construction.
  function showFragments(fragments) {
    for (const [name, html] of Object.entries(fragments)) {
      const place = document.getElementById(name);
      if (place.dataset.html !== html) {
        place.dataset.html = html;
        place.innerHTML = html;
        place.closest("section")?.toggleAttribute("hidden", html === "");
      }
    }
  }

  async function apply(news) {
    showFragments(news.fragments);
    message.textContent = news.message;
    document.title = news.title;
    if (news.layout !== layout) setUp(news.charts);
    for (const [name, told] of Object.entries(news.charts)) take(charts.get(name), told);
    layout = news.layout;
    version = news.version;
    for (const chart of charts.values()) await show(chart);
    document.documentElement.dataset.version = String(version);
    if (news.is_over) document.documentElement.dataset.over = "true";
  }

  // null: there was no answer.
  async function newsOf(asked) {
    try {
      const answer = await fetch(`news?${new URLSearchParams(asked)}`, { cache: "no-store" });
      return answer.ok ? await answer.json() : null;
    } catch {
      return null;
    }
  }

  async function ask() {
    let isOver = false;
    try {
      if (document.hidden) return;
      const news = await newsOf({ viewer, layout, after: String(version) });
      if (news === null) {
        message.textContent =
          "No answer from bench-spark: it may have ended. This is the last that was known.";
        return;
      }
      isOver = news.is_over;
      await apply(news);
    } finally {
      if (!isOver) window.setTimeout(ask, AGAIN_MS);
    }
  }

  drawing.onOtherWidth(redraw);
  ask();
})();
