"use strict";
// Names, holders and reasons are foreign text: they are only ever put into text nodes. The page's policy allows no
// other way (trusted types), no script but this file, and no connection but to where it came from.

const $ = (id) => document.getElementById(id);
const LIMIT = 100;
const wish = { text: "", only: "all", order: "attention", start: 0 };
let csrf = "", canBreak = false, source = null, latest = null, heard = 0;
let open = null, opensJob = false; // what the dialog is about

function el(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function duration(seconds) {
  const s = Math.max(seconds, 0);
  if (s < 60) return `${s.toFixed(s < 10 ? 1 : 0)}s`;
  const two = (n) => String(n).padStart(2, "0");
  const m = Math.floor(s / 60);
  if (m < 60) return `${m}m ${two(Math.floor(s % 60))}s`;
  return m < 2880 ? `${Math.floor(m / 60)}h ${two(m % 60)}m` : `${Math.floor(m / 1440)}d ${Math.floor((m % 1440) / 60)}h`;
}
const number = (n) => n.toLocaleString("en");

// Coming in

async function ask(path, options = {}) {
  const answer = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
  const data = answer.status === 204 ? null : await answer.json();
  if (!answer.ok) throw Object.assign(new Error(data?.error?.message ?? `status ${answer.status}`), { status: answer.status });
  return data;
}

async function enter(token) {
  const options = token ? { method: "POST", headers: { Authorization: `Bearer ${token}` } } : {};
  const session = await ask("/api/session", options);
  csrf = session.csrf;
  canBreak = session.can_break;
  $("gate").hidden = true;
  $("board").hidden = false;
  listen();
}

async function begin() {
  const token = decodeURIComponent(location.hash.slice(1));
  // The token does not stay in the address, where shoulders, screenshots and histories would find it.
  if (token) history.replaceState(null, "", location.pathname);
  try {
    await enter(token);
  } catch (error) {
    shut(token ? error.message : "");
  }
}

function shut(message) {
  source?.close();
  $("board").hidden = true;
  $("gate").hidden = false;
  $("refused").textContent = message;
  live("off", "locked");
  $("token").focus();
}

$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await enter($("token").value.trim());
    $("token").value = "";
  } catch (error) {
    $("refused").textContent = error.status === 401 ? "That is not the token of this server." : error.message;
  }
});

// News

function live(state, text) {
  $("live").className = state;
  $("live").textContent = text;
}

function listen() {
  source?.close();
  source = new EventSource(`/api/events?${new URLSearchParams({ ...wish, limit: LIMIT })}`);
  source.addEventListener("view", (event) => {
    latest = JSON.parse(event.data);
    heard = performance.now();
    show();
    if (open !== null) look();
  });
  source.addEventListener("error", async () => {
    live("off", "not connected");
    if (source.readyState !== EventSource.CLOSED) return; // it tries again by itself
    try {
      await ask("/api/session");
      setTimeout(listen, 3000);
    } catch (error) {
      if (error.status === 401) shut("The session has ended; the server may have been started anew.");
      else setTimeout(listen, 3000);
    }
  });
}

function want(change) {
  Object.assign(wish, { start: 0 }, change);
  for (const button of document.querySelectorAll("[data-only]"))
    button.setAttribute("aria-pressed", String(button.dataset.only === wish.only));
  listen();
}

// What is shown

function show() {
  const { overview, names } = latest;
  $("where").textContent = `${overview.engine} · ${overview.address}${overview.namespace ? ` · ${overview.namespace}` : ""}`;
  live(overview.up ? "on" : "off", overview.up ? "live" : "engine does not answer");
  $("problem").hidden = overview.up;
  $("problem").textContent = overview.problem ?? "";
  tiles(overview);
  patterns(overview);
  rows(names);
  jobs(overview);
  happened(overview);
  document.title = overview.totals.waiters ? `(${overview.totals.waiters}) Leasehold` : "Leasehold";
}

