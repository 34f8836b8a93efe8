-- Issue the next fencing epoch. It follows the clock, so that a server that has lost the counter does not issue one twice.
-- KEYS: counter   Returns {'OK', epoch}.
local now = redis.call('TIME')
local epoch = math.max(tonumber(redis.call('GET', KEYS[1]) or '0') + 1, now[1] * 1000 + math.floor(now[2] / 1000))
local text = string.format('%.0f', epoch)
redis.call('SET', KEYS[1], text)
return {'OK', text}
