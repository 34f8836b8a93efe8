-- Count one more mail of confirmation, unless a limit is reached; or one less, which was not sent.
-- KEYS: counters   ARGV: how long each counts, ms, or 0 for one less; the limit of each counter
-- Returns {'OK', how long until a counter that is full starts anew, ms, 0 when the mail was counted; the time, ms}.
local now = redis.call('TIME')
local now_ms = now[1] * 1000 + math.floor(now[2] / 1000)
if ARGV[1] == '0' then
  for _, key in ipairs(KEYS) do
    if tonumber(redis.call('GET', key) or '0') > 0 then
      redis.call('DECR', key)
    end
  end
  return {'OK', 0, now_ms}
end
for index, key in ipairs(KEYS) do
  if tonumber(redis.call('GET', key) or '0') >= tonumber(ARGV[index + 1]) then
    return {'OK', math.max(redis.call('PTTL', key), 1), now_ms}
  end
end
for _, key in ipairs(KEYS) do
  if redis.call('INCR', key) == 1 then
    redis.call('PEXPIRE', key, ARGV[1])
  end
end
return {'OK', 0, now_ms}
