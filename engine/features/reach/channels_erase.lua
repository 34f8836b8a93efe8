-- Erase the addresses of a user, and remember when, so that links that were sent before confirm nothing.
-- KEYS: addresses of the tenant; when the user was erased   ARGV: the user; how long a link is good, ms
-- Returns {'OK'}.
local now = redis.call('TIME')
redis.call('SET', KEYS[2], string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000)), 'PX', ARGV[2])
redis.call('HDEL', KEYS[1], ARGV[1])
return {'OK'}
