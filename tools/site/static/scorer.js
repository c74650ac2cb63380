// How the search ranks its results. The weights are those of Sphinx; pages about the past and the inside count for less.
const INSIDE = /^(CHANGELOG|ARCHITECTURE|CONTRIBUTING|docs\/(decisions|formats|simulation|map|known-from-elsewhere|api\/))/;

var Scorer = {
  score: ([page, title, anchor, description, score]) => (INSIDE.test(page) ? score / 4 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
