/** The fleet in Redis: rows, their incarnations, slots and reservations (design D4, D6). */

/**
 * Keys under the fleet's tag: `c` epoch, version, next group, heartbeat; `i` rank → incarnation and model; `s` rank → registration; `m`
 * models; `d<model>` rank → row; `r<rank>` request → reservation; `k<hash>` cards; `x<rank incarnation>` retired lives; `a<rank request>`
 * admissions without a reservation yet; `f` groups that wait to be used again, by when they may; `w` live groups → sequence; `t` model → thresholds.
 *
 * A row is one string of 17 fields. `version` counts all that changes a registration or a slot; a row's `changed` is the version that it
 * changed with.
 */
export const ROWS = `
local GROUP, HEARD, REGISTERED, WATERMARK, PUBLISHED, MISSING, SINCE, SEQUENCE = 1, 2, 3, 4, 5, 6, 7, 8
local ACTIVE, PREFILL, RUNNING, WAITING, REQUESTS, BLOCKS, RESERVED, SOONEST, CHANGED = 9, 10, 11, 12, 13, 14, 15, 16, 17
local ROW = '^([^,]*)' .. string.rep(',([^,]*)', 16) .. '$'

local function parse(text)
  local row = { match(text, ROW) }
  for field = HEARD, SEQUENCE do row[field] = tonumber(row[field]) end
  for field = REQUESTS, CHANGED do row[field] = tonumber(row[field]) end
  return row
end

local function save(row)
  call('HSET', tag .. 'd' .. row.model, row.id, concat(row, ','))
end

-- The incarnation and the model of a rank.
local function lifeOf(id)
  local life = call('HGET', tag .. 'i', id)
  if life then return match(life, '^(.-)\\n(.*)$') end
end

-- The row of a rank whose current incarnation this is.
local function current(id, incarnation)
  local held, model = lifeOf(id)
  if held ~= incarnation then return nil end
  local text = call('HGET', tag .. 'd' .. model, id)
  if not text then return nil end
  local row = parse(text)
  row.id, row.model = id, model
  return row
end

local function retiredKey(id, incarnation)
  return tag .. 'x' .. id .. ' ' .. incarnation
end

-- What to answer for an incarnation that is not current: r(etired) or u(nknown).
local function refusal(id, incarnation, horizon)
  local at = tonumber(call('GET', retiredKey(id, incarnation)))
  return at and now - at <= horizon and 'r' or 'u'
end

-- Not below the time, so that no version comes twice: a Redis that has lost its latest writes (a failover, an older dump) would count up
-- to those that readers have a copy of.
local function nextVersion()
  local version = math.max((tonumber(call('HGET', tag .. 'c', 'version') or nil) or 0) + 1, now)
  call('HSET', tag .. 'c', 'version', version)
  return version
end

-- Names the epoch if the view is empty. Groups begin anywhere, so that what other shards may still hold stays inert.
local function begin(epoch, first)
  if call('HSETNX', tag .. 'c', 'epoch', epoch) == 1 then call('HSETNX', tag .. 'c', 'next', first) end
end

local DIGITS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_'
local function digit(n)
  n = n % 64
  return sub(DIGITS, n + 1, n + 1)
end

-- Three slots, one per tier, that nobody can name any more. The digit that differs most comes first: cells are found quicker.
local function allot()
  local waiting = call('ZRANGE', tag .. 'f', 0, 0, 'WITHSCORES')
  if waiting[1] and tonumber(waiting[2]) <= tick then
    call('ZREM', tag .. 'f', waiting[1])
    return waiting[1]
  end
  local n = call('HINCRBY', tag .. 'c', 'next', 1)
  return digit(n) .. digit(floor(n / 64)) .. digit(floor(n / 4096)) .. digit(floor(n / 262144))
end

-- Twice is the same as once: a script may run again when its answer was lost.
local function retireGroup(group, horizon)
  call('ZADD', tag .. 'f', leaseEnd(horizon), group)
  call('HDEL', tag .. 'w', group)
end

-- Takes a rank out of the fleet; returns its group.
local function forget(id, horizon)
  local _, model = lifeOf(id)
  local text = model and call('HGET', tag .. 'd' .. model, id)
  if not text then return '' end
  local group = match(text, ROW)
  retireGroup(group, horizon)
  call('HDEL', tag .. 'i', id)
  call('HDEL', tag .. 's', id)
  call('HDEL', tag .. 'd' .. model, id)
  call('DEL', tag .. 'r' .. id)
  if call('EXISTS', tag .. 'd' .. model) == 0 then call('SREM', tag .. 'm', model) end
  nextVersion()
  return group
end

local function markRetired(id, incarnation, horizon)
  call('SET', retiredKey(id, incarnation), now, 'PX', horizon + 1000)
end

-- Notes whether batches are missing from now on.
local function noteMissing(row)
  row[MISSING] = row[PUBLISHED] > row[WATERMARK] and row[PUBLISHED] or 0
  row[SINCE] = now
end

local function advance(row, sequence)
  row[WATERMARK] = sequence
  if sequence > row[PUBLISHED] then row[PUBLISHED] = sequence end
  if row[MISSING] > 0 and sequence >= row[MISSING] then noteMissing(row) end
end

-- Sums of a rank's open reservations and the end of the soonest; those that have ended are deleted.
local function openReservations(id)
  local all, ended = call('HGETALL', tag .. 'r' .. id), {}
  local requests, blocks, prefill, soonest = 0, 0, 0, 0
  for i = 1, #all, 2 do
    local b, p, ends = match(all[i + 1], '^(.*),(.*),(.*)$')
    ends = tonumber(ends)
    if ends <= now then
      ended[#ended + 1] = all[i]
    else
      requests, blocks, prefill = requests + 1, blocks + b, prefill + p
      if soonest == 0 or ends < soonest then soonest = ends end
    end
  end
  for first = 1, #ended, 1000 do
    call('HDEL', tag .. 'r' .. id, unpack(ended, first, math.min(first + 999, #ended)))
  end
  return requests, blocks, prefill, soonest
end

local function endReservations(row)
  if row[SOONEST] == 0 or row[SOONEST] > now then return end
  row[REQUESTS], row[BLOCKS], row[RESERVED], row[SOONEST] = openReservations(row.id)
end

-- Takes a reservation, given as text, out of the sums.
local function subtract(row, reservation)
  local blocks, prefill = match(reservation, '^(.*),(.*),')
  row[REQUESTS] = row[REQUESTS] - 1
  row[BLOCKS] = row[BLOCKS] - blocks
  row[RESERVED] = row[RESERVED] - prefill
  if row[REQUESTS] == 0 then row[SOONEST] = 0 end
end

local function release(row, request)
  local reservation = call('HGET', tag .. 'r' .. row.id, request)
  if not reservation then return end
  call('HDEL', tag .. 'r' .. row.id, request)
  subtract(row, reservation)
end
`;