function tiles({ totals, samples, complete, more, refused }) {
  const told = [
    ["Names", number(totals.names) + (complete && !more ? "" : "+"), "names", totals.unseen ? `${number(totals.unseen)} unseen yet` : "", ""],
    ["Holders", number(totals.holders), "holders", "", ""],
    ["Waiters", number(totals.waiters), "waiters", totals.waiters ? `longest ${duration(totals.longest_wait)}` : "", totals.waiters ? "warn" : ""],
    ["Overdue", number(totals.overdue), "overdue", totals.overdue ? "renewal is late" : "", totals.overdue ? "warn" : ""],
    ["Ran out", number(totals.lost), null, "since the start", totals.lost ? "bad" : ""],
    ["Stale writes", refused ? number(refused.stale) : "–", null, refused ? "refused" : "nobody tells", refused?.stale ? "bad" : ""],
  ];
  $("tiles").replaceChildren(...told.map(([name, value, points, note, mood]) =>
    el("div", { className: mood }, el("dt", {}, name, el("small", {}, note)), el("dd", {}, value),
      points && samples.length > 1 ? line(samples.map((sample) => sample[points])) : null)));
}

function line(points) {
  const svg = (tag, attributes) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const most = Math.max(...points, 1);
  const at = points.map((p, i) => `${(i / Math.max(points.length - 1, 1)) * 100},${28 - (p / most) * 25}`);
  const picture = svg("svg", { class: "line", viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img",
    "aria-label": `from ${points[0]} to ${points.at(-1)}, at most ${Math.max(...points)}` });
  picture.append(svg("path", { class: "area", d: `M0,30 L${at.join(" L")} L100,30 Z` }), svg("path", { class: "edge", d: `M${at.join(" L")}` }));
  return picture;
}

function patterns({ elections, partitions }) {
  $("patterns").hidden = !elections.length && !partitions.length;
  $("patterns").replaceChildren(
    ...elections.map((one) => el("div", { className: "card" }, el("h3", {}, "Election"), el("strong", {}, one.name),
      el("p", {}, one.leader ? `led by ${one.leader} in term ${one.term}, ${duration(one.expires_in)} left` : "nobody leads"),
      el("p", {}, one.candidates.length ? `${one.candidates.length} ${one.candidates.length === 1 ? "stands" : "stand"} by: ${one.candidates.slice(0, 5).join(", ")}` : "nobody stands by"))),
    ...partitions.map((group) => {
      const most = Math.max(...group.members.map((m) => m.partitions.length), 1);
      const all = group.members.reduce((sum, m) => sum + m.partitions.length, 0);
      return el("div", { className: "card" }, el("h3", {}, "Partitions"), el("strong", {}, group.group),
        el("p", {}, `${all} owned by ${group.members.length === 1 ? "one member" : `${group.members.length} members`}${group.waited_for.length ? `, ${group.waited_for.length} waited for` : ""}`),
        ...group.members.slice(0, 12).map((m) => el("div", { className: "share", title: m.partitions.join(", ") },
          el("span", {}, m.member), el("meter", { max: most, value: m.partitions.length }), el("b", {}, String(m.partitions.length)))));
    }));
}

function rows({ names, matching, start }) {
  const body = $("rows");
  while (body.rows.length > names.length) body.lastChild.remove();
  while (body.rows.length < names.length) body.append(row());
  names.forEach((one, i) => fill(body.rows[i], one));
  $("nothing").hidden = names.length > 0;
  const filtered = wish.text || wish.only !== "all";
  $("nothing").textContent = filtered ? "No name matches." : "Nothing is held and nobody waits. Try: leasehold run nightly-export -- sleep 30";
  document.querySelector("table").hidden = names.length === 0;
  $("place").textContent = names.length ? `${number(start + 1)}–${number(start + names.length)} of ${number(matching)}` : "";
  $("back").disabled = start === 0;
  $("on").disabled = start + names.length >= matching;
  document.querySelector("nav").hidden = matching <= LIMIT && start === 0;
}

function row() {
  const made = el("tr", { tabIndex: 0 }, el("td", { className: "name" }), el("td", { className: "holder" }), el("td", { className: "n dim" }),
    el("td", { className: "n left" }), el("td", { className: "n" }, el("span", { className: "pill" })), el("td", { className: "n dim" }));
  made.addEventListener("click", () => details(made.dataset.name));
  return made;
}

function put(cell, text) {
  if (cell.textContent !== text) cell.textContent = text;
}

