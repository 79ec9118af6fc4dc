/** Makes a value that fits a JSON schema: what a model under guided decoding would say. */

type Schema = Readonly<Record<string, unknown>>;

const MAX_DEPTH = 6;

const isObject = (value: unknown): value is Schema =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** A deterministic value for `schema`; constraints that the mock does not know are left unheeded. */
export function sampleOf(schema: unknown, root: unknown = schema, depth = 0): unknown {
  if (!isObject(schema) || depth > MAX_DEPTH) return {};
  if ("const" in schema) return schema.const;
  if (Array.isArray(schema.enum) && schema.enum.length > 0) return schema.enum[0];
  if (typeof schema.$ref === "string") return sampleOf(resolve(root, schema.$ref), root, depth + 1);
  for (const key of ["anyOf", "oneOf", "allOf"]) {
    const options = schema[key];
    if (Array.isArray(options) && options.length > 0) return sampleOf(options[0], root, depth + 1);
  }
  const type = Array.isArray(schema.type) ? schema.type[0] : schema.type;
  return sampleOfType(type ?? (isObject(schema.properties) ? "object" : "string"), schema, root, depth);
}

function sampleOfType(type: unknown, schema: Schema, root: unknown, depth: number): unknown {
  const minimum = Number(schema.minimum ?? 0);
  switch (type) {
    case "object":
      return Object.fromEntries(
        Object.entries(isObject(schema.properties) ? schema.properties : {}).map(([name, property]) => [
          name,
          sampleOf(property, root, depth + 1),
        ]),
      );
    case "array":
      return [sampleOf(schema.items, root, depth + 1)];
    case "integer":
      return Math.ceil(minimum);
    case "number":
      return minimum + 0.5;
    case "boolean":
      return true;
    case "null":
      return null;
    default:
      return "harbour".padEnd(Number(schema.minLength ?? 0), ".");
  }
}

function resolve(root: unknown, pointer: string): unknown {
  let at: unknown = root;
  for (const part of pointer.replace(/^#\/?/, "").split("/").filter(Boolean)) {
    at = isObject(at) ? at[part] : undefined;
  }
  return at;
}

/** JSON as Python's `json.dumps` spaces it, which is how models write tool arguments. */
export function pythonJson(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(pythonJson).join(", ")}]`;
  if (!isObject(value)) return JSON.stringify(value);
  return `{${Object.entries(value)
    .map(([key, item]) => `${JSON.stringify(key)}: ${pythonJson(item)}`)
    .join(", ")}}`;
}
