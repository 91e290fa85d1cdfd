"use strict";
// Draws the charts in the colours of the page, links the axes of each group, and runs the sliders.
{
  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const box = (number) => document.getElementById(`drawing-${number}`);
  const touch = matchMedia("(pointer: coarse)").matches;
  const config = {
    displaylogo: false,
    displayModeBar: touch ? false : "hover",
    responsive: true,
    modeBarButtons: [["toImage", "resetScale2d"]], // no default buttons: one of them sends the data to plotly's servers
    plotlyServerURL: "",
  };

  // Returns a value of a figure with the page's colours filled in; other texts may come from users and stay unchanged.
  const painted = (value, key, css) => {
    if (ArrayBuffer.isView(value)) return value;
    if (Array.isArray(value)) return value.map((one) => painted(one, key, css));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, painted(one, name, css)]));
    const colour = typeof value === "string" && value.startsWith("--") && /color/.test(key);
    return colour ? css.getPropertyValue(value).trim() : value;
  };

  const draw = () => {
    const css = getComputedStyle(document.documentElement);
    drawings.forEach(({ figure }, number) => {
      if (!figure) return;
      const { data, layout } = painted(figure, "", css);
      const before = box(number).layout; // keep the zoom when the page changes between light and dark
      for (const axis of before ? ["xaxis", "yaxis"] : [])
        Object.assign(layout[axis], { range: before[axis].range, autorange: before[axis].autorange });
      if (touch) layout.dragmode = false; // dragging with a finger scrolls the page
      Plotly.react(box(number), data, layout, config);
    });
  };

  const numbers = ({ dtype, bdata }) =>
    new (dtype === "f8" ? Float64Array : Float32Array)(Uint8Array.from(atob(bdata), (c) => c.charCodeAt(0)).buffer);

  const move = (number, frame) => {
    const { figure, frames } = drawings[number];
    if (frames.images) {
      box(number).src = frames.images[frame];
      return;
    }
    const moved = figure.data[1];
    for (const name of ["x", "y"]) {
      if (!frames[name]) continue;
      if (frames[name].bdata) frames[name] = numbers(frames[name]);
      const size = frames[name].length / frames.labels.length;
      moved[name] = frames[name].slice(frame * size, (frame + 1) * size);
    }
    Plotly.restyle(box(number), { x: [moved.x], y: [moved.y] }, [1]);
  };

  const together = () => {
    let moving = false;
    drawings.forEach(({ figure, group }, number) => {
      if (!figure || !group) return;
      box(number).on("plotly_relayout", (change) => {
        const axes = Object.fromEntries(Object.entries(change).filter(([name]) => /^[xy]axis\.(auto)?range/.test(name)));
        if (moving || !Object.keys(axes).length) return;
        moving = true;
        const others = [...drawings.keys()].filter((other) => other !== number && drawings[other].group === group);
        Promise.all(others.map((other) => Plotly.relayout(box(other), axes))).finally(() => (moving = false));
      });
    });
  };

  for (const slider of document.querySelectorAll("input[data-moves]")) {
    const number = Number(slider.dataset.moves);
    const [play, label] = [slider.previousElementSibling, slider.nextElementSibling];
    let timer = null;
    const show = () => {
      label.textContent = `draw ${drawings[number].frames.labels[slider.value]}`;
      slider.setAttribute("aria-valuetext", label.textContent);
      move(number, Number(slider.value));
    };
    const stop = () => {
      clearInterval(timer);
      timer = null;
      play.textContent = "Play";
    };
    slider.addEventListener("input", () => (stop(), show()));
    play.addEventListener("click", () => {
      if (timer) return stop();
      if (slider.value === slider.max) slider.value = 0;
      play.textContent = "Pause";
      timer = setInterval(() => {
        slider.value = Number(slider.value) + 1;
        show();
        if (slider.value === slider.max) stop();
      }, 120);
    });
  }

  // Plotly is stored compressed, at a third of its size; the page's policy admits it by the digest of its text.
  const library = async () => {
    const packed = Uint8Array.from(atob(document.getElementById("library").textContent), (c) => c.charCodeAt(0));
    const text = await new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  };

  library().then(() => {
    draw();
    together();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  });
}
