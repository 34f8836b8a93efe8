-- Data was lost: another data epoch, once, however many notice.
-- KEYS: facts about the data   ARGV: field, epoch that was lost, its successor   Returns {'OK', the epoch from now on}.
local epoch = redis.call('HGET', KEYS[1], ARGV[1])
if not epoch or epoch == ARGV[2] then
  epoch = ARGV[3]
  redis.call('HSET', KEYS[1], ARGV[1], epoch)
end
return {'OK', epoch}
