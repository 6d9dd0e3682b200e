"use strict";
// What the server tells, kept up to date: the twin of watch/web/changes.py, which says what a
// change is.
const state = (() => {
  /** A value with a change made; the value itself may be changed on the way. */
  function applied(value, change) {
    if (change === null) return value;
    if (Array.isArray(change)) {
      if (change.length === 1) return change[0];
      const [skip, keep, added] = change;
      const kept = skip === 0 && keep === value.length ? value : value.slice(skip, skip + keep);
      // One by one: a call takes no 100,000 arguments.
      for (const each of added) kept.push(each);
      return kept;
    }
    for (const [name, each] of Object.entries(change)) {
      if (Array.isArray(each) && each.length === 0) delete value[name];
      else set(value, name, applied(Object.hasOwn(value, name) ? value[name] : undefined, each));
    }
    return value;
  }

  /** As `value[name] = each`, for every name that somebody may have given something. */
  function set(value, name, each) {
    if (Array.isArray(value)) value[name] = each;
    else Object.defineProperty(value, name, {
      value: each, enumerable: true, configurable: true, writable: true,
    });
  }

  return { applied };
})();
