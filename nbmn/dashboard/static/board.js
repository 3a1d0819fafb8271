// The live board in the page: draws what the kernel sends; only its button sends anything back.
//
// Each change carries the whole window, so frames are free to be skipped: changes only mark
// the board as stale, and one animation frame later the newest state is drawn.

const FLOOR_MS = 120; // between two drawings
const PAINT_MS = 30; // until Bokeh's next frame
const TICK_MS = 1000; // the kernel gives a sign at least as often
const PATIENCE = 10; // ticks without a sign, until the kernel counts as lost
const FEW_POINTS = 5;
const LOST =
  "No word from the kernel: it has ended or restarted, or this page has lost its connection. " +
  "This is what it said last.";
const SHAPES = {
  starting: '<circle cx="8" cy="8" r="5" fill="none" stroke-width="2" stroke-dasharray="2.5 2.7"/>',
  idle: '<circle cx="8" cy="8" r="5" fill="none" stroke-width="2"/>',
  running: '<path d="M4 2.5v11l9.5-5.5z"/>',
  waiting: '<path d="M3.5 3h3v10h-3zM9.5 3h3v10h-3z"/>',
  failed: '<path d="M3.5 3.5l9 9m0-9l-9 9" fill="none" stroke-width="3" stroke-linecap="round"/>',
  silent:
    '<path d="M5 5.6C5 2 11.2 2 11.2 5.6 11.2 8 8 8 8 10.3" fill="none" stroke-width="2.2" stroke-linecap="round"/><circle cx="8" cy="13.6" r="1.4" stroke="none"/>',
  done: '<path d="M2.5 8.5l4 4 7-8.5" fill="none" stroke-width="2.6" stroke-linecap="round" stroke-linejoin="round"/>',
  interrupted: '<path d="M3.5 3.5h9v9h-9z"/>',
};
SHAPES.killed = SHAPES.exited = SHAPES.failed;
SHAPES.ended = SHAPES.interrupted;

// ---- Numbers: the other half of nbmn/dashboard/encoding.py

function unpack(view, layout) {
  const size = layout.reduce((sum, { points, columns }) => {
    return sum + 8 * Math.ceil((8 * points + 4 * points * columns.length) / 8);
  }, 0);
  // A page that loads in the middle of an update may see words and numbers of different moments.
  if (size !== view.byteLength) return null;
  const bytes = view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
  let offset = 0;
  return layout.map(({ points, columns }) => {
    const data = { x: new Float64Array(bytes, offset, points) };
    offset += 8 * points;
    for (const name of columns) {
      data[name] = new Float32Array(bytes, offset, points);
      offset += 4 * points;
    }
    offset += (8 - (offset % 8)) % 8;
    return data;
  });
}

// Of each curve the newest point; all of them where they are so few that no line shows them.
function dots(data, names) {
  return names.flatMap((name) => {
    const known = [...data[name].keys()].filter((i) => Number.isFinite(data[name][i]));
    const chosen = known.length > FEW_POINTS ? known.slice(-1) : known;
    return chosen.map((i) => ({ name, x: data.x[i], y: data[name][i] }));
  });
}

const LARGE = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 2 });

function shortNumber(value) {
  if (!Number.isFinite(value)) return "–";
  const size = Math.abs(value);
  if (size && (size < 1e-4 || size >= 1e12)) return value.toExponential(2);
  if (size >= 1e5) return LARGE.format(value);
  return value.toFixed(size < 1 ? 4 : Math.max(0, 3 - Math.floor(Math.log10(size))));
}

// Columns for the tooltip, which tells of a crowd's ranks together only.
function inWords(data, columns, crowd) {
  const told = columns.filter((name) => !crowd || !/^r\d+$/.test(name));
  return Object.fromEntries(
    told.map((name) => [`${name}_text`, Array.from(data[name], shortNumber)]),
  );
}

// ---- HTML

function make(tag, className, parent, text) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  parent?.append(element);
  return element;
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setLamp(element, state) {
  if (element.dataset.state === state) return;
  element.dataset.state = state;
  element.innerHTML = `<svg viewBox="0 0 16 16" aria-hidden="true">${SHAPES[state] ?? SHAPES.idle}</svg>`;
}

