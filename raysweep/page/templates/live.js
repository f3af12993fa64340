"use strict";
(() => {
  const state = document.getElementById("live");
  let seen = document.documentElement.dataset.version;
  // Each section is put in place of its older self; the table keeps its head, its filters and its order.
  const replace = (fresh) => {
    for (const section of document.querySelectorAll("main > section")) {
      const next = fresh.querySelector(`main > section[aria-labelledby="${section.getAttribute("aria-labelledby")}"]`);
      if (section.querySelector("#all")) {
        document.getElementById("all").tBodies[0].replaceWith(document.adoptNode(next.querySelector("#all").tBodies[0]));
        const chosen = document.getElementById("filter-status").value;
        document.getElementById("filter-status").replaceChildren(...next.querySelector("#filter-status").children);
        document.getElementById("filter-status").value = chosen;
        document.dispatchEvent(new Event("newrows"));
      } else if (next) {
        section.replaceWith(document.adoptNode(next));
      } else {
        section.remove();
      }
    }
    for (const next of fresh.querySelectorAll("main > section")) {
      const name = next.getAttribute("aria-labelledby");
      if (!document.querySelector(`main > section[aria-labelledby="${name}"]`)) {
        document.querySelector('main > section[aria-labelledby="answer"]').after(document.adoptNode(next));
      }
    }
  };
  const look = async () => {
    try {
      const version = await (await fetch("version")).text();
      if (version !== seen) {
        const text = await (await fetch(".")).text();
        const fresh = new DOMParser().parseFromString(text, "text/html");
        if (!document.getElementById("all") || !fresh.getElementById("all")) return void location.reload();
        replace(fresh);
        seen = fresh.documentElement.dataset.version;
      }
      state.textContent = "Live: renewed as candidates end.";
    } catch {
      state.textContent = "The sweep has ended or cannot be reached; this is the last that was seen. raysweep report writes it to a file.";
    }
    setTimeout(look, 2000);
  };
  setTimeout(look, 2000);
})();
