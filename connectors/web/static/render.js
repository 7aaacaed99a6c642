// Builds the elements of a reply from the server's tree. No HTML is parsed anywhere: what is not listed is text.

const PLAIN = new Set([
  "p", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "code", "thead", "tbody", "tr", "th", "td", "hr",
  "strong", "em", "s", "br",
]);
const LINKS = new Set(["http:", "https:", "mailto:"]);

/** The DOM nodes of *nodes*: strings, and [tag, attributes, children]. */
export function build(nodes) {
  return nodes.map((node) => (typeof node === "string" ? document.createTextNode(node) : element(node)));
}

function element([tag, attributes, children]) {
  if (tag === "a") return link(attributes.href, children);
  if (tag === "pre") return codeBlock(attributes.language ?? "", children);
  if (tag === "table") return table(children);
  const made = document.createElement(PLAIN.has(tag) ? tag : "span");
  if (tag === "li" && Number.isInteger(attributes.value)) made.value = attributes.value;
  if (["left", "center", "right"].includes(attributes.align)) made.classList.add(attributes.align);
  if (tag === "th") made.scope = "col";
  made.append(...build(children));
  return made;
}

function link(address, children) {
  const made = document.createElement("a");
  if (URL.canParse(address) && LINKS.has(new URL(address).protocol)) {
    made.href = address;
    made.rel = "noopener noreferrer nofollow";
    made.target = "_blank";
  }
  made.append(...build(children));
  return made;
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
  const made = document.createElement("table");
  made.append(...build(children));
  frame.append(made);
  return frame;
}

/** A button that copies what *text* gives, and says so. */
export function copyButton(label, text) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "quiet copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", label);
  button.addEventListener("click", async () => {
    button.textContent = (await copied(text())) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 1600);
  });
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text); // there only over HTTPS and on this machine
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
