// What all live figures need of the page. Their scripts follow this one in the same module.

// ---- BokehJS

async function gunzip(view) {
  const stream = new Blob([view]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

// Once per page and version, shared by all boards, and kept apart from a Bokeh that the page
// may have loaded for itself: `globalThis.Bokeh` stays as it is.
function loadBokeh(runtime) {
  const version = runtime.get("version");
  const loaded = (globalThis.nbmnBokeh ??= {});
  const present = globalThis.Bokeh?.version === version ? globalThis.Bokeh : undefined;
  loaded[version] ??= present
    ? Promise.resolve(present)
    : gunzip(runtime.get("source")).then(async (source) => {
        const text = `const root = {};
(function (require, define, module, exports) {${source}
}).call(root);
export default root.Bokeh;`;
        const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
        try {
          const bokeh = (await import(/* webpackIgnore: true */ url)).default;
          bokeh.logger?.set_level("error"); // it warns of ranges before there is data
          return bokeh;
        } finally {
          URL.revokeObjectURL(url);
        }
      });
  return loaded[version];
}

// After a page reload the front end brings the widgets back in any order.
async function findRuntime(model) {
  const id = model.get("runtime").slice("IPY_MODEL_".length);
  for (let attempt = 0; ; attempt++) {
    try {
      return await model.widget_manager.get_model(id);
    } catch (error) {
      if (attempt >= 100) throw error;
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  }
}

// When it is on the page, or nobody waits for it any more.
function connected(element, over = () => false) {
  return new Promise((resolve) => {
    const look = () => (element.isConnected || over() ? resolve() : requestAnimationFrame(look));
    look();
  });
}

// ---- Theme

function isDark() {
  const { dataset, classList } = document.body;
  if (dataset.jpThemeLight !== undefined) return dataset.jpThemeLight === "false";
  if (dataset.vscodeThemeKind !== undefined) return !dataset.vscodeThemeKind.includes("light");
  if (classList.contains("vscode-dark") || classList.contains("vscode-high-contrast")) return true;
  if (classList.contains("vscode-light")) return false;
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function watchTheme(react) {
  const observer = new MutationObserver(react);
  observer.observe(document.body, {
    attributes: true,
    attributeFilter: ["class", "data-jp-theme-light", "data-vscode-theme-kind"],
  });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", react);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", react);
  };
}