class Board {
  constructor(model, el) {
    this.model = model;
    this.root = make("div", "nbmn-board", el);
    this.charts = new Map();
    this.lit = new Set(); // pinned by a click
    this.pointed = null; // under the mouse
    this.drawn = 0;
    this.stale = false;
    this.closed = false;
    this.missed = 0; // ticks since the kernel's last sign
    this.lost = false;

    const head = make("div", "nbmn-head", this.root);
    this.title = make("span", "nbmn-title", head);
    const chip = make("span", "nbmn-chip", head);
    this.statusLamp = make("span", "nbmn-lamp", chip);
    this.status = make("span", "", chip);
    this.headline = make("span", "nbmn-headline", head);
    this.where = new Where(model, this.root);
    head.append(this.where.button);
    this.bar = make("div", "nbmn-bar", this.root);
    this.bar.setAttribute("role", "progressbar");
    this.fill = make("div", "nbmn-fill", this.bar);
    this.message = make("div", "nbmn-message", this.root);
    this.panels = make("div", "nbmn-panels", this.root);
    this.empty = make("div", "nbmn-empty", this.panels, "Waiting for the first step …");
    this.legend = make("div", "nbmn-legend", this.root);
    this.legendKey = "";
    this.root.append(this.where.pane);

    const stale = () => this.markStale();
    const traits = ["change:state", "change:frame", "change:figures"];
    for (const trait of traits) model.on(trait, stale);
    const alive = () => this.countMissed(0);
    model.on("change:beat", alive);
    // The front end gave the connection up, or has a new one: soon there is a sign, or never.
    const doubtful = () => this.countMissed(Math.max(this.missed, PATIENCE - 2));
    const doubts = ["comm_live_update", "destroy"];
    for (const event of doubts) model.on(event, doubtful);
    this.ticked = Date.now();
    const ticking = setInterval(() => this.tick(), TICK_MS);
    const unwatch = watchTheme(() => this.paintTheme());
    this.forget = () => {
      for (const trait of traits) model.off(trait, stale);
      model.off("change:beat", alive);
      for (const event of doubts) model.off(event, doubtful);
      clearInterval(ticking);
      unwatch();
      this.where.forget();
    };
    this.paintTheme();
  }

  get state() {
    return JSON.parse(this.model.get("state"));
  }

  // A page that slept has missed signs too: only ticks that come in time, in a page that is
  // in front, count against the kernel.
  tick() {
    const asleep = document.hidden || Date.now() - this.ticked > 3 * TICK_MS;
    this.ticked = Date.now();
    if (!this.lost) this.countMissed(asleep ? 0 : this.missed + 1);
  }

  countMissed(missed) {
    this.missed = missed;
    const lost = missed >= PATIENCE && this.state.status === "running";
    if (lost === this.lost) return;
    this.lost = lost;
    this.markStale();
  }

  markStale() {
    if (this.stale || this.closed) return;
    this.stale = true;
    const wait = Math.max(0, FLOOR_MS - (performance.now() - this.drawn));
    setTimeout(() => requestAnimationFrame(() => this.draw()), wait);
  }

  draw() {
    if (this.closed) return;
    this.stale = false;
    this.drawn = performance.now();
    const state = this.state;
    this.drawCharts(state);
    // Bokeh paints a frame or two later: words that come with it tell of the same moment.
    setTimeout(() => requestAnimationFrame(() => this.drawWords(state)), PAINT_MS);
  }

  drawWords(state) {
    if (this.closed) return;
    this.drawHead(state);
    this.drawLegend(state);
  }

  drawHead(state) {
    setText(this.title, state.title);
    const status = this.lost ? "disconnected" : state.status;
    this.root.dataset.status = status;
    setText(this.status, status);
    setLamp(this.statusLamp, this.lost ? "silent" : status);
    setText(this.headline, state.headline.join("  ·  "));
    setText(this.message, [this.lost ? LOST : "", state.message].filter(Boolean).join("\n"));
    this.bar.dataset.known = state.fraction !== null;
    this.bar.dataset.status = status;
    this.root.dataset.few = state.rows.length <= 3;
    this.where.offer(this.model.get("answers") && status === "running");
    this.fill.style.width = state.fraction === null ? "" : `${100 * state.fraction}%`;
    if (state.fraction !== null) {
      this.bar.setAttribute("aria-valuenow", String(Math.round(100 * state.fraction)));
    }
  }

  // ---- legend

  drawLegend(state) {
    const key = JSON.stringify([
      ...[state.names, state.reported, state.gpus],
      state.rows.map((row) => row.rank),
    ]);
    if (key !== this.legendKey) {
      this.legendKey = key;
      this.legend.replaceChildren();
      if (state.crowd) this.buildTiles(state);
      else this.buildTable(state);
    }
    if (state.crowd) this.fillTiles(state);
    else this.fillTable(state);
  }

