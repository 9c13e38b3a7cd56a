
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const chart = byId("chart"), lanes = byId("lanes"), overview = byId("overview"), tip = byId("tip"), detail = byId("detail");
  const LEFT = 96, TOP = 26, FAULT = 20, LANE = 36, OVERVIEW = 46, BAR = 18, SMALLEST = 2;
  // Faults that overlap stand below each other.
  const ends = [];
  const rowOf = new Map();
  for (const fault of data.faults.slice().sort((a, b) => a[1] - b[1])) {
    let row = ends.findIndex((end) => end <= fault[1]);
    if (row < 0) row = Math.min(ends.length, 3);
    ends[row] = fault[2];
    rowOf.set(fault, row);
  }
  // Shaded once, however many strike at the same time.
  const merged = (faults) => faults.map((one) => [one[1], one[2]]).sort((a, b) => a[0] - b[0]).reduce((done, [from, to]) => {
    const last = done[done.length - 1];
    if (last && from <= last[1]) last[1] = Math.max(last[1], to); else done.push([from, to]);
    return done;
  }, []);
  const broken = merged(data.faults), everywhere = merged(data.faults.filter((one) => !one[3].length));
  const FAULTS = 10 + FAULT * Math.max(ends.length, 1);
  const height = TOP + FAULTS + data.workers.length * LANE + 24;
  const whole = Math.max(data.ends, 1);
  const view = { from: 0, to: whole };
  const proven = data.violations.filter((one) => one.proven);
  const steps = (proven.length ? proven : data.violations).slice().sort((a, b) => a.at - b.at);
  let chosen = null, hover = null, targets = [], ink = {};

  // Colours come from the page, so that light and dark are decided in one place.
  const readInk = () => {
    const style = getComputedStyle(document.documentElement);
    for (const name of ["paper", "card", "ink", "soft", "faint", "line", "well", "held", "violated", "violated-back", "unknown", "accent", "fault", "fault-back"]) {
      ink[name] = style.getPropertyValue("--" + name).trim();
    }
    ink.names = [0, 1, 2, 3, 4, 5].map((n) => style.getPropertyValue("--name-" + n).trim());
  };
  const colour = (name) => ink.names[name % ink.names.length];

  const seconds = (ms, digits = 3) => (ms / 1000).toFixed(digits) + " s";
  const span = (ms) => (ms < 1000 ? ms.toFixed(ms < 10 ? 2 : 0) + " ms" : (ms / 1000).toFixed(2) + " s");
  const width = () => lanes.clientWidth;
  const x = (ms) => LEFT + ((ms - view.from) / (view.to - view.from)) * (width() - LEFT);
  const time = (px) => view.from + ((px - LEFT) / (width() - LEFT)) * (view.to - view.from);
  const lane = (worker) => TOP + FAULTS + worker * LANE;

  const fit = (canvas, tall) => {
    const ratio = window.devicePixelRatio || 1, wide = canvas.clientWidth;
    canvas.style.height = tall + "px";
    if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(tall * ratio)) {
      canvas.width = Math.round(wide * ratio);
      canvas.height = Math.round(tall * ratio);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, wide, tall);
    return pen;
  };

  const tick = (range) => {
    const raw = range / Math.max((width() - LEFT) / 110, 1), power = 10 ** Math.floor(Math.log10(raw));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw);
  };

  // Rows are in the order of their beginning; `reach` is the longest of them: no need to look at what ended long before.
  const index = (rows, from, to) => {
    rows.sort((a, b) => a[from] - b[from]);
    return { rows, from, to, reach: rows.reduce((most, row) => Math.max(most, row[to] - row[from]), 0) };
  };
  const inView = function* (indexed) {
    const { rows, from, to, reach } = indexed;
    let low = 0, high = rows.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (rows[middle][from] < view.from - reach) low = middle + 1; else high = middle;
    }
    for (let i = low; i < rows.length && rows[i][from] <= view.to; i++) if (rows[i][to] >= view.from) yield rows[i];
  };
  const all = { leases: index(data.leases, 2, 3), waits: index(data.waits, 2, 3), faults: index(data.faults, 1, 2), marks: index(data.marks, 1, 1) };

  const cut = (pen, text, room) => {
    if (pen.measureText(text).width <= room) return text;
    let keep = text.length;
    while (keep > 0 && pen.measureText(text.slice(0, keep) + "…").width > room) keep--;
    return keep ? text.slice(0, keep) + "…" : "";
  };
  const round = (pen, px, py, wide, tall, r) => {
    pen.beginPath();
    pen.roundRect(px, py, wide, tall, Math.min(r, wide / 2));
    pen.fill();
  };
  const aim = (px, py, wide, tall, what) => targets.push([px - 2, py - 2, wide + 4, tall + 4, what]);

  const grid = (pen) => {
    const step = tick(view.to - view.from), digits = Math.max(0, 3 - Math.floor(Math.log10(step)));
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
      pen.fillStyle = ink.line;
      pen.fillRect(x(at), TOP, 1, height - TOP - 24);
      pen.fillStyle = ink.faint;
      pen.textAlign = "center";
      pen.fillText((at / 1000).toFixed(Math.min(digits, 4)) + " s", Math.min(Math.max(x(at), LEFT + 18), width() - 20), height - 11);
    }
  };
  const hatch = (pen, px, py, wide, tall) => {
    pen.save();
    pen.beginPath();
    pen.rect(px, py, wide, tall);
    pen.clip();
    pen.strokeStyle = ink.fault;
    pen.globalAlpha = 0.55;
    pen.lineWidth = 1;
    pen.beginPath();
    for (let at = Math.floor((px - tall) / 7) * 7; at < Math.min(px + wide, width()); at += 7) {
      if (at + tall < LEFT) continue;
      pen.moveTo(at, py + tall);
      pen.lineTo(at + tall, py);
    }
    pen.stroke();
    pen.restore();
  };
  const drawFaults = (pen) => {
    pen.fillStyle = ink["fault-back"];
    for (const [from, to] of everywhere) pen.fillRect(x(from), TOP + FAULTS, Math.max(x(to) - x(from), SMALLEST), data.workers.length * LANE);
    for (const fault of inView(all.faults)) {
      const [name, from, to, workers, struck] = fault;
      const left = x(from), wide = Math.max(x(to) - left, SMALLEST);
      pen.fillStyle = ink["fault-back"];
      for (const worker of workers) { pen.fillRect(left, lane(worker), wide, LANE); hatch(pen, left, lane(worker), wide, LANE); }
      const y = TOP + 7 + rowOf.get(fault) * FAULT;
      pen.fillStyle = ink.fault;
      round(pen, left, y, wide, 16, 4);
      const label = cut(pen, name, wide - 8);
      pen.fillStyle = ink.card;
      pen.textAlign = "left";
      if (label) pen.fillText(label, Math.max(left, LEFT) + 5, y + 8.5);
      aim(left, y, wide, 16, { kind: "fault", name, from, to, struck });
    }
  };
  const drawWaits = (pen) => {
    for (const [worker, name, from, to, end] of inView(all.waits)) {
      const left = x(from), wide = Math.max(x(to) - left, 1), y = lane(worker) + LANE / 2;
      pen.fillStyle = end === "unknown" || end === "failed" || end === "cut off" ? ink.unknown : ink.faint;
      pen.fillRect(left, y - 1, wide, 2);
      aim(left, y - 4, wide, 8, { kind: "wait", worker, name, from, to, end });
    }
  };
  // Tokens that are clocks begin alike: where there is little room, their last digits tell them apart.
  const tail = (pen, text, room) => {
    if (pen.measureText(text).width <= room) return text;
    let keep = text.length;
    while (keep > 0 && pen.measureText("…" + text.slice(-keep)).width > room) keep--;
    return keep ? "…" + text.slice(-keep) : "";
  };
  const drawLeases = (pen) => {
    for (const [worker, name, from, to, how, token, mode] of inView(all.leases)) {
      const left = x(from), wide = Math.max(x(to) - left, SMALLEST), y = lane(worker) + (LANE - BAR) / 2;
      pen.fillStyle = colour(name);
      pen.globalAlpha = mode === "exclusive" ? 1 : 0.62;
      round(pen, left, y, wide, BAR, 4);
      pen.globalAlpha = 1;
      const label = token && wide > 26 ? tail(pen, token, Math.min(x(to), width()) - Math.max(left, LEFT) - 10) : "";
      if (label) { pen.fillStyle = ink.card; pen.textAlign = "left"; pen.fillText(label, Math.max(left, LEFT) + 5, y + BAR / 2 + 0.5); }
      if (how !== "released") {
        const end = left + wide, middle = y + BAR / 2;
        pen.strokeStyle = how === "lost" ? ink.violated : ink.ink;
        pen.lineWidth = 2;
        pen.beginPath();
        if (how === "lost") { pen.moveTo(end, y - 3); pen.lineTo(end, y + BAR + 3); }
        else { pen.moveTo(end - 4, middle - 4); pen.lineTo(end + 4, middle + 4); pen.moveTo(end + 4, middle - 4); pen.lineTo(end - 4, middle + 4); }
        pen.stroke();
      }
      aim(left, y, wide, BAR, { kind: "lease", worker, name, from, to, how, token, mode });
    }
  };
  const drawMarks = (pen) => {
    const near = view.to - view.from < 60000 || data.marks.length < 2000;
    for (const [worker, at, what, side, token, more] of inView(all.marks)) {
      if (what === "wrote" && !near) continue;
      const px = x(at), y = lane(worker) + LANE - 5;
      pen.fillStyle = what === "refused" ? ink.violated : what === "wrote" ? ink.soft : what === "unknown" ? ink.unknown : ink.ink;
      pen.beginPath();
      if (what === "refused") { pen.moveTo(px, y - 5); pen.lineTo(px + 5, y); pen.lineTo(px, y + 5); pen.lineTo(px - 5, y); }
      else if (what === "lost") continue;
      else pen.arc(px, y, 1.6, 0, 7);
      pen.fill();
      aim(px - 4, y - 4, 8, 8, { kind: "mark", worker, at, what, side, token, more });
    }
  };
  const drawViolations = (pen) => {
    data.violations.forEach((one) => {
      if (one.at < view.from || one.at > view.to) return;
      const px = x(one.at), strong = one === chosen, shade = one.proven ? ink.violated : ink.fault;
      pen.fillStyle = shade;
      if (one.proven || strong) {
        const left = Math.max(x(one.from), LEFT);
        pen.globalAlpha = strong ? 0.2 : 0.06;
        for (const worker of one.workers) pen.fillRect(left, lane(worker), Math.max(x(one.to) - left, 3), LANE);
        pen.globalAlpha = strong ? 1 : 0.55;
        pen.fillRect(px - (strong ? 1 : 0.5), TOP - 4, strong ? 2 : 1, height - TOP - 20);
        pen.globalAlpha = 1;
      }
      pen.beginPath();
      pen.moveTo(px, TOP);
      pen.lineTo(px - 7, TOP - 13);
      pen.lineTo(px + 7, TOP - 13);
      pen.fill();
      aim(px - 7, TOP - 14, 14, 15, { kind: "violation", one });
    });
  };
  const drawNames = (pen) => {
    pen.fillStyle = ink.card;
    pen.fillRect(0, 0, LEFT - 1, height);
    pen.textAlign = "left";
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = ink.soft;
    if (data.violations.length) pen.fillText("violations", 14, TOP - 8);
    pen.fillText("faults", 14, TOP + 15);
    pen.font = "600 12.5px system-ui, sans-serif";
    data.workers.forEach((worker, n) => {
      pen.fillStyle = ink.line;
      pen.fillRect(0, lane(n), width(), 1);
      pen.fillStyle = ink.ink;
      pen.fillText(cut(pen, worker, LEFT - 24), 14, lane(n) + LANE / 2);
    });
    pen.fillStyle = ink.line;
    pen.fillRect(LEFT - 1, 0, 1, height);
  };
  const drawOverview = () => {
    const pen = fit(overview, OVERVIEW), wide = overview.clientWidth - LEFT, at = (ms) => LEFT + (ms / whole) * wide;
    // How many held in each slice of time, so that a stretch without holders shows.
    const slices = new Float32Array(Math.max(Math.ceil(wide / 2), 1)), each = whole / slices.length;
    for (const row of data.leases) for (let i = Math.floor(row[2] / each); i <= Math.min(row[3] / each, slices.length - 1); i++) slices[i] += Math.min(row[3], (i + 1) * each) - Math.max(row[2], i * each);
    const most = Math.max(each, ...slices);
    for (const [from, to] of broken) { pen.fillStyle = ink["fault-back"]; pen.fillRect(at(from), 0, Math.max(at(to) - at(from), 1), OVERVIEW); }
    pen.fillStyle = ink.accent;
    pen.globalAlpha = 0.55;
    slices.forEach((held, i) => { const tall = (held / most) * (OVERVIEW - 18); pen.fillRect(LEFT + i * 2, OVERVIEW - 4 - tall, 1.5, tall); });
    pen.globalAlpha = 1;
    for (const one of data.violations) { pen.fillStyle = one.proven ? ink.violated : ink.fault; pen.fillRect(at(one.at) - 1, 0, 2, one.proven ? OVERVIEW : 8); }
    pen.fillStyle = ink.paper;
    pen.globalAlpha = 0.66;
    pen.fillRect(LEFT, 0, at(view.from) - LEFT, OVERVIEW);
    pen.fillRect(at(view.to), 0, overview.clientWidth - at(view.to), OVERVIEW);
    pen.globalAlpha = 1;
    pen.strokeStyle = ink.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(at(view.from) + 0.75, 0.75, Math.max(at(view.to) - at(view.from) - 1.5, 2), OVERVIEW - 1.5);
    pen.fillStyle = ink.soft;
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    pen.fillText("whole run", 14, OVERVIEW / 2);
  };

  let pending = false;
  const draw = () => {
    pending = false;
    targets = [];
    const pen = fit(lanes, height);
    grid(pen);
    drawFaults(pen);
    drawWaits(pen);
    drawLeases(pen);
    drawMarks(pen);
    drawViolations(pen);
    drawNames(pen);
    drawOverview();
    byId("range").textContent = seconds(view.from, 2) + " – " + seconds(view.to, 2);
    chart.dataset.from = view.from;
    chart.dataset.to = view.to;
  };
  const redraw = () => { if (!pending) { pending = true; requestAnimationFrame(draw); } };

  const show = (from, to) => {
    const wide = Math.min(Math.max(to - from, 0.5), whole);
    view.from = Math.min(Math.max(from, 0), whole - wide);
    view.to = view.from + wide;
    redraw();
  };
  const zoom = (factor, around = (view.from + view.to) / 2) => show(around - (around - view.from) * factor, around + (view.to - around) * factor);
  const move = (part) => { const by = (view.to - view.from) * part; show(view.from + by, view.to + by); };

  const element = (tag, text, ...inner) => {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    made.append(...inner);
    return made;
  };
  const choose = (one) => {
    chosen = one;
    const room = Math.max((one.to - one.from) * 0.4, 150);
    show(one.from - room, one.to + room);
    const rows = one.events.map((row) => element("tr", "", element("td", seconds(row[0])), ...row.slice(1).map((cell) => element("td", cell))));
    detail.replaceChildren(element("h3", one.property + (one.proven ? ": violated" : ": shown, not held against it")), element("p", one.text), element("table", "", element("tbody", "", ...rows)));
    detail.className = one.proven ? "violation" : "";
    detail.hidden = false;
    chart.dataset.chosen = data.violations.indexOf(one);
  };
  const words = (what) => {
    const who = what.worker === undefined ? "" : data.workers[what.worker], name = what.name === undefined ? "" : "“" + data.names[what.name] + "”";
    switch (what.kind) {
      case "violation": return what.one.property + "\n" + what.one.text;
      case "fault": return what.name + (what.struck ? "\nstruck " + what.struck : "") + "\n" + seconds(what.from) + ", for " + span(what.to - what.from);
      case "wait": return who + " asked for " + name + "\n" + span(what.to - what.from) + ", then " + what.end;
      case "lease": return who + " holds " + name + (what.mode === "exclusive" ? "" : " (" + what.mode + ")") + (what.token ? "\ntoken " + what.token : "") + "\n" + seconds(what.from) + ", for " + span(what.to - what.from) + ", " + what.how;
      default: return who + ": " + what.side + " write " + (what.what === "wrote" ? "accepted" : what.what) + (what.token ? ", token " + what.token : "") + "\n" + seconds(what.at) + (what.more ? "\n" + what.more : "");
    }
  };
  const hit = (event) => {
    const box = lanes.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    if (px < LEFT) return null;
    for (let i = targets.length - 1; i >= 0; i--) {
      const [left, top, wide, tall, what] = targets[i];
      if (px >= left && px <= left + wide && py >= top && py <= top + tall) return what;
    }
    return null;
  };
  const pointTo = (event) => {
    hover = hit(event);
    lanes.classList.toggle("over", hover !== null);
    tip.hidden = hover === null;
    if (hover === null) return;
    tip.textContent = words(hover);
    const box = chart.getBoundingClientRect();
    tip.style.left = Math.max(8, Math.min(event.clientX - box.left + 14, box.width - tip.offsetWidth - 8)) + "px";
    tip.style.top = Math.max(8, Math.min(event.clientY - box.top + 16, box.height - tip.offsetHeight - 8)) + "px";
  };

  let held = null;
  lanes.addEventListener("pointerdown", (event) => {
    held = { at: event.clientX, from: view.from, to: view.to, moved: false };
    lanes.setPointerCapture(event.pointerId);
  });
  lanes.addEventListener("pointermove", (event) => {
    if (!held) return pointTo(event);
    const by = ((held.at - event.clientX) / (width() - LEFT)) * (held.to - held.from);
    if (Math.abs(held.at - event.clientX) > 3) { held.moved = true; lanes.classList.add("moving"); tip.hidden = true; }
    if (held.moved) show(held.from + by, held.to + by);
  });
  lanes.addEventListener("pointerup", (event) => {
    const clicked = held && !held.moved;
    held = null;
    lanes.classList.remove("moving");
    const what = clicked ? hit(event) : null;
    if (what && what.kind === "violation") choose(what.one);
    else if (what) {
      detail.replaceChildren(...words(what).split("\n").map((line, n) => element(n ? "p" : "h3", line)));
      detail.className = "";
      detail.hidden = false;
    }
  });
  lanes.addEventListener("pointerleave", () => { tip.hidden = true; });
  lanes.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) move((event.deltaX || event.deltaY) / 1200);
    else zoom(1.0016 ** event.deltaY, time(event.clientX - lanes.getBoundingClientRect().left));
  }, { passive: false });
  const slide = (event) => {
    const box = overview.getBoundingClientRect(), at = ((event.clientX - box.left - LEFT) / (box.width - LEFT)) * whole, half = (view.to - view.from) / 2;
    show(at - half, at + half);
  };
  overview.addEventListener("pointerdown", (event) => { overview.setPointerCapture(event.pointerId); slide(event); });
  overview.addEventListener("pointermove", (event) => { if (event.buttons) slide(event); });
  chart.addEventListener("keydown", (event) => {
    const does = { ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: () => show(0, whole) }[event.key];
    if (does) { event.preventDefault(); does(); }
  });
  byId("in").addEventListener("click", () => zoom(0.5));
  byId("out").addEventListener("click", () => zoom(2));
  byId("all").addEventListener("click", () => show(0, whole));
  const go = (by) => choose(steps[(steps.indexOf(chosen) + by + steps.length) % steps.length]);
  byId("next").addEventListener("click", () => go(1));
  byId("previous").addEventListener("click", () => go(chosen ? -1 : 0));
  byId("next").disabled = byId("previous").disabled = steps.length === 0;
  for (const button of document.querySelectorAll(".jump")) {
    button.addEventListener("click", () => {
      const { property, proven: sure, number } = button.dataset;
      choose(data.violations.filter((one) => one.property === property && one.proven === (sure === "1"))[Number(number)]);
      chart.scrollIntoView({ block: "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    });
  }
  byId("copy").addEventListener("click", async () => {
    const selection = getSelection();
    selection.selectAllChildren(byId("command"));
    try { await navigator.clipboard.writeText(byId("command").textContent); } catch { document.execCommand("copy"); }
    byId("copy").textContent = "Copied";
  });

  const legend = () => {
    const item = (shape, shade, text) => {
      const sign = element("i");
      sign.className = shape;
      if (shape === "cross") { sign.textContent = "✕"; sign.style.color = shade; } else sign.style.background = shade;
      return element("span", "", sign, document.createTextNode(text));
    };
    const many = data.names.length > 6;
    byId("legend").replaceChildren(
      ...(many ? [item("", colour(0), "holds one of " + data.names.length + " names")] : data.names.map((name, n) => item("", colour(n), "holds " + name))),
      item("line", ink.faint, "waits"), item("line", ink.unknown, "outcome unknown"), item("cross", ink.ink, "killed"), item("upright", ink.violated, "lost"), item("dot", ink.soft, "write"), item("diamond", ink.violated, "write refused by the fence"), item("", ink.fault, "fault"),
      ...(proven.length ? [item("flag", ink.violated, "violation")] : []), ...(data.violations.length > proven.length ? [item("flag", ink.fault, "shown, not held against it")] : []));
  };
  const start = () => { readInk(); legend(); redraw(); };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", start);
  new ResizeObserver(redraw).observe(chart);
  start();
})();
