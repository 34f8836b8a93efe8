-- Delete expired entries from the broadcast log. Idempotent, for any caller.
-- KEYS: log, state   ARGV: positions   Returns {'OK', number deleted}.
local dropped, bytes = 0, 0
for i = 1, #ARGV do
  local id = ARGV[i] .. '-0'
  local entry = redis.call('XRANGE', KEYS[1], id, id)[1]
  if entry then
    redis.call('XDEL', KEYS[1], id)
    dropped, bytes = dropped + 1, bytes + #entry[2][2]
  end
end
if dropped > 0 then
  redis.call('HINCRBY', KEYS[2], 'bytes', string.format('%.0f', -bytes))
end
return {'OK', dropped}
