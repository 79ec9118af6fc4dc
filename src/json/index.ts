/** JSON that is read without losing how it was written, and edited in place. */

export { editJson, type JsonEdit, type JsonPath } from "./edit.ts";
export {
  booleanMember,
  type JsonArray,
  type JsonBoolean,
  type JsonMember,
  type JsonNode,
  type JsonNull,
  type JsonNumber,
  type JsonObject,
  type JsonParseOptions,
  type JsonSpan,
  type JsonString,
  member,
  numberMember,
  parseJson,
  stringMember,
  toPlain,
} from "./parse.ts";