  buildTable(state) {
    const table = make("table", "nbmn-table", this.legend);
    const head = make("tr", "", make("thead", "", table));
    make("th", "", head, "rank");
    make("span", "nbmn-word", make("th", "", head), "state");
    for (const name of ["iteration", ...state.names]) make("th", "nbmn-number", head, name);
    if (state.reported) make("th", "nbmn-number", head, "samples/s");
    if (state.gpus) make("th", "nbmn-wide", head, "GPU");
    make("th", "nbmn-rest", head);
    const columns = 3 + state.names.length + state.reported; // without those that go below
    const body = make("tbody", "", table);
    this.rows = state.rows.map((row) => {
      const line = make("tr", "", body);
      const name = make("td", "nbmn-rank", line);
      make("i", "nbmn-swatch", name).style.background = `var(--nbmn-rank-${row.rank % 8})`;
      name.append(`${row.rank}`);
      const cell = make("td", "nbmn-state", line);
      const lamp = make("span", "nbmn-lamp", cell);
      const word = make("span", "nbmn-word", cell);
      const numbers = [null, ...state.names, ...(state.reported ? [null] : [])].map(() =>
        make("td", "nbmn-number", line),
      );
      const gpu = state.gpus ? make("td", "nbmn-gpu nbmn-wide", line) : null;
      const detail = make("td", "nbmn-rest nbmn-dim", line);
      const below = make("tr", "nbmn-below", body);
      const told = make("td", "nbmn-dim", below);
      told.colSpan = columns;
      for (const part of [line, below]) this.listen(part, row.rank);
      return { line, lamp, word, numbers, gpu, detail, told };
    });
    this.sum = null;
    if (state.rows.length > 1) {
      const line = make("tr", "nbmn-sum", body);
      make("td", "", line, "all");
      make("td", "", line);
      make("td", "", line);
      this.sum = [...state.names, ...(state.reported ? [null] : [])].map(() =>
        make("td", "nbmn-number", line),
      );
      if (state.gpus) make("td", "nbmn-wide", line);
      make("td", "nbmn-rest", line);
    }
  }

  fillTable(state) {
    state.rows.forEach((row, index) => {
      const { lamp, word, numbers, gpu, detail, told } = this.rows[index];
      setLamp(lamp, row.lamp);
      setText(word, row.lamp);
      const texts = [row.iteration, ...row.values, ...(state.reported ? [row.rate] : [])];
      texts.forEach((text, i) => setText(numbers[i], text));
      if (gpu) setText(gpu, row.gpu || "–");
      setText(detail, row.detail);
      const does = row.detail ? `${row.lamp}: ${row.detail}` : row.lamp;
      setText(told, row.gpu ? `${does} · ${row.gpu}` : does);
    });
    const texts = [...state.means, ...(state.reported ? [state.rate] : [])];
    this.sum?.forEach((cell, i) => setText(cell, texts[i]));
  }

  buildTiles(state) {
    this.census = make("div", "nbmn-census", this.legend);
    const grid = make("div", "nbmn-tiles", this.legend);
    this.rows = state.rows.map((row) => {
      const line = make("div", "nbmn-tile", grid);
      const lamp = make("span", "nbmn-lamp", line);
      make("span", "", line, `${row.rank}`);
      this.listen(line, row.rank);
      return { line, lamp };
    });
    this.about = make("div", "nbmn-about nbmn-dim", this.legend);
  }

  fillTiles(state) {
    const counts = new Map();
    state.rows.forEach((row, index) => {
      const { line, lamp } = this.rows[index];
      setLamp(lamp, row.lamp);
      line.dataset.state = row.lamp;
      line.title = describe(state, row);
      counts.set(row.lamp, (counts.get(row.lamp) ?? 0) + 1);
    });
    const words = [...counts].sort((a, b) => b[1] - a[1]);
    const key = JSON.stringify(words);
    if (this.census.dataset.key !== key) {
      this.census.dataset.key = key;
      this.census.replaceChildren(make("b", "", null, `${state.rows.length} ranks`));
      for (const [name, count] of words) {
        const part = make("span", "nbmn-count", this.census);
        setLamp(make("span", "nbmn-lamp", part), name);
        part.append(`${count} ${name}`);
      }
    }
    const chosen = state.rows.filter((row) => row.rank === this.pointed || this.lit.has(row.rank));
    setText(
      this.about,
      chosen.length
        ? chosen.slice(0, 4).map((row) => describe(state, row)).join("\n")
        : "Point at a rank to see its curve, click to keep it.",
    );
  }

