-- Append one broadcast to the log unless its id is stored already, and evict entries beyond the limits: the oldest of the tenant with the
-- largest part of the log, so that no tenant evicts what others have in their fair part.
-- KEYS: as broadcast_log.lua, idempotency key
-- ARGV: as broadcast_log.lua, digest in hex, entry, ttl of the id in ms, tenant, audience or ''
-- Positions are microseconds of this server's clock, strictly increasing.
-- Returns {'OK', position} or {'KNOWN', value of the id}.
local known = redis.call('GET', KEYS[7])
if known then
  return {'KNOWN', known}
end
local digest, entry, ttl_ms, tenant, audience = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local state = redis.call('HMGET', KEYS[2], 'last', 'bytes', 'drops')
local now = redis.call('TIME')
local position = string.format('%.0f', math.max(tonumber(state[1] or '0') + 1, now[1] * 1000000 + now[2]))
local bytes, drops = tonumber(state[2] or '0') + #entry, tonumber(state[3] or '0')

redis.call('XADD', KEYS[1], position .. '-0', 'b', entry, 't', tenant, 'a', audience)
redis.call('ZADD', prefix .. tenant, position, position)
redis.call('SET', KEYS[7], digest .. '|' .. position .. '|', 'PX', ttl_ms)
add_part(tenant, #entry, 1)

local entries, before = redis.call('XLEN', KEYS[1]), drops
-- Usually one entry is evicted per append; after the limits were lowered, at most a hundred.
for _ = 1, 100 do
  if entries <= 1 or (entries <= entries_max and bytes <= bytes_max) then
    break
  end
  local largest = redis.call('ZRANGE', KEYS[3], -1, -1)[1]
  local oldest = redis.call('ZRANGE', prefix .. largest, 0, 0)[1]
  local victim
  if oldest ~= position then
    victim = redis.call('XRANGE', KEYS[1], oldest .. '-0', oldest .. '-0')[1]
    if not victim then
      redis.call('ZREM', prefix .. largest, oldest) -- storage has lost the entry
      if redis.call('EXISTS', prefix .. largest) == 0 then
        redis.call('ZREM', KEYS[3], largest)
      end
    end
  end
  -- What is appended stays, however large: the oldest of all goes.
  victim = victim or redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  drops = drops + 1
  bytes = bytes - delete(victim, drops)
  entries = entries - 1
end
if drops > before then
  remember(drops)
end
redis.call('HSET', KEYS[2], 'last', position, 'bytes', string.format('%.0f', bytes))
return {'OK', position}
