/** Variable scopes and the `loop` variable of a running template. */

import { TemplateFailure } from "./failures.ts";
import { equal, type NativeObject, type Value } from "./values.ts";

/** Names → values, with the scopes around it. */
export class Scope {
  private readonly parent: Scope | null;
  private readonly variables = new Map<string, Value>();

  constructor(parent: Scope | null) {
    this.parent = parent;
  }

  get(name: string): Value {
    for (let scope: Scope | null = this; scope !== null; scope = scope.parent) {
      const value = scope.variables.get(name);
      if (value !== undefined || scope.variables.has(name)) return value;
    }
    return undefined;
  }

  set(name: string, value: Value): void {
    this.variables.set(name, value);
  }
}

/** Text that a template has printed so far. */
export class Output {
  text = "";
}

/** Jinja's `loop`. */
export class Loop implements NativeObject {
  index0 = 0;
  private readonly items: readonly Value[];
  private lastSeen: readonly Value[] | null = null;

  constructor(items: readonly Value[]) {
    this.items = items;
  }

  attribute(name: string): Value {
    const { index0, items } = this;
    switch (name) {
      case "index":
        return index0 + 1;
      case "index0":
        return index0;
      case "revindex":
        return items.length - index0;
      case "revindex0":
        return items.length - index0 - 1;
      case "first":
        return index0 === 0;
      case "last":
        return index0 === items.length - 1;
      case "length":
        return items.length;
      case "previtem":
        return index0 === 0 ? undefined : items[index0 - 1];
      case "nextitem":
        return items[index0 + 1];
      case "depth":
        return 1;
      case "depth0":
        return 0;
      case "cycle":
        return (args) => {
          if (args.length === 0) throw new TemplateFailure("no items for cycling given");
          return args[index0 % args.length];
        };
      case "changed":
        return (args) => this.changed(args);
      default:
        return undefined;
    }
  }

  private changed(values: readonly Value[]): boolean {
    if (this.lastSeen !== null && equal(this.lastSeen, values)) return false;
    this.lastSeen = [...values];
    return true;
  }
}
