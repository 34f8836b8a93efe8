-- Take a timer partition over: set its epoch and owner and return its claim horizon; or change nothing when it has a newer epoch.
-- KEYS: epoch, claimed, young, owner   ARGV: epoch, name of the owner   Returns {'FENCED', epoch} or {'OK', claimed-until in ms}. Idempotent.
local epoch = redis.call('GET', KEYS[1])
if epoch and tonumber(epoch) > tonumber(ARGV[1]) then
  return {'FENCED', epoch}
end
redis.call('SET', KEYS[1], ARGV[1])
redis.call('SET', KEYS[4], ARGV[2])
redis.call('DEL', KEYS[3]) -- the previous owner may have sent these to a shard
return {'OK', redis.call('GET', KEYS[2]) or '0'}
