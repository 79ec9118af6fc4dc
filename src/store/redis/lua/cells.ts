/** Index entries: the holders of one prefix key in one string, and what is done with it. */

/**
 * An entry is the tick at which its soonest lease ends (it may be given too early), the tick at which its latest ends (it may be given too
 * late), then one cell per holder: slot (group of 4 characters, tier 0–2), end of the lease, tokens. Ticks are 4 bytes. Tokens are base64url
 * that goes from writer to reader as it is; scripts never decode keys, slots or tokens. Confirmed holders have 4 characters, their tokens;
 * predicted ones 8, the tokens per key, and 2 that tell one prediction from the next: so entries with the same holders by the same
 * predictions are the same text.
 */
export const CELLS = `
local HEAD, CONFIRMED, PREDICTED = 8, 13, 19

local function u32(text, at)
  local a, b, c, d = byte(text, at, at + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

local function pack(n)
  return char(floor(n / 16777216) % 256, floor(n / 65536) % 256, floor(n / 256) % 256, n % 256)
end

-- How many leases have not ended. size: of a cell, as everywhere here; live: only those of these groups count, nil: all.
local function holders(entry, size, live)
  if not entry then return 0 end
  if not live and u32(entry, 1) > tick then return (#entry - HEAD) / size end
  if u32(entry, 5) <= tick then return 0 end
  local count = 0
  for at = HEAD + 1, #entry, size do
    if u32(entry, at + 5) > tick and (not live or live[sub(entry, at, at + 3)]) then count = count + 1 end
  end
  return count
end

-- The entry without ended leases; nil if none is left.
local function living(entry, size)
  if u32(entry, 1) > tick then return entry end
  if u32(entry, 5) <= tick then return nil end
  local kept, count, soonest, latest = {}, 0, 4294967295, 0
  for at = HEAD + 1, #entry, size do
    local ends = u32(entry, at + 5)
    if ends > tick then
      count = count + 1
      kept[count] = sub(entry, at, at + size - 1)
      if ends < soonest then soonest = ends end
      if ends > latest then latest = ends end
    end
  end
  if count == 0 then return nil end
  return pack(soonest) .. pack(latest) .. concat(kept)
end

-- Where a slot's cell begins.
local function cellOf(entry, slot, size)
  local at = find(entry, slot, HEAD + 1, true)
  while at and (at - HEAD - 1) % size ~= 0 do at = find(entry, slot, at + 1, true) end
  return at
end

-- Makes slot a holder until the tick ends (packed: the same in 4 bytes), or extends its lease; no lease is ever shortened.
local function put(entry, slot, ends, packed, tokens, size)
  entry = entry and living(entry, size)
  if not entry then return packed .. packed .. slot .. packed .. tokens end
  local soonest, latest = sub(entry, 1, 4), sub(entry, 5, 8)
  if ends < u32(entry, 1) then soonest = packed end
  if ends > u32(entry, 5) then latest = packed end
  local at = cellOf(entry, slot, size)
  if not at then return soonest .. latest .. sub(entry, HEAD + 1) .. slot .. packed .. tokens end
  local lease = packed
  if u32(entry, at + 5) > ends then lease = sub(entry, at + 5, at + 8) end
  return soonest .. latest .. sub(entry, HEAD + 1, at + 4) .. lease .. tokens .. sub(entry, at + size)
end
`;
