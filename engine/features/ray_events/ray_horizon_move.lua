-- Move the horizon of ended jobs forward, and forget which jobs before it were told.
-- KEYS: the state, the told jobs   ARGV: the horizon in ms
-- Returns {'OK', the horizon in force}: a newer one stays.
local now = redis.call('HGET', KEYS[1], 'horizon')
if now and tonumber(now) >= tonumber(ARGV[1]) then
  return {'OK', now}
end
redis.call('HSET', KEYS[1], 'horizon', ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', '(' .. ARGV[1])
return {'OK', ARGV[1]}
