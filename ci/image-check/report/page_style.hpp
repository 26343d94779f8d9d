// page_style.hpp: how report.html looks. No '<', '>' or '&' in it: HTML and XML read them differently here.
#pragma once

namespace image_check {

inline constexpr const char* page_style = R"css(
:root {
  color-scheme: light dark;
  --ground: #ffffff; --raised: #f5f6f8; --rule: #d5d9de; --text: #1b1e22; --soft: #555c65;
  --run: #0a5aa6; --base: #6b727b; --bad: #a83a00; --bad-ground: #fdeee5; --good: #0b6350; --good-ground: #e6f4ef;
  --doubt: #6a5000; --doubt-ground: #fbf3d9;
  --worse1: #fdeadb; --worse2: #f8c49b; --worse3: #e5853b; --better1: #cfe2f3; --better2: #8fbde5; --on-heat: #16181b;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --ground: #14171b; --raised: #1d2126; --rule: #373d45; --text: #e7e9ec; --soft: #a5adb7;
    --run: #6cb6ff; --base: #9aa3ae; --bad: #ff9f6b; --bad-ground: #35201a; --good: #63d0ac; --good-ground: #15302a;
    --doubt: #e8c659; --doubt-ground: #322b14;
    --worse1: #3d2b1f; --worse2: #6e3f1a; --worse3: #a3500f; --better1: #1d3850; --better2: #1f5a8d; --on-heat: #ffffff;
  }
}
* { box-sizing: border-box; }
html { font: 16px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; background: var(--ground); color: var(--text);
  -webkit-text-size-adjust: 100%; }
body { max-width: 76rem; margin: 0 auto; padding: 1.5rem 1.25rem 4rem; }
h1, h2, h3, p, dl, dd, ul { margin: 0; padding: 0; }
h2 { font-size: 1.3rem; margin: 2.75rem 0 0.75rem; line-height: 1.25; }
h3 { font-size: 1rem; line-height: 1.35; margin-bottom: 0.25rem; overflow-wrap: anywhere; }
p { margin: 0 0 0.75rem; max-width: 48rem; overflow-wrap: anywhere; }
a { color: var(--run); }
small { font-size: 0.8rem; color: var(--soft); }
code { font: 0.85rem/1.45 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
code.command { display: block; white-space: pre-wrap; overflow-wrap: anywhere; background: var(--raised);
  border: 1px solid var(--rule); border-radius: 4px; padding: 0.45rem 0.6rem; -webkit-user-select: all; user-select: all; }

.verdict { border-left: 0.5rem solid var(--doubt); background: var(--doubt-ground); padding: 0.9rem 1.1rem; }
.verdict h1 { font-size: 1.35rem; line-height: 1.35; font-weight: 400; overflow-wrap: anywhere; }
.verdict strong { font-size: 1.75rem; color: var(--doubt); margin-right: 0.6rem; white-space: nowrap; }
.verdict.pass { border-color: var(--good); background: var(--good-ground); }
.verdict.pass strong { color: var(--good); }
.verdict.fail { border-color: var(--bad); background: var(--bad-ground); }
.verdict.fail strong { color: var(--bad); }
.verdict p { margin: 0.35rem 0 0; max-width: none; }
.counts { display: flex; flex-wrap: wrap; gap: 0.25rem 2rem; margin: 1.25rem 0; }
.counts div { display: flex; flex-direction: column-reverse; min-width: 4rem; }
.counts dt { color: var(--soft); font-size: 0.9rem; }
.counts dd { font-size: 1.75rem; line-height: 1.2; font-variant-numeric: tabular-nums; }
.counts .none { color: var(--soft); }
.counts .bad dd { color: var(--bad); font-weight: 700; }
.facts { margin-top: 1.25rem; display: grid; grid-template-columns: max-content minmax(0, 1fr); gap: 0.3rem 1rem; }
.facts dt { color: var(--soft); }
.facts dd { overflow-wrap: anywhere; }
.budget { display: block; width: min(100%, 24rem); height: 0.6rem; margin-top: 0.3rem; }
.budget .all { fill: var(--rule); }
.budget .used { fill: var(--run); }
.budget .over { fill: var(--bad); }
nav { margin: 1.25rem 0 0; display: flex; flex-wrap: wrap; gap: 0.25rem 1.25rem; border-top: 1px solid var(--rule); padding-top: 0.75rem; }

.failure { border: 1px solid var(--rule); border-left: 0.3rem solid var(--bad); border-radius: 4px; padding: 0.8rem 1rem;
  margin: 0 0 1rem; break-inside: avoid; }
.failure.doubt { border-left-color: var(--doubt); }
.failure .do { font-weight: 700; color: var(--bad); }
.failure.doubt .do { color: var(--doubt); }
.failure .where { color: var(--soft); font-size: 0.9rem; margin: 0 0 0.4rem; max-width: none; }
.failure ul { list-style: none; margin: 0.4rem 0 0.6rem; }
.failure li { margin: 0.2rem 0; white-space: pre-wrap; overflow-wrap: anywhere; }
.failure li b { font-weight: 600; }

.scrolled { overflow-x: auto; margin: 0 0 1.25rem; }
.scrolled:focus-visible { outline: 2px solid var(--run); outline-offset: 2px; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 0.3rem 0.9rem 0.3rem 0; border-bottom: 1px solid var(--rule); }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 600; overflow-wrap: break-word; }
.tables tbody th { overflow-wrap: anywhere; min-width: 7rem; }
.checks tbody th { min-width: 11rem; max-width: 34rem; }
td.number, th.number { text-align: right; white-space: nowrap; }
td.long { overflow-wrap: anywhere; min-width: 12rem; max-width: 30rem; }
td.value { overflow-wrap: anywhere; min-width: 7rem; }
td small, th small { display: block; font-weight: 400; white-space: normal; }
.pass-text { color: var(--good); white-space: nowrap; }
.fail-text { color: var(--bad); font-weight: 700; white-space: nowrap; }
.doubt-text { color: var(--doubt); font-weight: 700; white-space: nowrap; }
.soft-text { color: var(--soft); white-space: nowrap; }

