-- Append one broadcast to the log unless its id is stored already, and evict entries beyond the limits: the oldest of the tenant with the
-- largest part of the log, so that no tenant evicts what others have in their fair part.
-- KEYS: log, state, parts, idempotency key, evicted
-- ARGV: limits and prefix (see broadcast_log.lua), digest in hex, entry, ttl of the id in ms, tenant
-- evicted: positions by the number of their eviction, the last `entries at most` of them. Positions are microseconds of this server's
-- clock, strictly increasing. Entries without a tenant are the oldest and are evicted first.
-- Returns {'OK', position} or {'KNOWN', value of the id}.
local known = redis.call('GET', KEYS[4])
if known then
  return {'KNOWN', known}
end
local digest, entry, ttl_ms, tenant = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local state = redis.call('HMGET', KEYS[2], 'last', 'bytes', 'evictions')
local now = redis.call('TIME')
local position = string.format('%.0f', math.max(tonumber(state[1] or '0') + 1, now[1] * 1000000 + now[2]))
local bytes, evictions = tonumber(state[2] or '0') + #entry, tonumber(state[3] or '0')

redis.call('XADD', KEYS[1], position .. '-0', 'b', entry, 't', tenant)
redis.call('ZADD', prefix .. tenant, position, position)
redis.call('SET', KEYS[4], digest .. '|' .. position .. '|', 'PX', ttl_ms)
add_part(tenant, #entry, 1)

local entries = redis.call('XLEN', KEYS[1])
-- Usually one entry is evicted per append; after the limits were lowered, at most a hundred.
for _ = 1, 100 do
  if entries <= 1 or (entries <= entries_max and bytes <= bytes_max) then
    break
  end
  local victim = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  if #victim[2] == 4 then
    local largest = redis.call('ZRANGE', KEYS[3], -1, -1)[1]
    local oldest = redis.call('ZRANGE', prefix .. largest, 0, 0)[1]
    if oldest == position then
      oldest = nil -- what is appended stays, however large: another tenant's oldest goes
    end
    if oldest then
      victim = redis.call('XRANGE', KEYS[1], oldest .. '-0', oldest .. '-0')[1]
    end
  end
  bytes = bytes - delete(victim)
  evictions = evictions + 1
  redis.call('ZADD', KEYS[5], evictions, string.match(victim[1], '^%d+'))
  entries = entries - 1
end
while redis.call('ZCARD', KEYS[5]) > entries_max do
  redis.call('ZREM', KEYS[5], redis.call('ZRANGE', KEYS[5], 0, 0)[1])
end
redis.call('HSET', KEYS[2], 'last', position, 'bytes', string.format('%.0f', bytes), 'evictions', string.format('%.0f', evictions))
return {'OK', position}
