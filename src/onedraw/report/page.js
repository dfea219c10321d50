(() => {
  "use strict";
  const slider = document.getElementById("eps");
  const source = document.getElementById("positions");
  if (!slider || !source) return;
  const data = JSON.parse(source.textContent);
  const rows = [...document.querySelectorAll("#summary tbody tr")].map(row => [...row.querySelectorAll("td")]);
  const drawings = [...document.querySelectorAll(".marginal")];
  const told = document.getElementById("told"), effective = document.getElementById("effective");
  const call = document.getElementById("call-at");
  function show(at) {
    const eps = data.eps[at];
    told.textContent = eps;
    effective.textContent = data.effective[at];
    call.textContent = `post.at(${data.exact[at]})`;
    slider.setAttribute("aria-valuetext", `tolerance ${eps}, effective number of weights ${data.effective[at]}`);
    rows.forEach((cells, i) => cells.forEach((cell, j) => { cell.textContent = data.cells[at][i][j]; }));
    drawings.forEach((drawing, i) => {
      drawing.querySelector(".posterior").setAttribute("d", data.paths[i][at]);
      const prior = drawing.querySelector(".prior");
      if (prior) prior.setAttribute("d", data.priors[i][at]);
      const [low, high, mean] = data.bars[i][at];
      const bar = drawing.querySelector(".interval");
      bar.setAttribute("x", low);
      bar.setAttribute("width", Math.max(high - low, 0));
      drawing.querySelector(".mean").setAttribute("cx", mean);
    });
  }
  slider.addEventListener("input", () => show(Number(slider.value)));
  // A browser may bring back the place of the slider with the page.
  show(Number(slider.value));
})();