function fill(tr, one) {
  const gone = (performance.now() - heard) / 1000;
  const held = one.expires_in !== null;
  tr.dataset.name = one.name;
  tr.className = `${one.state}${one.waiters ? " waited" : ""}`;
  const [name, holder, since, left, waiters, wait] = tr.cells;
  put(name, one.name);
  name.title = `${one.name} (${one.state})`;
  const mode = one.mode && one.mode !== "exclusive" ? ` (${one.mode})` : "";
  put(holder, held ? one.holder + mode + (one.holders > 1 ? ` and ${one.holders - 1} more` : "") : one.closed_for ? `closed for ${duration(one.closed_for - gone)}` : "free");
  holder.title = holder.textContent;
  put(since, held ? duration(one.held_for + gone) : "");
  put(left, held ? duration(one.expires_in - gone) : "");
  put(waiters.firstChild, number(one.waiters));
  put(wait, one.waiters ? duration(one.longest_wait + gone) : "");
}

setInterval(() => {
  if (latest === null || document.hidden) return;
  latest.names.names.forEach((one, i) => $("rows").rows[i] && fill($("rows").rows[i], one));
  latest.overview.jobs.forEach((one, i) => $("job-rows").rows[i] && fillJob($("job-rows").rows[i], one));
  if ((performance.now() - heard) / 1000 > 30) live("off", "no news for a while");
}, 1000);

const REFUSALS = { stale: "refused a stale write", used: "refused a token that was used before", jump: "refused an absurdly high token" };

function happened({ events, refused }) {
  const all = [
    ...events.map((one) => [one.at, one.name, one.kind === "broken" ? " was released by force; it was held by " : " ran out unreleased; it was held by ", one.holder]),
    ...(refused?.last ?? []).map((one) => [one.at, one.resource, ` ${REFUSALS[one.reason]}: token ${one.token}${one.seen === null ? "" : ` after ${one.seen}`}, by `, one.by]),
  ].sort((a, b) => b[0] - a[0]);
  $("happened").hidden = !all.length;
  jump("happened", all.length, false);
  const today = new Date().toDateString();
  $("events").replaceChildren(...all.slice(0, 50).map(([at, name, what, who]) => {
    const when = new Date(at * 1000);
    return el("li", {}, el("time", { dateTime: when.toISOString() }, when.toDateString() === today ? when.toLocaleTimeString() : when.toLocaleString()),
      el("span", {}, el("b", {}, name), what, who));
  }));
}

// With many names the rest is far down: the head of the page says that it is there.

function jump(id, count, isBad) {
  const button = document.querySelector(`[data-jump=${id}]`);
  button.hidden = !count;
  button.className = isBad ? "bad" : "";
  button.replaceChildren(id === "jobs" ? "Jobs " : "What happened ", el("b", {}, number(count)));
}
for (const button of document.querySelectorAll("[data-jump]"))
  button.addEventListener("click", () => $(button.dataset.jump).scrollIntoView({ behavior: "smooth" }));

// Jobs

const RUNS = { done: "done", overran: "done, but it took longer than until the next tick", failed: "failed", crashed: "nothing was heard of it any more", replaced: "replaced by a later tick" };

function jobs({ jobs, job_totals: totals, books_problem: problem }) {
  $("jobs").hidden = !totals.jobs && !problem;
  jump("jobs", totals.jobs, totals.behind > 0);
  $("jobs-problem").hidden = !problem;
  $("jobs-problem").textContent = problem ? `Jobs and stale writes cannot be read: ${problem}` : "";
  const told = [`${number(totals.jobs)}${totals.more ? "+" : ""}`, totals.under_way ? `${number(totals.under_way)} under way` : "",
    totals.behind ? `${number(totals.behind)} behind` : "", totals.overruns ? `${number(totals.overruns)} overran` : "",
    totals.missed ? `${number(totals.missed)} ticks missed` : "",
    jobs.length < totals.jobs ? `the first ${jobs.length} are shown; the API has all` : ""];
  $("jobs-told").textContent = told.filter(Boolean).join(" · ");
  $("job-rows").closest("table").hidden = !jobs.length;
  const body = $("job-rows");
  while (body.rows.length > jobs.length) body.lastChild.remove();
  while (body.rows.length < jobs.length) body.append(jobRow());
  jobs.forEach((one, i) => fillJob(body.rows[i], one));
}

