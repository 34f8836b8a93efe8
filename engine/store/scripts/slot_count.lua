-- Count the users of one slot and what they take, once: from then on every checkpoint counts what it changes.
-- KEYS: page, held, of all tenants: users, bytes; of the timer partition: unpaged   ARGV: prefix of the slot's streams   Returns {'OK'}.
if redis.call('HEXISTS', KEYS[2], '') == 1 then
  return {'OK'}
end
redis.call('HSET', KEYS[2], '', '')
for _, name in ipairs(redis.call('HKEYS', KEYS[1])) do
  local stream, tenant, holds = ARGV[1] .. name, string.match(name, '^[^:]*'), 0
  if redis.call('XLEN', stream) > 0 then
    holds = redis.call('MEMORY', 'USAGE', stream, 'SAMPLES', '20')
    redis.call('HSET', KEYS[2], name, holds)
  end
  if redis.call('SREM', KEYS[5], name) == 0 then -- else the user is counted already, for timers
    redis.call('ZINCRBY', KEYS[3], 1, tenant)
  end
  redis.call('ZINCRBY', KEYS[4], redis.call('HSTRLEN', KEYS[1], name) + holds, tenant)
end
return {'OK'}
