-- Replace the data epoch after a loss of data, once however many callers detect it. An older one is what a second loss has left.
-- KEYS: meta hash   ARGV: field, epoch to replace, its successor   Returns {'OK', current epoch}.
local epoch = redis.call('HGET', KEYS[1], ARGV[1])
if not epoch or tonumber(epoch, 36) <= tonumber(ARGV[2], 36) then
  epoch = ARGV[3]
  redis.call('HSET', KEYS[1], ARGV[1], epoch)
end
return {'OK', epoch}
