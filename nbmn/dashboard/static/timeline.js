// Puts a live figure in the place of a static picture, wherever that is on the page.
//
// The widget is never displayed itself: a saved notebook holds nothing but the picture.

async function enliven(model, place) {
  const picture = [...place.childNodes];
  try {
    const bokeh = await loadBokeh(await findRuntime(model));
    await connected(place);
    const target = document.createElement("div");
    place.replaceChildren(target);
    const views = await bokeh.embed.embed_item(JSON.parse(model.get("item")), target);
    const { document: doc } = [...views][0].model;
    paint(doc);
    const unwatch = watchTheme(() => paint(doc));
    return () => {
      unwatch();
      views.clear();
      if (bokeh.documents.includes(doc)) bokeh.documents.splice(bokeh.documents.indexOf(doc), 1);
    };
  } catch (error) {
    console.error("nbmn: the timeline cannot be drawn; its picture stays", error);
    place.replaceChildren(...picture);
    return () => {};
  }
}

function paint(doc) {
  const dark = isDark();
  document.body.dataset.nbmnTheme = dark ? "dark" : "light";
  const plot = doc.get_model_by_name("timeline");
  for (const axis of [...plot.below, ...plot.left]) {
    axis.major_label_text_color = axis.axis_label_text_color = dark ? "#9aa4af" : "#656d76";
  }
}

export default () => {
  const live = new Map(); // place to what ends its figure

  function look(model) {
    for (const [place, end] of live) {
      if (place.isConnected) continue;
      live.delete(place);
      end.then((finish) => finish());
    }
    const places = document.querySelectorAll(`[data-nbmn-timeline="${model.get("anchor")}"]`);
    for (const place of places) {
      if (!live.has(place)) live.set(place, enliven(model, place));
    }
  }

  return {
    initialize({ model }) {
      let due = false;
      // Front ends make the elements of an output anew whenever they like.
      const observer = new MutationObserver(() => {
        if (due) return;
        due = true;
        requestAnimationFrame(() => {
          due = false;
          look(model);
        });
      });
      observer.observe(document.body, { childList: true, subtree: true });
      look(model);
      return () => observer.disconnect();
    },
    render() {},
  };
};