.heat th, .heat td { padding: 0.25rem 0.5rem; line-height: 1.25; }
.heat td { text-align: right; white-space: nowrap; border: 1px solid var(--ground); background: var(--raised); }
.heat td:empty { background: none; }
.heat thead th { min-width: 4.5rem; max-width: 7.5rem; text-align: right; font-size: 0.8rem; overflow-wrap: break-word; }
.heat th:first-child { position: sticky; left: 0; background: var(--ground); text-align: left; white-space: nowrap; z-index: 1; }
.heat td.worse1, .legend .worse1 { background: var(--worse1); color: var(--on-heat); }
.heat td.worse2, .legend .worse2 { background: var(--worse2); color: var(--on-heat); }
.heat td.worse3, .legend .worse3 { background: var(--worse3); color: var(--on-heat); }
.heat td.better1, .legend .better1 { background: var(--better1); color: var(--on-heat); }
.heat td.better2, .legend .better2 { background: var(--better2); color: var(--on-heat); }
.heat td[class] small { color: inherit; }
.legend { font-size: 0.85rem; color: var(--soft); max-width: none; line-height: 2; }
.legend span { padding: 0.15rem 0.45rem; white-space: nowrap; }

.suspect { display: grid; grid-template-columns: minmax(0, 27rem) minmax(0, 1fr); gap: 0.5rem 2rem; align-items: start;
  margin: 0 0 2rem; }
.suspect header { grid-column: 1 / -1; }
.suspect td small { white-space: nowrap; }
.suspect th, .suspect td { padding-right: 0.7rem; white-space: nowrap; }
.tables { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 0 2rem; }
.curves { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)); gap: 1.5rem 2rem; }
.curves figure { break-inside: avoid; }
figure { margin: 0; min-width: 0; }
figcaption { font-weight: 600; font-size: 0.95rem; line-height: 1.35; overflow-wrap: anywhere; }
.drawing { display: block; width: 100%; height: auto; max-width: 30rem; font-size: 11.5px; fill: var(--text); }
.drawing .grid { stroke: var(--rule); stroke-width: 1; }
.drawing .axis { stroke: var(--base); stroke-width: 1; }
.drawing .tick { fill: var(--soft); }
.drawing .middle { text-anchor: middle; }
.drawing .end { text-anchor: end; }
.drawing .marked { fill: var(--worse2); opacity: 0.45; }
.drawing .marked.doubt { fill: var(--doubt); opacity: 0.1; }
.drawing .mark { fill: var(--bad); font-weight: 700; }
.drawing .mark.doubt { fill: var(--doubt); font-weight: 400; }
.drawing .line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.drawing .noise { opacity: 0.2; stroke: none; }
.drawing .run { fill: var(--run); }
.drawing .base { fill: var(--base); }
.drawing .run.line { fill: none; stroke: var(--run); }
.drawing .base.line { fill: none; stroke: var(--base); stroke-dasharray: 5 3; }
.drawing .base.point { fill: var(--ground); stroke: var(--base); stroke-width: 1.5; }
.drawing .limit { fill: none; stroke: var(--bad); stroke-width: 1.5; stroke-dasharray: 1.5 3; }
.drawing .label { font-weight: 600; stroke: none; }
.drawing .limit.label { fill: var(--bad); font-weight: 400; }
details { margin: 0.25rem 0 0.75rem; }
summary { cursor: pointer; color: var(--soft); font-size: 0.9rem; }
footer { margin-top: 3rem; color: var(--soft); font-size: 0.85rem; }

@media (max-width: 46rem) {
  body { padding: 0.75rem 0.75rem 3rem; }
  .suspect, .tables { grid-template-columns: minmax(0, 1fr); }
  .facts { grid-template-columns: minmax(0, 1fr); gap: 0; }
  .facts dd { margin-bottom: 0.5rem; }
  .counts { gap: 0.25rem 1.25rem; }
  .verdict h1 { font-size: 1.1rem; }
  .verdict strong { display: block; font-size: 1.6rem; }
}
@media print {
  html { font-size: 10.5pt; }
  body { max-width: none; padding: 0; }
  nav { display: none; }
  .scrolled { overflow: visible; }
  .curves { grid-template-columns: 1fr 1fr; }
  tr { break-inside: avoid; }
  h2, h3 { break-after: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
)css";

}  // namespace image_check
