-- Begin to grow a message, or find the one that grows under its id. Another writer begins it anew: what the first one wrote is dropped.
-- KEYS: the growth, ids of the user, due times of the server, counts of tenants
-- ARGV: id, writer, head, now in ms, due time in ms, member of the due times, tenant, open ones of the user and of the tenant at most,
--       ms to keep one that has ended
-- Returns {'OK' (it begins), 'KNOWN' or 'ENDED', generation, size, why it ended, its ending}, or {'FULL', 'user' or 'tenant'}.
local known = redis.call('HMGET', KEYS[1], 'generation', 'writer', 'size', 'ended', 'reason', 'ending')
local generation = tonumber(ARGV[4])
if known[1] then
  if known[4] or known[5] then
    return {'ENDED', known[1], known[3], known[5] or '', known[6] or ''}
  end
  if known[2] == ARGV[2] then
    redis.call('ZADD', KEYS[3], ARGV[5], ARGV[6])
    return {'KNOWN', known[1], known[3], '', ''}
  end
  generation = math.max(generation, tonumber(known[1]) + 1)
  redis.call('DEL', KEYS[1])
else
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '(0', tonumber(ARGV[4]) - tonumber(ARGV[10]))
  if redis.call('ZCOUNT', KEYS[2], 0, 0) >= tonumber(ARGV[8]) then
    return {'FULL', 'user'}
  end
  if tonumber(redis.call('HGET', KEYS[4], ARGV[7]) or '0') >= tonumber(ARGV[9]) then
    return {'FULL', 'tenant'}
  end
  redis.call('HINCRBY', KEYS[4], ARGV[7], 1)
end
generation = string.format('%.0f', generation)
redis.call('HSET', KEYS[1], 'generation', generation, 'writer', ARGV[2], 'size', '0', 'head', ARGV[3])
redis.call('ZADD', KEYS[2], 0, ARGV[1])
redis.call('PERSIST', KEYS[2])
redis.call('ZADD', KEYS[3], ARGV[5], ARGV[6])
return {'OK', generation, '0', '', ''}
