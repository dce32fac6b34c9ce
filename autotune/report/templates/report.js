(function () {
  "use strict";
  var root = document.documentElement, live = document.getElementById("live");
  function all(query, within) { return Array.prototype.slice.call((within || document).querySelectorAll(query)); }
  function say(text) { live.textContent = ""; setTimeout(function () { live.textContent = text; }, 30); }
  all(".tools, .filter, .copy").forEach(function (part) { part.hidden = false; });

  /* Copy: the clipboard, else a hidden field, else select the text and say so. */
  function select(node) {
    var range = document.createRange(), selection = getSelection();
    range.selectNodeContents(node); selection.removeAllRanges(); selection.addRange(range);
  }
  function fallback(text, node, done) {
    var field = document.createElement("textarea"), worked = false;
    field.value = text; field.style.position = "fixed"; field.style.opacity = "0";
    document.body.appendChild(field); field.select();
    try { worked = document.execCommand("copy"); } catch (error) { worked = false; }
    field.remove();
    if (worked) { done("Copied"); } else { select(node); done("Press Ctrl+C"); }
  }
  all(".copyable").forEach(function (box) {
    var button = box.querySelector(".copy"), code = box.querySelector("code");
    button.addEventListener("click", function () {
      var text = code.textContent;
      function done(word) {
        say(word); button.firstChild.nodeValue = word;
        setTimeout(function () { button.firstChild.nodeValue = "Copy"; }, 1600);
      }
      if (navigator.clipboard && navigator.clipboard.writeText) {
        navigator.clipboard.writeText(text).then(function () { done("Copied"); }, function () { fallback(text, code, done); });
      } else { fallback(text, code, done); }
    });
  });

  /* Links and print open the closed parts they point to. */
  function reveal(id) {
    var node = id && document.getElementById(id), part = node;
    while (part) { if (part.tagName === "DETAILS") { part.open = true; } part = part.parentElement; }
    if (node) { node.scrollIntoView(); }
  }
  addEventListener("hashchange", function () { reveal(decodeURIComponent(location.hash.slice(1))); });
  if (location.hash) { reveal(decodeURIComponent(location.hash.slice(1))); }
  var opened = [];
  addEventListener("beforeprint", function () { opened = all("details:not([open]):not(.trial)"); opened.forEach(function (d) { d.open = true; }); });
  addEventListener("afterprint", function () { opened.forEach(function (d) { d.open = false; }); opened = []; });

  var actions = {
    theme: function () {
      var dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
    },
    print: function () { print(); },
    json: function () {
      var blob = new Blob([document.getElementById("report-data").textContent], { type: "application/json" });
      var link = document.createElement("a");
      link.href = URL.createObjectURL(blob); link.download = "report.json"; link.click();
      setTimeout(function () { URL.revokeObjectURL(link.href); }, 1000);
    }
  };
  all("[data-do]").forEach(function (button) { button.addEventListener("click", actions[button.dataset.do]); });

  /* Tooltips: a mark's <title> becomes a box that can be pinned by a click; Esc closes it. */
  var tip = document.createElement("div"), pinned = null;
  tip.id = "tip"; tip.setAttribute("role", "tooltip"); tip.hidden = true; document.body.appendChild(tip);
  function show(mark) {
    var place = mark.getBoundingClientRect();
    tip.textContent = mark.dataset.tip; tip.hidden = false;
    var left = Math.min(place.left + scrollX + 14, scrollX + root.clientWidth - tip.offsetWidth - 8);
    tip.style.left = Math.max(left, scrollX + 8) + "px";
    tip.style.top = place.top + scrollY - tip.offsetHeight - 8 + "px";
  }
  function hide() { if (!pinned) { tip.hidden = true; } }
  all("svg.plot").forEach(function (svg) {
    var title = svg.querySelector("title");
    svg.setAttribute("aria-label", title.textContent); title.remove();
  });
  all("svg.plot .mark > title").forEach(function (title) {
    var mark = title.parentNode;
    mark.dataset.tip = title.textContent; title.remove();
    mark.addEventListener("mouseenter", function () { if (!pinned) { show(mark); } });
    mark.addEventListener("mouseleave", hide);
    mark.addEventListener("click", function (event) {
      event.stopPropagation(); pinned = pinned === mark ? null : mark;
      if (pinned) { show(mark); } else { hide(); }
    });
  });
  function unpin() { pinned = null; hide(); }
  document.addEventListener("click", function (event) { if (!tip.contains(event.target)) { unpin(); } });
  document.addEventListener("keydown", function (event) { if (event.key === "Escape") { unpin(); } });

  /* Sort and filter the table of trials. */
  var table = document.getElementById("trials-table");
  if (table) {
    var body = table.tBodies[0], heads = all("thead th", table);
    heads.forEach(function (head, column) {
      if (!head.dataset.sort) { return; }
      var button = document.createElement("button"), numeric = head.dataset.sort === "number";
      button.type = "button"; button.textContent = head.textContent; head.textContent = ""; head.appendChild(button);
      button.addEventListener("click", function () {
        var down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach(function (other) { other.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        all("tr", body).sort(function (a, b) {
          var x = a.cells[column].dataset.key, y = b.cells[column].dataset.key;
          if (x === "" || y === "") { return (x === "") - (y === ""); }
          var order = numeric ? x - y : x.localeCompare(y);
          return down ? -order : order;
        }).forEach(function (row) { body.appendChild(row); });
      });
    });
    var field = document.getElementById("trial-filter"), tally = document.getElementById("trial-count");
    field.addEventListener("input", function () {
      var words = field.value.toLowerCase().split(/\s+/), shown = 0, rows = all("tr", body);
      rows.forEach(function (row) {
        var text = row.textContent.toLowerCase();
        row.hidden = !words.every(function (word) { return text.indexOf(word) >= 0; });
        shown += row.hidden ? 0 : 1;
      });
      tally.textContent = shown + " of " + rows.length + " shown";
    });
  }
})();
