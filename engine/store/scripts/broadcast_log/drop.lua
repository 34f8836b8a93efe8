-- Delete expired entries from the log. Idempotent, for any caller.
-- KEYS: as broadcast_log.lua   ARGV: as broadcast_log.lua, positions
-- Returns {'OK', number deleted}.
local before = tonumber(redis.call('HGET', KEYS[2], 'drops') or '0')
local drops, bytes = before, 0
for i = 3, #ARGV do
  local id = ARGV[i] .. '-0'
  local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
  if entry then
    drops = drops + 1
    bytes = bytes + delete(entry, drops)
  end
end
if drops > before then
  remember(drops)
  redis.call('HINCRBY', KEYS[2], 'bytes', string.format('%.0f', -bytes))
end
return {'OK', drops - before}
