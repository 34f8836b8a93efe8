-- Move timers that cannot be decoded to the quarantine, so that they block nothing and can be inspected.
-- KEYS: epoch, due, timer, quarantine, collapse keys   ARGV: epoch, sid...   Returns {'OK'}. Idempotent.
for i = 2, #ARGV do
  local due = redis.call('ZSCORE', KEYS[2], ARGV[i])
  local packed = redis.call('HGET', KEYS[3], ARGV[i])
  if due or packed then
    redis.call('ZREM', KEYS[2], ARGV[i])
    redis.call('HDEL', KEYS[3], ARGV[i])
    redis.call('HDEL', KEYS[5], ARGV[i])
    redis.call('HSET', KEYS[4], ARGV[i], packed or '')
  end
end
return {'OK'}
