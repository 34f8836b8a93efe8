-- Settle batches of outcomes that are in the database, or cannot be read; and delete settled ones that no group of consumers may want.
-- Idempotent.
-- KEYS: stream, state, mark of what was trimmed
-- ARGV: group, bytes of settled batches to keep, ms to keep them, then for each batch: entry id, its bytes, its outcomes, and those of them
--       that were not stored
-- Returns {'OK', batches that were settled now}.
-- Settled batches are kept while the state has a `wanted` (ms since the epoch) that is not over, the oldest go first, and `kept` is their
-- size. Everything before `settled`, as XRANGE takes it, is settled.
local bytes, waiting, dropped, settled = 0, 0, 0, 0
for i = 4, #ARGV, 4 do
  if redis.call('XACK', KEYS[1], ARGV[1], ARGV[i]) == 1 then
    settled = settled + 1
    bytes = bytes + ARGV[i + 1] + 100
    waiting = waiting + ARGV[i + 2]
    dropped = dropped + ARGV[i + 3]
  end
end
if settled > 0 then
  redis.call('HINCRBY', KEYS[2], 'bytes', -bytes)
  redis.call('HINCRBY', KEYS[2], 'waiting', -waiting)
  redis.call('HINCRBY', KEYS[2], 'kept', bytes)
  if dropped > 0 then redis.call('HINCRBY', KEYS[2], 'dropped', dropped) end
end

local pending = redis.pcall('XPENDING', KEYS[1], ARGV[1])
if pending.err then return {'OK', settled} end
local last = pending[1] > 0 and '(' .. pending[2]
local first = pending[2]
if not last then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    if group[2] == ARGV[1] then last = group[8] end
  end
  first = '(' .. last
end
redis.call('HSET', KEYS[2], 'settled', first)

local time = redis.call('TIME')
local now_ms = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local wanted = now_ms < tonumber(redis.call('HGET', KEYS[2], 'wanted') or '0')
local kept, trimmed = tonumber(redis.call('HGET', KEYS[2], 'kept') or '0'), nil
for _ = 1, 64 do
  local entry = redis.call('XRANGE', KEYS[1], '-', last, 'COUNT', 1)[1]
  if not entry then break end
  local ms, number = string.match(entry[1], '(%d+)-(%d+)')
  if wanted and kept <= tonumber(ARGV[2]) and tonumber(ms) > now_ms - ARGV[3] then break end
  for i = 1, #entry[2], 2 do
    if entry[2][i] == 'b' then kept = kept - #entry[2][i + 1] - 100 end
  end
  redis.call('XDEL', KEYS[1], entry[1])
  trimmed = string.format('%s-%.0f', ms, number + 1)
end
if trimmed then
  redis.call('SET', KEYS[3], trimmed)
  redis.call('HSET', KEYS[2], 'kept', string.format('%.0f', math.max(kept, 0)))
end
return {'OK', settled}
