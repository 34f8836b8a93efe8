-- Delete expired entries from the log. Idempotent, for any caller.
-- KEYS: log, state, parts   ARGV: limits and prefix (see broadcast_log.lua), positions
-- Returns {'OK', number deleted}.
local dropped, bytes = 0, 0
for i = 4, #ARGV do
  local id = ARGV[i] .. '-0'
  local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
  if entry then
    bytes = bytes + delete(entry)
    dropped = dropped + 1
  end
end
if dropped > 0 then
  redis.call('HINCRBY', KEYS[2], 'bytes', string.format('%.0f', -bytes))
end
return {'OK', dropped}
