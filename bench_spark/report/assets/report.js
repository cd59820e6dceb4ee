"use strict";
// Draws the charts of this page from the data that is in it. Colours are CSS variables, so a change
// between light and dark needs nothing of this.
(function () {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const LABEL_PIXELS = 7.2;
  const SYMBOL_PIXELS = 34;
  let width = 0;

  // As many legend entries beside each other as fit.
  function legendColumns(labels, available) {
    const longest = Math.max(1, ...labels.map((label) => label.length));
    const fitting = Math.floor(available / (longest * LABEL_PIXELS + SYMBOL_PIXELS));
    return Math.max(1, Math.min(labels.length, fitting));
  }

  function draw(name) {
    const element = document.getElementById(name);
    const spec = structuredClone(charts[name]);
    spec.config.legend.columns = legendColumns(spec.usermeta.legend, element.clientWidth);
    // `ast`: Vega interprets its expressions instead of compiling them, which the page's
    // Content-Security-Policy would not allow.
    const options = { ast: true, actions: false, renderer: "svg", tooltip: { theme: "custom" } };
    return window.vegaEmbed(element, spec, options);
  }

  async function drawAll() {
    width = document.body.clientWidth;
    for (const name of Object.keys(charts)) {
      await draw(name);
    }
    document.documentElement.dataset.drawn = String(width);
  }

  function copyOf(button) {
    const text = document.getElementById(button.dataset.copies).textContent;
    return navigator.clipboard.writeText(text).then(
      () => { button.textContent = "copied"; },
      () => { button.textContent = "select the text to copy it"; },
    );
  }

  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", () => copyOf(button));
  }
  let waiting = 0;
  window.addEventListener("resize", () => {
    window.clearTimeout(waiting);
    waiting = window.setTimeout(() => {
      if (document.body.clientWidth !== width) drawAll();
    }, 150);
  });
  drawAll();
})();
