// Shows text that a model wrote: paragraphs, code blocks, `code` and **bold**. Everything becomes text nodes, nothing is ever read as HTML.

const FENCE = /^```/;

/** Shows a text that grows. What is whole is made once; only the block that is still being written is made anew. */
export class GrowingText {
  #element;
  #blocks = []; // the lines of each block that is shown

  constructor(element) {
    this.#element = element;
  }

  show(text) {
    const blocks = split(text);
    blocks.forEach((block, index) => {
      if (this.#blocks[index] === block) return;
      const made = FENCE.test(block) ? code(block) : paragraph(block);
      const shown = this.#element.children[index];
      if (shown) shown.replaceWith(made);
      else this.#element.append(made);
    });
    while (this.#element.children.length > blocks.length) this.#element.lastChild.remove();
    this.#blocks = blocks;
  }
}

/** Paragraphs, which an empty line ends, and fenced blocks, which a fence ends. */
function split(text) {
  const blocks = [];
  let lines = [];
  let fenced = false;
  const end = () => {
    if (lines.length) blocks.push(lines.join("\n"));
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (FENCE.test(line) && !fenced) {
      end();
      fenced = true;
      lines.push(line);
    } else if (FENCE.test(line)) {
      lines.push(line);
      fenced = false;
      end();
    } else if (fenced || line.trim()) {
      lines.push(line);
    } else {
      end();
    }
  }
  end();
  return blocks;
}

function code(block) {
  const lines = block.split("\n").slice(1);
  if (lines.length && FENCE.test(lines.at(-1))) lines.pop();
  const pre = document.createElement("pre");
  pre.tabIndex = 0; // long lines are scrolled, with keys too
  pre.append(element("code", lines.join("\n")));
  return pre;
}

function paragraph(block) {
  const shown = document.createElement("p");
  for (const piece of block.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/)) {
    if (/^`[^`]+`$/.test(piece)) shown.append(element("code", piece.slice(1, -1)));
    else if (/^\*\*[^*]+\*\*$/.test(piece)) shown.append(element("strong", piece.slice(2, -2)));
    else if (piece) shown.append(piece);
  }
  return shown;
}

/** An element that holds a text, with a class if one is given. */
export function element(name, text = "", className = "") {
  const made = document.createElement(name);
  made.textContent = text;
  if (className) made.className = className;
  return made;
}
