"use strict";
// Plots are drawn one after the other, so that the page can be read and scrolled meanwhile; each
// when the page is laid out, so that it knows its width.
const plots = [...document.querySelectorAll(".plot")];
const drawing = (plot) => plot.querySelector(".drawing");
const fine = matchMedia("(pointer: fine)").matches;

function draw(plot) {
  const { data, layout } = JSON.parse(plot.querySelector("script").textContent);
  // On a touch screen a finger on a plot scrolls the page.
  layout.dragmode = fine ? "zoom" : false;
  return Plotly.newPlot(drawing(plot), data, layout, { responsive: true, displayModeBar: false });
}

async function drawAll() {
  for (const plot of plots) {
    await draw(plot);
    await new Promise((then) => setTimeout(then));
  }
  document.documentElement.dataset.drawn = plots.length;
}

// The names above the plots switch their lines off and on.
for (const button of document.querySelectorAll(".legend button"))
  button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", on);
    for (const plot of button.closest("section").querySelectorAll(".js-plotly-plot")) {
      const lines = plot.data.flatMap((line, i) => (String(line.meta) === button.value ? [i] : []));
      if (lines.length) Plotly.restyle(plot, { visible: on }, lines);
    }
  });

for (const button of document.querySelectorAll(".save button"))
  button.addEventListener("click", () => {
    const plot = button.closest(".plot");
    Plotly.downloadImage(drawing(plot), {
      format: button.value, filename: plot.dataset.name, width: 640, height: 400, scale: 3,
    });
  });

// On paper two plots stand side by side.
addEventListener("beforeprint", () => {
  document.documentElement.classList.add("printing");
  for (const plot of document.querySelectorAll(".js-plotly-plot"))
    Plotly.relayout(plot, { autosize: false, width: 340, height: 250 });
});
addEventListener("afterprint", () => {
  document.documentElement.classList.remove("printing");
  for (const plot of document.querySelectorAll(".js-plotly-plot"))
    Plotly.relayout(plot, { autosize: true, width: null, height: null });
});

drawAll();
