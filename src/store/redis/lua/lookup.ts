/** How deep each slot holds a prompt, by bisection: confirmed entries and predictions (design D1). */

import { BASE } from "./base.ts";
import { CELLS } from "./cells.ts";

/** Most commands that the script may use for probes: with all others it stays within 128. */
export const MAX_PROBES = 120;
/** Share of them that predictions may take. */
export const PREDICTION_PROBES = 30;

/**
 * Holders are prefix-closed, so entries of one chain with equally many holders have the same ones: only the places where the number
 * changes matter. The deepest holders are placed first; when the probes are spent, those not yet placed get the deepest position at which
 * they were seen, a lower bound.
 *
 * An answer is `depth:` and the cells (slot, tokens) that were first met there, runs separated by `;`. Predictions give the number of
 * boundaries for a depth. Slots whose group has no watermark here are inert and left out.
 */
export const LOOKUP = `
-- The depth of the boundary with this index, as in src/prefix/boundaries.ts.
local function boundary(index)
  if index < 64 then return index + 1 end
  local fine = index - 63
  if fine < 128 then return 2 ^ (6 + floor(fine / 32)) * (1 + (fine % 32) / 32) end
  local coarse = index - 191
  return 2 ^ (10 + floor(coarse / 16)) * (1 + (coarse % 16) / 16)
end

-- entry: at 0; size, chars: of a cell and of its tokens; found: depths, slots and tokens side by side. Returns the probes spent and whether
-- they ran out.
local function search(length, limit, entry, entryAt, size, chars, live, found)
  local low, high, highCount = 0, length, 0
  -- All holders of the chain hold its first key. Inert ones among them must not use up the probes; where there are none, counting is cheap.
  local among = holders(entry, size, live) < holders(entry, size) and live or nil
  local count = holders(entry, size, among)
  local spent, truncated = 1, false
  if count == 0 then return spent, truncated end
  local stack, top = {}, 0
  local seen, placed = {}, 0
  local depths, slots, tokens, rows = found[1], found[2], found[3], #found[1]
  while true do
    while high - low > 1 and spent < limit do
      local middle = floor((low + high) / 2)
      local other = entryAt(middle)
      spent = spent + 1
      local otherCount = holders(other, size, among)
      if otherCount == highCount then
        high = middle
      else
        if otherCount ~= count then
          top = top + 1
          stack[top] = { low, entry, count, middle, otherCount }
        end
        low, entry, count = middle, other, otherCount
      end
    end
    if high - low > 1 then truncated = true end
    -- All who were placed deeper are among these holders: that many are left to be placed.
    local left, fresh = count - placed, u32(entry, 1) > tick
    local at = HEAD + 1
    while left > 0 and at <= #entry do
      local slot = sub(entry, at, at + 4)
      if not seen[slot] and (fresh or u32(entry, at + 5) > tick) and (not among or among[sub(slot, 1, 4)]) then
        seen[slot] = true
        rows, placed, left = rows + 1, placed + 1, left - 1
        depths[rows], slots[rows], tokens[rows] = low + 1, slot, sub(entry, at + 9, at + 8 + chars)
      end
      at = at + size
    end
    if top == 0 then return spent, truncated end
    local frame = stack[top]
    top = top - 1
    low, entry, count, high, highCount = frame[1], frame[2], frame[3], frame[4], frame[5]
  end
end

-- Adds the groups of an entry's cells to a list, each once.
local function addGroups(entry, size, known, groups)
  for at = HEAD + 1, entry and #entry or 0, size do
    local group = sub(entry, at, at + 3)
    if not known[group] then
      known[group], groups[#groups + 1] = true, group
    end
  end
end

-- Which of these groups are not inert, by name.
local function liveOf(groups)
  local live, count = {}, #groups
  -- Arguments of one call live on Lua's stack, which is limited.
  for first = 1, count, 1000 do
    local last = math.min(first + 999, count)
    local marks = call('HMGET', tag .. 'w', unpack(groups, first, last))
    for i = first, last do live[groups[i]] = marks[i - first + 1] and groups[i] end
  end
  return live
end

local function answer(found, live)
  local parts, count, last = {}, 0, 0
  local depths, slots, tokens = found[1], found[2], found[3]
  for row = 1, #slots do
    local group = live[sub(slots[row], 1, 4)]
    if group then
      if depths[row] ~= last then
        last = depths[row]
        parts[count + 1], parts[count + 2], parts[count + 3] = ';', last, ':'
        count = count + 3
      end
      parts[count + 1], parts[count + 2], parts[count + 3] = group, sub(slots[row], 5), tokens[row]
      count = count + 3
    end
  end
  return concat(parts, '', count > 0 and 2 or 1)
end

-- keys: 11 characters each; boundaries: how many of them a prediction could have been written at; live: names of the groups that are not
-- inert, nil: their own. Returns confirmed, predicted, figures.
local function lookup(keys, boundaries, limit, live)
  if keys == '' then return '', '', '0 0' end
  local function confirmedAt(position)
    local at = position * 11
    return call('HGET', tag .. 'e' .. sub(keys, at + 1, at + 2), sub(keys, at + 3, at + 11))
  end
  local function predictedAt(index)
    local at = (boundary(index) - 1) * 11
    return call('GET', tag .. 'p' .. sub(keys, at + 1, at + 11))
  end
  local predicted, confirmed = { {}, {}, {} }, { {}, {}, {} }
  local first, other = predictedAt(0), confirmedAt(0)
  if not live then
    local known, groups = {}, {}
    addGroups(first, PREDICTED, known, groups)
    addGroups(other, CONFIRMED, known, groups)
    live = liveOf(groups)
  end
  local spent, cut = search(boundaries, ${PREDICTION_PROBES}, first, predictedAt, PREDICTED, 8, live, predicted)
  local more, cutToo = search(#keys / 11, limit - spent, other, confirmedAt, CONFIRMED, 4, live, confirmed)
  local figures = (spent + more) .. ' ' .. ((cut or cutToo) and 1 or 0)
  return answer(confirmed, live), answer(predicted, live), figures
end
`;

/** Lookup alone, in one shard. ARGV: now, keys, boundaries. Reply: confirmed, predicted, `probes truncated`. */
export const LOOKUP_SCRIPT = `${BASE}${CELLS}${LOOKUP}
local confirmed, predicted, figures = lookup(ARGV[2], tonumber(ARGV[3]), ${MAX_PROBES})
return { confirmed, predicted, figures }
`;
