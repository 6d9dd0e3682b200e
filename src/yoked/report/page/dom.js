"use strict";
// What the page is to be, as plain descriptions, and the page brought to that in place. What is
// there and stays is the same node before and after: newer figures cost nobody the focus, the
// selection, an opened table or how far it was scrolled. Text only ever becomes a text node.
const dom = (() => {
  const OURS = new WeakMap();

  /**
   * Describe an element. attributes, besides those of HTML: key (the same part of the page, wherever
   * it stands among its siblings), vars (custom properties of CSS), on (listeners), opaque (its
   * content is not ours). An attribute that is not named, such as open, stays as a reader made it.
   * children: descriptions and text; null, undefined, false and "" are left out.
   */
  function h(tag, attributes, ...children) {
    const { key, vars = {}, on = {}, opaque = false, ...rest } = attributes ?? {};
    const kept = children.flat(Infinity).filter((each) => each || each === 0);
    return { tag, key, vars, on, opaque, attributes: rest, children: kept };
  }

  const isText = (wanted) => typeof wanted !== "object";

  function fits(node, wanted) {
    if (isText(wanted)) return node.nodeType === Node.TEXT_NODE;
    const ours = OURS.get(node);
    return ours !== undefined && ours.tag === wanted.tag && ours.key === wanted.key;
  }

  function create(wanted) {
    if (isText(wanted)) return document.createTextNode(String(wanted));
    const node = document.createElement(wanted.tag);
    OURS.set(node, { tag: wanted.tag, key: wanted.key, attributes: {}, on: [] });
    return node;
  }

  function update(node, wanted) {
    if (isText(wanted)) {
      if (node.data !== String(wanted)) node.data = String(wanted);
      return;
    }
    const ours = OURS.get(node);
    for (const name of Object.keys(ours.attributes)) {
      if (!(name in wanted.attributes)) node.removeAttribute(name);
    }
    for (const [name, value] of Object.entries(wanted.attributes)) {
      if (ours.attributes[name] !== value) node.setAttribute(name, value);
    }
    ours.attributes = wanted.attributes;
    // By CSSOM: a style attribute is against the policy of this page.
    for (const [name, value] of Object.entries(wanted.vars)) node.style.setProperty(name, value);
    for (const name of ours.on) node[`on${name}`] = null;
    for (const [name, listener] of Object.entries(wanted.on)) node[`on${name}`] = listener;
    ours.on = Object.keys(wanted.on);
    if (!wanted.opaque) patch(node, wanted.children);
  }

  /** Make the children of a node what is described. */
  function patch(parent, wanted) {
    const keys = new Set(wanted.map((each) => each.key).filter((key) => key !== undefined));
    for (const node of [...parent.childNodes]) {
      const key = OURS.get(node)?.key;
      if (key !== undefined && !keys.has(key)) node.remove();
    }
    let place = parent.firstChild;
    for (const each of wanted) {
      let node = place;
      if (node === null || !fits(node, each)) {
        const kept = each.key !== undefined && [...parent.childNodes].find((one) => fits(one, each));
        node = kept || create(each);
        parent.insertBefore(node, place);
      }
      update(node, each);
      place = node.nextSibling;
    }
    while (place !== null) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  }

  return { h, patch };
})();
