-- Note when something came first, unless it is known.
-- KEYS: the arrival   ARGV: now in ms; how long it is remembered, ms
-- Returns {'OK', when it came first in ms}.
local first = redis.call('GET', KEYS[1])
if not first then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return {'OK', first or ARGV[1]}
