/** Reads the arguments of template calls as Python binds them: by place or by name. */

import { TemplateFailure } from "./failures.ts";
import { isInteger, type Kwargs, typeName, type Value } from "./values.ts";

/** Arguments of one call with readers for the few shapes that filters and methods take. */
export class Arguments {
  readonly positional: readonly Value[];
  readonly named: Kwargs;

  constructor(positional: readonly Value[], named: Kwargs) {
    this.positional = positional;
    this.named = named;
  }

  /** The argument at `index` or called `name`; `fallback` if neither was given. */
  get(index: number, name: string, fallback?: Value): Value {
    if (index < this.positional.length) return this.positional[index];
    return this.named.has(name) ? this.named.get(name) : fallback;
  }

  text(index: number, name: string, fallback?: string): string {
    const value = this.get(index, name, fallback);
    if (typeof value !== "string") throw new TemplateFailure(`${name} must be str, not ${typeName(value)}`);
    return value;
  }

  textOrNone(index: number, name: string): string | null {
    const value = this.get(index, name, null);
    return value === null ? null : this.text(index, name);
  }

  integer(index: number, name: string, fallback?: number): number {
    const value = this.get(index, name, fallback);
    if (typeof value === "boolean") return value ? 1 : 0;
    if (!isInteger(value)) throw new TemplateFailure(`${name} must be int, not ${typeName(value)}`);
    return Number(value);
  }
}
