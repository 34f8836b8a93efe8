-- Put before each script of this folder: the limits, and how tenants share them.
-- KEYS of every script: log, state, parts, ...
-- ARGV of every script: entries at most, bytes at most, prefix of the keys of positions, ...
-- state: `last` position assigned, `bytes` of all entries, `evictions` ever. parts: tenant by its part of the limits. positions
-- (`<prefix><tenant>`): those of a tenant's entries. Entries of engines before tenants were counted have no tenant here.
local entries_max, bytes_max, prefix = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]

local function add_part(tenant, size, sign)
  local part = tonumber(redis.call('ZSCORE', KEYS[3], tenant) or '0') + sign * (size / bytes_max + 1 / entries_max)
  redis.call('ZADD', KEYS[3], string.format('%.17g', math.max(part, 0)), tenant)
end

-- Delete an entry that XRANGE returned. Returns its size; the caller subtracts it from the bytes of all.
local function delete(entry)
  local tenant, size = entry[2][4], #entry[2][2]
  redis.call('XDEL', KEYS[1], entry[1])
  if tenant then
    redis.call('ZREM', prefix .. tenant, string.match(entry[1], '^%d+'))
    if redis.call('EXISTS', prefix .. tenant) == 1 then
      add_part(tenant, size, -1)
    else
      redis.call('ZREM', KEYS[3], tenant)
    end
  end
  return size
end

