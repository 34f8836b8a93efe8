-- Append one broadcast to the log unless its id is stored already, and evict entries beyond the limits: the oldest of the tenant with the
-- largest part of the log, so that no tenant evicts what others have in their fair part.
-- KEYS: log, state, idempotency key, parts, evicted, positions of the tenant
-- ARGV: digest in hex, entry, ttl of the id in ms, entries at most, bytes at most, tenant, evictions kept
-- state: `last` position assigned, `bytes` of all entries, `evictions` ever. parts: tenant by its part of the limits. evicted: positions by the
-- number of their eviction. positions (`<prefix><tenant>`): those of a tenant's entries. Positions are microseconds of this server's clock,
-- strictly increasing. Entries of engines before this have no tenant here; they are the oldest and are evicted first.
-- Returns {'OK', position} or {'KNOWN', value of the id}.
local known = redis.call('GET', KEYS[3])
if known then
  return {'KNOWN', known}
end
local entries_max, bytes_max, tenant = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local prefix = string.sub(KEYS[6], 1, #KEYS[6] - #tenant)
local state = redis.call('HMGET', KEYS[2], 'last', 'bytes', 'evictions')
local now = redis.call('TIME')
local position = string.format('%.0f', math.max(tonumber(state[1] or '0') + 1, now[1] * 1000000 + now[2]))
local bytes, evictions = tonumber(state[2] or '0') + #ARGV[2], tonumber(state[3] or '0')

local function add_part(of, size, sign)
  local part = tonumber(redis.call('ZSCORE', KEYS[4], of) or '0') + sign * (size / bytes_max + 1 / entries_max)
  redis.call('ZADD', KEYS[4], string.format('%.17g', math.max(part, 0)), of)
end

redis.call('XADD', KEYS[1], position .. '-0', 'b', ARGV[2], 't', tenant)
redis.call('ZADD', KEYS[6], position, position)
redis.call('SET', KEYS[3], ARGV[1] .. '|' .. position .. '|', 'PX', ARGV[3])
add_part(tenant, #ARGV[2], 1)

local entries = redis.call('XLEN', KEYS[1])
-- Usually one entry is evicted per append; after the limits were lowered, at most a hundred.
for _ = 1, 100 do
  if entries <= 1 or (entries <= entries_max and bytes <= bytes_max) then
    break
  end
  local victim = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  if #victim[2] == 4 then
    local largest = redis.call('ZRANGE', KEYS[4], -1, -1)[1]
    local oldest = redis.call('ZRANGE', prefix .. largest, 0, 0)[1]
    if oldest == position then
      oldest = nil -- what is appended stays, however large: another tenant's oldest goes
    end
    if oldest then
      victim = redis.call('XRANGE', KEYS[1], oldest .. '-0', oldest .. '-0')[1]
    end
  end
  local gone = string.match(victim[1], '^%d+')
  redis.call('XDEL', KEYS[1], victim[1])
  if victim[2][4] then
    redis.call('ZREM', prefix .. victim[2][4], gone)
    if redis.call('EXISTS', prefix .. victim[2][4]) == 1 then
      add_part(victim[2][4], #victim[2][2], -1)
    else
      redis.call('ZREM', KEYS[4], victim[2][4])
    end
  end
  evictions = evictions + 1
  redis.call('ZADD', KEYS[5], evictions, gone)
  bytes = bytes - #victim[2][2]
  entries = entries - 1
end
while redis.call('ZCARD', KEYS[5]) > tonumber(ARGV[7]) do
  redis.call('ZREM', KEYS[5], redis.call('ZRANGE', KEYS[5], 0, 0)[1])
end
redis.call('HSET', KEYS[2], 'last', position, 'bytes', string.format('%.0f', bytes), 'evictions', string.format('%.0f', evictions))
return {'OK', position}
