-- Take a timer partition over: raise its epoch, and say how far its timers are claimed; or change nothing when the epoch is newer.
-- KEYS: epoch, claimed, young   ARGV: epoch   Returns {'FENCED', epoch} or {'OK', claimed-until in ms}. Safe to repeat.
local epoch = redis.call('GET', KEYS[1])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return {'FENCED', epoch}
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[3]) -- what the last holder could vouch for it may have handed out
return {'OK', redis.call('GET', KEYS[2]) or '0'}
