// The board's button that asks where the ranks are, and the pane that shows their answer.

const PRESS = "nbmn-press"; // as in nbmn/compat/busy_kernel.py
const HEARD_MS = 5000; // ranks that are silent are waited for, but not as long
const UNHEARD =
  "No answer yet. This kernel may not hear a press before the cell ends; " +
  "a cell that runs in the background (%%mn --bg) leaves it free.";
const PLACE = /^cell \[(\d+)\] line (\d+)$/; // a frame in a cell of this notebook

class Where {
  constructor(model, board) {
    this.model = model;
    this.board = board;
    this.asking = null; // the timer of a press without an answer

    const button = (this.button = make("button", "nbmn-button", null, "Where?"));
    button.type = "button";
    button.title = "Show where each rank is: its stack, and what it waits in";
    button.setAttribute("aria-expanded", "false");
    button.addEventListener("click", () => this.ask());

    this.pane = make("section", "nbmn-pane");
    this.pane.hidden = true;
    this.pane.setAttribute("aria-label", "Where the ranks are");
    const head = make("div", "nbmn-pane-head", this.pane);
    this.caption = make("span", "nbmn-dim", head);
    const hide = make("button", "nbmn-button", head, "Hide");
    hide.type = "button";
    hide.addEventListener("click", () => this.hide());
    this.answer = make("div", "", this.pane);
    for (const element of [this.caption, this.answer]) element.setAttribute("aria-live", "polite");
    for (const element of [button, this.pane]) {
      // Else the notebook takes Enter for itself.
      element.dataset.lmSuppressShortcuts = "true";
      element.addEventListener("keydown", (event) => {
        event.stopPropagation();
        if (event.key === "Escape") this.hide();
      });
    }

    const hear = (message) => this.show(message);
    model.on("msg:custom", hear);
    this.forget = () => {
      model.off("msg:custom", hear);
      clearTimeout(this.asking);
    };
  }

  // A run that is over has no ranks to ask, and a kernel that is gone no answer.
  offer(offered) {
    this.button.hidden = !offered;
  }

  ask() {
    if (this.asking !== null) return;
    this.asking = setTimeout(() => {
      this.asking = null;
      setText(this.caption, UNHEARD);
    }, HEARD_MS);
    this.open(true);
    setText(this.caption, "Asking the ranks …");
    this.model.send({ [PRESS]: "where" });
  }

  // Answers come to all pages that show the board: one that did not ask stays as it is.
  show({ html, error }) {
    clearTimeout(this.asking);
    this.asking = null;
    if (this.pane.hidden) return;
    setText(this.caption, `Where the ranks were at ${new Date().toLocaleTimeString()}`);
    if (error) this.answer.replaceChildren(make("div", "nbmn-message", null, error));
    else this.answer.innerHTML = html;
    for (const place of this.answer.querySelectorAll(".nbmn-place")) this.link(place);
  }

  hide() {
    if (this.pane.hidden) return;
    this.open(false);
    this.button.focus();
  }

  open(opened) {
    this.pane.hidden = !opened;
    this.button.setAttribute("aria-expanded", String(opened));
    if (!opened) this.answer.replaceChildren();
  }

  // ---- from a frame to its line in the notebook

  link(place) {
    const [, label, line] = PLACE.exec(place.textContent) ?? [];
    const find = () => findLine(this.board, label, Number(line));
    if (!label || !find()) return;
    const link = make("button", "nbmn-link", null, place.textContent);
    link.type = "button";
    link.title = "Show this line";
    link.addEventListener("click", () => {
      const found = find();
      found?.scrollIntoView({ block: "center" });
      found?.animate([{ outline: "2px solid #d55e00" }, { outline: "2px solid transparent" }], 2500);
    });
    place.replaceChildren(link);
  }
}

// The line of a cell, or the cell where the editor has not drawn it; JupyterLab and Notebook only.
function findLine(board, label, line) {
  const own = board.closest(".jp-CodeCell");
  const cells = [...(own?.closest(".jp-Notebook")?.querySelectorAll(".jp-CodeCell") ?? [])];
  const prompt = (cell) => cell.querySelector(".jp-InputPrompt")?.textContent.trim();
  // A cell that runs has no number yet; the board's own is the likely one.
  const cell = cells.find((each) => prompt(each) === `[${label}]:`) ?? own;
  return cell && (cell.querySelectorAll(".jp-InputArea .cm-line")[line - 1] ?? cell);
}
