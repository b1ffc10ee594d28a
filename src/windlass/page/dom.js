// Nodes from plain values. User-supplied text becomes a text node or the value of an attribute, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** A node. Among its attributes `on` holds listeners, and `key` names it among its siblings. */
export function h(tag, attributes, ...children) {
  const node = tag.startsWith("svg:") ? document.createElementNS(SVG, tag.slice(4)) : document.createElement(tag);
  const { on = {}, key, ...rest } = attributes ?? {};
  Object.assign(node, { key, on: {} });
  listen(node, on);
  for (const [name, value] of Object.entries(rest)) {
    if (value !== null && value !== undefined && value !== false) set(node, name, value === true ? "" : String(value));
  }
  node.append(...nodes(children));
  return node;
}

function set(node, name, value) {
  // Links lead to places of this page, so a user-supplied name can never become the scheme of one.
  if (name === "href" && !value.startsWith("#/")) throw new Error(`A link to ${value}`);
  node.setAttribute(name, value);
}

function listen(node, on) {
  for (const name of Object.keys(on)) {
    if (!(name in node.on)) node.addEventListener(name, (event) => node.on[name]?.(event));
  }
  Object.assign(node.on, on);
}

function nodes(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false && child !== "")
    .map((child) => (child instanceof Node ? child : document.createTextNode(String(child))));
}

/**
 * Make these the children of a node. Those already there stay the same nodes, with their focus, selection, scroll and open details.
 * One that is itself among the children, and not merely like one of them, is left alone with all that is in it.
 */
export function show(parent, ...children) {
  const list = nodes(children);
  const keys = new Set(list.map((node) => node.key));
  for (const old of [...parent.childNodes]) if (old.key !== undefined && !keys.has(old.key)) old.remove();
  const keyed = new Map([...parent.childNodes].filter((old) => old.key !== undefined).map((old) => [old.key, old]));
  let next = parent.firstChild;
  for (const node of list) {
    const old = node.key === undefined ? next : keyed.get(node.key);
    if (!old || !alike(old, node)) parent.insertBefore(node, next);
    else {
      if (old === next) next = next.nextSibling;
      else parent.insertBefore(old, next);
      if (old !== node) become(old, node);
    }
  }
  while (next) [next] = [next.nextSibling, next.remove()];
}

const alike = (old, node) => old.nodeName === node.nodeName && old.key === node.key;

function become(old, node) {
  if (node.nodeType === Node.TEXT_NODE) {
    if (old.nodeValue !== node.nodeValue) old.nodeValue = node.nodeValue;
    return;
  }
  for (const { name } of [...old.attributes]) if (!node.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  for (const { name, value } of node.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  if (old.nodeName === "INPUT" && old !== document.activeElement) old.value = node.value;
  for (const name of Object.keys(old.on)) if (!(name in node.on)) old.on[name] = undefined;
  listen(old, node.on);
  show(old, ...node.childNodes);
}
