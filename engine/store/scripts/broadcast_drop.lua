-- Delete expired entries from the broadcast log. Idempotent, for any caller.
-- KEYS: log, state, parts   ARGV: prefix of the keys of positions, entries at most, bytes at most, positions
-- Returns {'OK', number deleted}. See broadcast_append.lua.
local entries_max, bytes_max = tonumber(ARGV[2]), tonumber(ARGV[3])
local dropped, bytes = 0, 0
for i = 4, #ARGV do
  local id = ARGV[i] .. '-0'
  local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
  if entry then
    redis.call('XDEL', KEYS[1], id)
    local tenant, size = entry[2][4], #entry[2][2]
    if tenant then
      redis.call('ZREM', ARGV[1] .. tenant, ARGV[i])
      if redis.call('EXISTS', ARGV[1] .. tenant) == 1 then
        local part = tonumber(redis.call('ZSCORE', KEYS[3], tenant) or '0') - size / bytes_max - 1 / entries_max
        redis.call('ZADD', KEYS[3], string.format('%.17g', math.max(part, 0)), tenant)
      else
        redis.call('ZREM', KEYS[3], tenant)
      end
    end
    dropped, bytes = dropped + 1, bytes + size
  end
end
if dropped > 0 then
  redis.call('HINCRBY', KEYS[2], 'bytes', string.format('%.0f', -bytes))
end
return {'OK', dropped}