function jobRow() {
  const made = el("tr", { tabIndex: 0 }, el("td", { className: "name" }), el("td", { className: "runs" }), el("td", { className: "state" }),
    el("td", { className: "n dim" }), el("td", { className: "n dim" }), el("td", { className: "n" }), el("td", { className: "n" }));
  made.addEventListener("click", () => details(made.dataset.name, true));
  return made;
}

function fillJob(tr, one) {
  const gone = (performance.now() - heard) / 1000;
  const [name, runs, state, ended, took, behind, missed] = tr.cells;
  const late = one.behind !== null && one.behind > 1;
  tr.dataset.name = one.name;
  tr.className = one.state === "silent" || late || one.state === "crashed" ? "closed" : ["failed", "waits"].includes(one.state) || one.missed ? "overdue" : one.state === "new" ? "free" : "";
  if (name.textContent !== one.name + one.schedule) name.replaceChildren(one.name, el("small", {}, one.schedule));
  name.title = `${one.name}, ${one.schedule}`;
  const recent = one.recent.join(" ");
  if (runs.dataset.recent !== recent) {
    runs.dataset.recent = recent;
    const strip = el("span", { className: "strip", role: "img", ariaLabel: recent ? `the last runs: ${recent.replaceAll(" ", ", ")}` : "no run has ended yet" });
    strip.append(...one.recent.map((run) => el("i", { className: run, title: RUNS[run] })));
    runs.replaceChildren(strip);
  }
  put(state, one.state === "under way" || one.state === "silent" ? `${one.state} for ${duration(one.running_for + gone)}` : one.state === "waits" ? "to be tried again" : one.state === "new" ? "no run yet" : one.state);
  state.title = one.error || one.by;
  put(ended, one.ended_ago === null ? "" : `${duration(one.ended_ago + gone)} ago`);
  put(took, one.took === null ? "" : duration(one.took));
  put(behind, one.behind === null ? "" : number(one.behind));
  behind.className = late ? "n bad" : "n dim";
  put(missed, number(one.missed));
  missed.className = one.missed ? "n bad" : "n dim";
}

function describeJob(one) {
  const when = (seconds) => new Date(seconds * 1000).toLocaleString();
  const tick = (text) => new Date(text).toLocaleString();
  $("d-state").textContent = [one.schedule, one.settled ? `settled up to ${tick(one.settled)}` : "nothing settled yet", one.behind > 1 ? `${number(one.behind)} ticks behind` : ""].filter(Boolean).join(" · ");
  const item = (first, ...told) => el("li", {}, el("b", {}, first), ...told.filter(Boolean).map((text) => el("span", {}, text)));
  $("d-body").replaceChildren(...[
    one.running_for === null ? null : el("p", {}, `${one.by} is at it for ${duration(one.running_for)}${one.state === "silent" ? ", and was not heard of in time" : ""}.`),
    el("h3", {}, "Last runs"),
    one.runs.length ? el("ol", {}, ...one.runs.map((run) => item(tick(run.tick), run.overran ? "done, overran" : run.state, `took ${duration(run.ended - run.began)}`, run.attempt > 1 ? `attempt ${run.attempt}` : "", run.by, run.error))) : el("p", {}, "No run has ended yet."),
    one.missed ? el("h3", {}, `Missed ticks: ${number(one.missed)}`) : null,
    one.reports.length ? el("ol", {}, ...one.reports.map((report) => item(report.count > 1 ? `${tick(report.first)} to ${tick(report.last)}` : tick(report.first), report.count > 1 ? `${number(report.count)} ticks` : "", report.why, `found at ${when(report.at)}`))) : null].filter(Boolean));
  $("break").hidden = true;
}

// One name, or one job

async function details(name, isJob = false) {
  open = name;
  opensJob = isJob;
  $("d-name").textContent = name;
  $("d-state").textContent = "";
  $("d-body").replaceChildren();
  $("d-told").textContent = "";
  $("because").value = "";
  $("break").hidden = true;
  $("details").showModal();
  await look();
}

