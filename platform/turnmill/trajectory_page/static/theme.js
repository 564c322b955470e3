// Before anything is drawn: what the visitor chose, or else what the machine says.
const chosen = localStorage.getItem("theme");
if (chosen) document.documentElement.dataset.theme = chosen;
