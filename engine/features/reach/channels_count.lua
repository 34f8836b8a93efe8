-- Count what a user is told by a channel, unless it was enough lately. Repeating it for one step changes nothing.
-- KEYS: what was counted   ARGV: the step; how many at most; in how long, ms
-- Returns {'OK', 1 when the step may be taken, else 0}.
if redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  return {'OK', 1}
end
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms - ARGV[3])
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
  return {'OK', 0}
end
redis.call('ZADD', KEYS[1], now_ms, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'OK', 1}