async function look() {
  const name = open, isJob = opensJob;
  try {
    const one = await ask(`/api/${isJob ? "job" : "name"}?${new URLSearchParams({ name })}`);
    if (open === name && opensJob === isJob) (isJob ? describeJob : describe)(one);
  } catch (error) {
    if (open !== name || opensJob !== isJob) return;
    const isFree = error.status === 404 && !isJob;
    $("d-state").textContent = isFree ? "free" : error.message;
    if (!isFree) return; // what was seen last stays, and so does what somebody is typing
    $("d-body").replaceChildren();
    $("break").hidden = !$("d-told").textContent;
  }
}

function describe(one) {
  const state = one.holders.length ? "held" : one.closed_for ? `closed for ${duration(one.closed_for)} more, after a lease on it was lost` : "free";
  $("d-state").textContent = `${state} · latest token ${one.token}`;
  const mode = (m) => (m === "exclusive" ? "" : ` (${m})`);
  const item = (who, ...told) => el("li", {}, el("b", {}, who), ...told.map((text) => el("span", {}, text)));
  $("d-body").replaceChildren(...[
    el("h3", {}, one.holders.length === 1 ? "Holder" : "Holders"),
    one.holders.length ? el("ol", {}, ...one.holders.slice(0, 100).map((h) => item(h.holder + mode(h.mode), `token ${h.token}`, `for ${duration(h.held_for)}`, `${duration(h.expires_in)} left`))) : el("p", {}, "Nobody holds it."),
    el("h3", {}, one.waiters.length ? `Queue: ${number(one.waiters.length)}` : "Queue"),
    one.waiters.length ? el("ol", {}, ...one.waiters.slice(0, 100).map((w, i) => item(`${i + 1}. ${w.waiter}${mode(w.mode)}`, `for ${duration(w.waited_for)}`))) : el("p", {}, "Nobody waits."),
    one.queue.length > 1 ? el("h3", {}, "Queue over time") : null,
    one.queue.length > 1 ? line(one.queue.map((point) => point.waiters)) : null].filter(Boolean));
  $("break").hidden = !(canBreak && one.holders.length) && !$("d-told").textContent;
}

// The news of a closing comes late: by then the dialog may be open for the next one.
$("details").addEventListener("close", () => { if (!$("details").open) open = null; });
$("details").addEventListener("click", (event) => { if (event.target === $("details")) $("details").close(); });
$("break").addEventListener("submit", async (event) => {
  event.preventDefault();
  const body = JSON.stringify({ name: open, because: $("because").value.trim() });
  try {
    const told = await ask("/api/break", { method: "POST", body, headers: { "Content-Type": "application/json", "X-CSRF-Token": csrf } });
    $("d-told").textContent = `Released. Announce token ${told.token} at the fence of the resource.`;
    $("because").value = "";
  } catch (error) {
    $("d-told").textContent = error.message;
  }
  await look();
});

// Keys and controls

let typing = 0;
$("text").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => want({ text: $("text").value }), 150);
});
for (const button of document.querySelectorAll("[data-only]"))
  button.addEventListener("click", () => want({ only: button.dataset.only }));
$("order").addEventListener("change", () => want({ order: $("order").value }));
$("back").addEventListener("click", () => want({ start: Math.max(wish.start - LIMIT, 0) }));
$("on").addEventListener("click", () => want({ start: wish.start + LIMIT }));

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("details").open) return;
  const field = event.target.closest("input, select");
  const current = event.target.closest("tbody tr");
  if (event.key === "/" && !field) {
    $("text").focus();
    event.preventDefault();
  } else if (event.key === "Escape" && field === $("text")) {
    $("text").value = "";
    want({ text: "" });
  } else if (event.key === "Enter" && current) {
    details(current.dataset.name, current.parentNode.id === "job-rows");
  } else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && (!field || field === $("text"))) {
    const all = [...$("rows").rows, ...$("job-rows").rows];
    const next = all[(current ? all.indexOf(current) : -1) + (event.key === "ArrowDown" ? 1 : -1)];
    if (next) {
      next.focus();
      event.preventDefault();
    }
  }
});

begin();
