-- Delete what is past its time from the buckets whose turn it is: each has one a pass, whoever runs this however often.
-- KEYS: state, prefix of the buckets   ARGV: ttl ms, how long a pass takes in ms, buckets at most
-- Of the state: `cursor`, the bucket that is next; `swept_ms`, when its turn came, by this server's clock.
-- Returns {'OK', how many buckets there are whose turn has come and that are left}.
local state = redis.call('HMGET', KEYS[1], 'buckets', 'cursor', 'swept_ms')
local buckets = tonumber(state[1] or '1')
local now, pass_ms = redis.call('TIME'), tonumber(ARGV[2])
local now_ms, now_s = now[1] * 1000 + math.floor(now[2] / 1000), tonumber(now[1])
local cursor, swept_ms = tonumber(state[2] or '0'), tonumber(state[3] or '0')
if swept_ms > now_ms or swept_ms < now_ms - pass_ms then
  swept_ms = now_ms - pass_ms -- at the beginning, after a long pause, and when the clock is set back: a pass at once
end
local due = math.floor((now_ms - swept_ms) * buckets / pass_ms)
local count = math.min(due, tonumber(ARGV[3]))
for _ = 1, count do
  local bucket = KEYS[2] .. cursor % buckets
  local fields, gone = redis.call('HGETALL', bucket), {}
  for i = 1, #fields, 2 do
    local a, b, c, d = string.byte(fields[i + 1], 1, 4)
    if ((a * 256 + b) * 256 + c) * 256 + d + math.ceil(ARGV[1] / 1000) < now_s then
      gone[#gone + 1] = fields[i]
    end
  end
  if #gone > 0 then
    redis.call('HDEL', bucket, unpack(gone))
  end
  cursor = cursor % buckets + 1
end
if count > 0 then
  swept_ms = string.format('%.0f', swept_ms + count * pass_ms / buckets)
  redis.pcall('HSET', KEYS[1], 'cursor', cursor, 'swept_ms', swept_ms) -- without memory the same ones have their turn again
end
return {'OK', due - count}