  // ---- pointing at a rank

  listen(line, rank) {
    line.addEventListener("mouseenter", () => this.point(rank));
    line.addEventListener("mouseleave", () => this.point(null));
    line.addEventListener("click", () => {
      if (!this.lit.delete(rank)) this.lit.add(rank);
      this.point(this.pointed);
    });
  }

  point(rank) {
    this.pointed = rank;
    const state = this.state;
    state.rows.forEach((row, index) => {
      this.rows[index].line.classList.toggle("nbmn-lit", this.lit.has(row.rank));
    });
    if (state.crowd) this.fillTiles(state);
    for (const chart of this.charts.values()) this.paintChart(chart);
  }

  // ---- charts

  drawCharts(state) {
    const figures = this.model.get("figures");
    if (figures !== this.figures) {
      this.figures = figures;
      this.buildCharts(JSON.parse(figures));
    }
    const tables = unpack(this.model.get("frame"), state.charts);
    if (tables === null) return;
    state.charts.forEach((layout, index) => {
      const chart = this.charts.get(layout.key);
      if (!chart) return;
      chart.layout = layout;
      chart.data = tables[index];
      this.drawLatest(chart);
      this.fillChart(chart);
    });
  }

  buildCharts(figures) {
    this.empty.hidden = figures.length > 0;
    const wanted = new Set(figures.map(({ key }) => key));
    for (const [key, chart] of this.charts) if (!wanted.has(key)) this.dropChart(key, chart);
    figures.forEach(({ key, item }, index) => {
      let chart = this.charts.get(key);
      if (!chart) {
        const panel = make("div", "nbmn-panel", this.panels);
        const head = make("div", "nbmn-panel-head", panel);
        make("span", "nbmn-panel-name", head, key);
        chart = { key, panel, latest: make("span", "nbmn-latest", head), plot: null };
        chart.plot = make("div", "nbmn-plot", panel);
        this.charts.set(key, chart);
      }
      chart.panel.style.order = String(index);
      const text = JSON.stringify(item);
      if (chart.item !== text) this.embed(chart, item);
      chart.item = text;
    });
  }

  embed(chart, item) {
    const turn = (chart.turn = (chart.turn ?? 0) + 1);
    // One after the other: what is still being drawn cannot be cleared away.
    chart.drawing = Promise.resolve(chart.drawing).then(() => this.drawChart(chart, item, turn));
  }

  async drawChart(chart, item, turn) {
    const over = () => turn !== chart.turn || this.closed;
    let known = [];
    try {
      const runtime = await findRuntime(this.model);
      this.bokeh = await loadBokeh(runtime);
      await connected(chart.plot, over);
      if (over()) return;
      this.paintTheme(); // styles do not count before the board is on the page
      this.clear(chart);
      chart.plot.replaceChildren();
      known = [...this.bokeh.documents];
      const views = await this.bokeh.embed.embed_item(item, chart.plot);
      chart.views = views;
      chart.doc = [...views][0].model.document;
      if (over()) {
        this.clear(chart);
        return;
      }
      this.paintChart(chart);
      if (chart.data) this.fillChart(chart);
    } catch (error) {
      const half = (doc) => doc.roots()[0]?.id === item.root_id && !known.includes(doc);
      this.remove(this.bokeh?.documents.find(half));
      if (over()) return;
      // Bokeh draws only what is on the page, and a board may be moved meanwhile.
      if (!chart.plot.isConnected) return this.drawChart(chart, item, turn);
      console.error("nbmn: the chart cannot be drawn", error);
      chart.plot.replaceChildren(make("div", "nbmn-message", null, `The chart cannot be drawn: ${error}`));
    }
  }

  clear(chart) {
    chart.views?.clear();
    this.remove(chart.doc);
    chart.views = chart.doc = undefined;
  }

  remove(doc) {
    const { documents } = this.bokeh ?? { documents: [] };
    if (documents.includes(doc)) documents.splice(documents.indexOf(doc), 1);
  }

  dropChart(key, chart) {
    chart.turn += 1; // it may be being drawn
    this.clear(chart);
    chart.panel.remove();
    this.charts.delete(key);
  }

