-- Move timers that cannot be decoded to the quarantine, so that they block nothing and can be inspected.
-- KEYS: epoch, due, timer, quarantine, collapse keys   ARGV: epoch, records that the quarantine keeps, sid...   Returns {'OK'}. Idempotent.
for i = 3, #ARGV do
  local due = redis.call('ZSCORE', KEYS[2], ARGV[i])
  local packed = redis.call('HGET', KEYS[3], ARGV[i])
  if due or packed then
    redis.call('ZREM', KEYS[2], ARGV[i])
    redis.call('HDEL', KEYS[3], ARGV[i])
    redis.call('HDEL', KEYS[5], ARGV[i])
    redis.call('XADD', KEYS[4], 'MAXLEN', ARGV[2], '*', 'where', ARGV[i], 'blob', packed or '')
  end
end
return {'OK'}
