// Builds the DOM of a reply from the server's tree. Parses no HTML; an element with an unlisted tag becomes a span.

const PLAIN = new Set([
  "p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "code", "thead", "tbody", "tr", "th", "td", "hr",
  "strong", "em", "s", "br",
]);
const LINKS = new Set(["http:", "https:", "mailto:"]);

/** Returns the DOM nodes of *nodes*: strings and [tag, attributes, children]. */
export function build(nodes) {
  return nodes.map((node) => (typeof node === "string" ? document.createTextNode(node) : element(node)));
}

function element([tag, attributes, children]) {
  if (tag === "a") return link(attributes.href, children);
  if (tag === "pre") return codeBlock(attributes.language ?? "", children);
  if (tag === "table") return table(children);
  const dom = document.createElement(PLAIN.has(tag) ? tag : "span");
  if (tag === "li" && Number.isInteger(attributes.value)) dom.value = attributes.value;
  if (["left", "center", "right"].includes(attributes.align)) dom.classList.add(attributes.align);
  if (tag === "th") dom.scope = "col";
  dom.append(...build(children));
  return dom;
}

function link(address, children) {
  const dom = document.createElement("a");
  if (URL.canParse(address) && LINKS.has(new URL(address).protocol)) {
    dom.href = address;
    dom.rel = "noopener noreferrer nofollow";
    dom.target = "_blank";
  }
  dom.append(...build(children));
  return dom;
}

function codeBlock(language, children) {
  const block = document.createElement("div");
  block.className = "code";
  const head = document.createElement("div");
  head.className = "code-head";
  const name = document.createElement("span");
  name.textContent = language || "text";
  const body = document.createElement("pre");
  body.tabIndex = 0;
  body.setAttribute("aria-label", language ? `Code, ${language}` : "Code");
  body.setAttribute("role", "group");
  body.append(...build(children));
  head.append(name, copyButton("Copy code", () => body.textContent));
  block.append(head, body);
  return block;
}

function table(children) {
  const frame = document.createElement("div");
  frame.className = "table";
  frame.tabIndex = 0;
  frame.setAttribute("role", "group");
  frame.setAttribute("aria-label", "Table");
  const dom = document.createElement("table");
  dom.append(...build(children));
  frame.append(dom);
  return frame;
}

/** Returns a button that copies the result of text() and shows whether it did. */
export function copyButton(label, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", label);
  button.addEventListener("click", async () => {
    button.textContent = (await copyText(text())) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1600);
  });
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text); // exists only over HTTPS and on localhost
    return true;
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "sr-only";
    document.body.append(area);
    const focused = document.activeElement;
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    focused?.focus();
    return done;
  }
}