  drawLatest(chart) {
    chart.latest.replaceChildren();
    for (const [style, name, text] of chart.layout.latest) {
      const part = make("span", "nbmn-stat", chart.latest);
      if (style) make("i", `nbmn-key nbmn-key-${style}`, part);
      if (name) make("span", "nbmn-dim", part, text ? `${name} ` : name);
      if (text) make("b", "", part, text);
    }
  }

  fillChart(chart) {
    const { doc, data, layout } = chart;
    const points = doc?.get_model_by_name("points");
    if (!points || !data || !layout.columns.every((name) => name in points.data)) return;
    points.data = { ...data, ...inWords(data, layout.columns, this.state.crowd) };
    const { crowd } = this.state;
    const dotted = layout.columns.filter((name) =>
      /^r\d+$/.test(name) ? !crowd : name.startsWith("other") || (name === "mean" && crowd),
    );
    const found = dots(data, dotted);
    doc.get_model_by_name("dots").data = {
      x: found.map(({ x }) => x),
      y: found.map(({ y }) => y),
      color: found.map(({ name }) => this.dotColor(name)),
    };
    const plot = doc.get_model_by_name(layout.key);
    if (plot) [plot.y_range.start, plot.y_range.end] = layout.limits;
    const axis = plot?.below?.[0];
    if (axis && axis.axis_label !== layout.x_label) axis.axis_label = layout.x_label;
  }

  // ---- colours

  color(rank) {
    return this.colors[`rank-${rank % 8}`];
  }

  dotColor(name) {
    return name.startsWith("r") ? this.color(Number(name.slice(1))) : this.colors.text;
  }

  paintTheme() {
    document.body.dataset.nbmnTheme = isDark() ? "dark" : "light";
    const style = getComputedStyle(this.root);
    const names = ["text", "dim", "accent", ...Array.from({ length: 8 }, (_, i) => `rank-${i}`)];
    this.colors = {};
    for (const name of names) this.colors[name] = style.getPropertyValue(`--nbmn-${name}`).trim();
    for (const chart of this.charts.values()) this.paintChart(chart);
    this.markStale();
  }

  paintChart({ doc, key }) {
    const plot = doc?.get_model_by_name(key);
    if (!plot) return;
    const { text, dim, accent } = this.colors;
    for (const axis of [...plot.below, ...plot.left, ...plot.right]) {
      if (!("axis_label_text_color" in axis)) continue;
      axis.axis_label_text_color = dim;
      axis.major_label_text_color = dim;
    }
    const crowd = this.state.crowd;
    const faint = Math.min(0.2, 5 / this.state.rows.length);
    const some = this.pointed !== null || this.lit.size > 0;
    for (const renderer of plot.renderers) {
      const { name, glyph } = renderer;
      if (name === "mean" || name.startsWith("other ")) {
        glyph.line_color = text;
      } else if (name.startsWith("rank ")) {
        const rank = Number(name.slice(5));
        const lit = rank === this.pointed || this.lit.has(rank);
        glyph.line_color = crowd ? (lit ? accent : this.colors["rank-0"]) : this.color(rank);
        glyph.line_alpha = lit ? 1 : crowd ? (some ? faint / 2 : faint) : some ? 0.2 : 0.9;
        glyph.line_width = lit ? 2.5 : crowd ? 1 : 1.5;
        renderer.level = lit ? "annotation" : "glyph";
      }
    }
  }

  close() {
    this.closed = true;
    this.forget();
    for (const [key, chart] of this.charts) this.dropChart(key, chart);
  }
}

function describe(state, row) {
  const parts = [`rank ${row.rank}: ${row.lamp}${row.detail ? ` (${row.detail})` : ""}`];
  parts.push(`iteration ${row.iteration}`);
  state.names.forEach((name, i) => parts.push(`${name} ${row.values[i]}`));
  if (state.reported) parts.push(`${row.rate} samples/s`);
  if (row.gpu) parts.push(`GPU ${row.gpu}`);
  return parts.join(", ");
}

// One per widget. When the static half of the output is renewed, JupyterLab throws the view's
// elements away and asks for a new view: the same board then moves into it, charts and all.
export default () => {
  const boards = new Set();

  function render({ model, el }) {
    let board = [...boards].find((candidate) => !candidate.root.isConnected);
    if (board) el.append(board.root);
    else boards.add((board = new Board(model, el)));
    board.owner = el;
    return () => {
      if (board.owner !== el) return; // it has moved on
      boards.delete(board);
      board.close();
    };
  }

  return { render };
};
