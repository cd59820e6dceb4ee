"use strict";
// How a chart is drawn, in every page. Colours are CSS variables, so a change between light and dark
// needs nothing of this.
const drawing = (function () {
  const LABEL_PIXELS = 7.2;
  const SYMBOL_PIXELS = 34;

  // As many legend entries beside each other as fit.
  function legendColumns(labels, available) {
    const longest = Math.max(1, ...labels.map((label) => label.length));
    const fitting = Math.floor(available / (longest * LABEL_PIXELS + SYMBOL_PIXELS));
    return Math.max(1, Math.min(labels.length, fitting));
  }

  function draw(element, original) {
    const spec = structuredClone(original);
    spec.config.legend.columns = legendColumns(spec.usermeta.legend, element.clientWidth);
    // `ast`: Vega interprets its expressions instead of compiling them, which the page's
    // Content-Security-Policy would not allow.
    const options = { ast: true, actions: false, renderer: "svg", tooltip: { theme: "custom" } };
    return window.vegaEmbed(element, spec, options);
  }

  // Calls `redraw` when the window has got another width, and has kept it for a moment.
  function onOtherWidth(redraw) {
    let width = document.body.clientWidth;
    let waiting = 0;
    window.addEventListener("resize", () => {
      window.clearTimeout(waiting);
      waiting = window.setTimeout(() => {
        if (document.body.clientWidth === width) return;
        width = document.body.clientWidth;
        redraw();
      }, 150);
    });
  }

  return { draw, onOtherWidth };
})();
