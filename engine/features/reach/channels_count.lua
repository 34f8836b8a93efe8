-- Count what a user is told by a channel, unless it was enough lately. A step that is counted is not counted twice: its time is now.
-- KEYS: what was counted   ARGV: the step; how many at most; in how long, ms
-- Returns {'OK', 0: the step may not be taken, 1: it counts now, 2: it counted before}.
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now_ms - ARGV[3])
local before = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not before and redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
  return {'OK', 0}
end
redis.call('ZADD', KEYS[1], now_ms, ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return {'OK', before and 2 or 1}
