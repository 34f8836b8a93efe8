-- Put before each script of this folder: the limits, how tenants share them, and what is remembered of entries that have left.
-- KEYS of every script: log, state, parts, dropped, lost, prefix of the keys of positions, ...
-- ARGV of every script: entries at most, bytes at most, ...
-- log: entries `b` with their tenant `t` and audience `a`, "<tenant> <topic>", '' for those that are not retained.
-- state: `last` position assigned, `bytes` of all entries, `drops` ever; `horizon`, below which losses may be forgotten.
-- parts: tenant by its part of the limits. positions (`<prefix><tenant>`): those of a tenant's entries.
-- dropped: "<position> <audience>" by the number of the drop, the last `entries at most` of them.
-- lost: audience by the position of its newest retained entry that has left the log, the newest `entries at most` of them.
local entries_max, bytes_max, prefix = tonumber(ARGV[1]), tonumber(ARGV[2]), KEYS[6]

local function add_part(tenant, size, sign)
  local part = tonumber(redis.call('ZSCORE', KEYS[3], tenant) or '0') + sign * (size / bytes_max + 1 / entries_max)
  redis.call('ZADD', KEYS[3], string.format('%.17g', math.max(part, 0)), tenant)
end

-- Delete an entry that XRANGE returned, as drop number `drop`. Returns its size; the caller subtracts it from the bytes of all.
local function delete(entry, drop)
  local position, size, tenant, audience = string.match(entry[1], '^%d+'), #entry[2][2], entry[2][4], entry[2][6]
  redis.call('XDEL', KEYS[1], entry[1])
  redis.call('ZREM', prefix .. tenant, position)
  if redis.call('EXISTS', prefix .. tenant) == 1 then
    add_part(tenant, size, -1)
  else
    redis.call('ZREM', KEYS[3], tenant)
  end
  redis.call('ZADD', KEYS[4], drop, position .. ' ' .. audience)
  if audience ~= '' then
    redis.call('ZADD', KEYS[5], 'GT', position, audience)
  end
  return size
end

-- Store how many entries have left, and forget the oldest of what is remembered of them.
local function remember(drops)
  redis.call('HSET', KEYS[2], 'drops', string.format('%.0f', drops))
  redis.call('ZREMRANGEBYRANK', KEYS[4], 0, -entries_max - 1)
  local beyond = redis.call('ZCARD', KEYS[5]) - entries_max
  if beyond > 0 then
    local forgotten = redis.call('ZPOPMIN', KEYS[5], beyond)
    redis.call('HSET', KEYS[2], 'horizon', string.format('%.0f', forgotten[#forgotten]))
  end
end
