-- Store a new state of the rules' versions, unless another one was stored since the caller has read it.
-- KEYS: state, texts, stamps of tenants
-- ARGV: the stamp that was read, '' for none; the new stamp; the new state; number of a new version or ''; its text; tenant or ''; versions to drop ...
-- Returns {'OK'}, or {'STALE', stamp of the state that is there}.
local stamp = redis.call('HGET', KEYS[1], 'stamp') or ''
if stamp ~= ARGV[1] then
  return {'STALE', stamp}
end
redis.call('HSET', KEYS[1], 'stamp', ARGV[2], 'state', ARGV[3])
if ARGV[4] ~= '' then
  redis.call('HSET', KEYS[2], ARGV[4], ARGV[5])
end
if ARGV[6] ~= '' then
  redis.call('HSET', KEYS[3], ARGV[6], ARGV[2])
end
for at = 7, #ARGV do
  redis.call('HDEL', KEYS[2], ARGV[at])
end
return {'OK'}
