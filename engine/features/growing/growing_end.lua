-- The message of a growth is published, or refused for good: the growth has ended, and is kept for late readers.
-- KEYS: the growth, ids of the user, due times of the server, counts of tenants
-- ARGV: id, member of the due times, tenant, now in ms, ms to keep it, '1' when the message was refused
-- Returns {'OK'}.
local known = redis.call('HMGET', KEYS[1], 'generation', 'ended')
redis.call('ZREM', KEYS[3], ARGV[2])
if known[1] and not known[2] then
  redis.call('HSET', KEYS[1], 'ended', ARGV[4])
  if ARGV[6] == '1' then
    redis.call('HSET', KEYS[1], 'refused', '1')
  end
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
  redis.call('ZADD', KEYS[2], ARGV[4], ARGV[1])
  if redis.call('HINCRBY', KEYS[4], ARGV[3], -1) <= 0 then
    redis.call('HDEL', KEYS[4], ARGV[3])
  end
end
if redis.call('ZCOUNT', KEYS[2], 0, 0) == 0 then
  redis.call('PEXPIRE', KEYS[2], ARGV[5])
end
return {'OK'}
