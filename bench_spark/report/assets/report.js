"use strict";
// Draws the charts of this page from the data that is in it.
(function () {
  const charts = JSON.parse(document.getElementById("charts").textContent);

  async function drawAll() {
    for (const [name, spec] of Object.entries(charts)) {
      await drawing.draw(document.getElementById(name), spec);
    }
    document.documentElement.dataset.drawn = String(document.body.clientWidth);
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
  drawing.onOtherWidth(drawAll);
  drawAll();
})();