/**
 * Rows as a reader gets them: group, then silence in ms, batches behind, ms behind, active blocks, prefill tokens, running, waiting and
 * the reservations' count, blocks and prefill tokens, separated by commas; nothing stands for 0 and `-` for unknown. No time of the
 * view's clock leaves it: only how long ago things were.
 */
export const READ_ROWS = `
-- Ranks of a reading whose reservations may be summed up anew, at three commands each; the others wait for the next reading.
local REPAIRS = 8

local function amount(text)
  return text == '0' and '' or text
end

-- Returns the rows, joined by ';', the commands spent for repairs, and which digit stands for which group's place.
local function readRows(model)
  local all = call('HGETALL', tag .. 'd' .. model)
  local rows, repaired, places = {}, 0, {}
  for i = 2, #all, 2 do
    local text = all[i]
    local group, heard, _, watermark, published, missing, since, _, active, prefill, running, waiting, requests, blocks, reserved,
      soonest = match(text, ROW)
    if soonest ~= '0' and tonumber(soonest) <= now and repaired < REPAIRS then
      local row = parse(text)
      row.id, row.model, repaired = all[i - 1], model, repaired + 1
      endReservations(row)
      save(row)
      requests, blocks, reserved = row[REQUESTS] .. '', row[BLOCKS] .. '', row[RESERVED] .. ''
    end
    local silent, lag, behind = now - heard, published - watermark, missing ~= '0' and now - since or 0
    places[group] = digit(i / 2 - 1)
    rows[i / 2] = concat({
      group .. (silent > 0 and silent or ''), lag > 0 and lag or '', behind > 0 and behind or '', amount(active), amount(prefill),
      amount(running), amount(waiting), amount(requests), amount(blocks), amount(reserved),
    }, ',')
  end
  return concat(rows, ';'), 3 * repaired, places
end

-- Epoch, version, ms since the indexer's heartbeat (-: never).
local function headOf()
  local about = call('HMGET', tag .. 'c', 'epoch', 'version', 'beat')
  if not about[1] then return ' 0 -' end
  local beat = about[3] and now - about[3] or '-'
  return about[1] .. ' ' .. (about[2] or 0) .. ' ' .. beat
end
`;
