-- Append one broadcast to the log unless its id is stored already, and trim the oldest entries beyond the limits.
-- KEYS: log, state, idempotency key   ARGV: digest in hex, entry, ttl of the id in ms, entries at most, bytes at most
-- state: `last` position assigned, `bytes` of all entries. Positions are microseconds of this server's clock, strictly increasing.
-- Returns {'OK', position} or {'KNOWN', value of the id}.
local known = redis.call('GET', KEYS[3])
if known then
  return {'KNOWN', known}
end
local state = redis.call('HMGET', KEYS[2], 'last', 'bytes')
local now = redis.call('TIME')
local position = string.format('%.0f', math.max(tonumber(state[1] or '0') + 1, now[1] * 1000000 + now[2]))
redis.call('XADD', KEYS[1], position .. '-0', 'b', ARGV[2])
redis.call('SET', KEYS[3], ARGV[1] .. '|' .. position .. '|', 'PX', ARGV[3])
local bytes = tonumber(state[2] or '0') + #ARGV[2]
local entries = redis.call('XLEN', KEYS[1])
-- Usually one entry is trimmed per append; after the limits were lowered, at most a hundred.
for _ = 1, 100 do
  if entries <= 1 or (entries <= tonumber(ARGV[4]) and bytes <= tonumber(ARGV[5])) then
    break
  end
  local oldest = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  redis.call('XDEL', KEYS[1], oldest[1])
  bytes = bytes - #oldest[2][2]
  entries = entries - 1
end
redis.call('HSET', KEYS[2], 'last', position, 'bytes', string.format('%.0f', bytes))
return {'OK', position}
